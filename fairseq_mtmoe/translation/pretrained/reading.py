"""Read a translator in Hugging Face's folder as a `base_dense`.

Weights keep their dtype and are memory-mapped, so that they are read only when the checkpoint is
written.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor

from fairseq_mtmoe.checkpoints import file_io, hugging_face
from fairseq_mtmoe.checkpoints.key_maps import (
    DECODER_EMBEDDINGS,
    ENCODER_EMBEDDINGS,
    OUTPUT,
    OUTPUT_BIAS,
)
from fairseq_mtmoe.checkpoints.rebuild import check_sizes, stand_in_task
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.transformer_options import FAIRSEQ
from fairseq_mtmoe.core.transformer_options import MARIAN as MARIAN_SINUSOIDS
from fairseq_mtmoe.translation.data.vocabulary import GENERATION
from fairseq_mtmoe.translation.model.key_map import (
    COUNTERS,
    SHARED,
    SINUSOIDS,
    THEIR_BIAS,
    THEIR_OUTPUT,
    THEIR_PREFIX,
)
from fairseq_mtmoe.translation.model.model import Transformer
from fairseq_mtmoe.translation.model.stacks import MarianPositions
from fairseq_mtmoe.translation.pretrained.families import (
    FAMILIES,
    MARIAN,
    MBART,
    PAD_ID,
    TranslatorConfig,
    read_config,
)
from fairseq_mtmoe.translation.pretrained.generation import read_generation
from fairseq_mtmoe.translation.pretrained.layout import NEVER, NO_ROW, Layout
from fairseq_mtmoe.translation.pretrained.tokenizers import read_tokenizer

TYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class PretrainedTranslator:
    """A pretrained translator with its vocabulary and options."""

    config: TranslatorConfig
    layout: Layout
    options: dict[str, Any]  # flat options of a `base_dense`
    state: dict[str, Tensor]
    generation: dict[str, Any] | None = None  # see `generation.py`

    def save(self, path: str | Path, task: Mapping[str, Any]) -> None:
        """Write a checkpoint, completely or not at all.

        `task` has further options of its task, without the languages.
        """
        settings = self.layout.settings
        if self.generation is not None:
            settings[GENERATION] = self.generation
        forms = {
            "langs": ",".join(settings["langs"]),
            "langtoks": str(settings["langtoks"]),
            "langtoks_specs": "main",
            "lang_tok_style": settings["lang_tok_style"],
            "lang_tok_replacing_bos_eos": False,
            "encoder_langtok_last": settings["encoder_langtok_last"],
        }
        history = {
            "criterion_name": "",
            "optimizer_name": "",
            "lr_scheduler_state": {},
            "num_updates": 0,
        }
        content = {
            "args": None,
            "cfg": {"model": self.options, "task": {**task, **forms}},
            "model": self.state,
            "task_state": settings,
            "optimizer_history": [history],
            "extra_state": {"train_iterator": None},
        }
        file_io.save(content, str(path))


def read_folder(folder: Path) -> hugging_face.Imported[PretrainedTranslator]:
    """Return the translator in a folder.

    Raises `UserError`: a file is missing, damaged or not supported.
    """
    values = hugging_face.config_values(folder, FAMILIES)
    config = read_config(values)
    layout = read_tokenizer(folder, config, values)
    weights = hugging_face.read_weights(folder)
    positions = {}
    if config.model_type != MBART:
        for name in filter(SINUSOIDS.fullmatch, list(weights)):
            positions[name] = weights.pop(name)
    state = _state(folder, weights, config)
    if config.model_type == MARIAN and OUTPUT in state:
        state.setdefault(OUTPUT_BIAS, state[OUTPUT].new_zeros(config.decoder_vocab_size))
    elif OUTPUT_BIAS in state and not state[OUTPUT_BIAS].any():
        del state[OUTPUT_BIAS]
    options = config.options(has_output_bias=OUTPUT_BIAS in state)
    check_sizes(folder, list(options.items()), state)
    if config.model_type == MARIAN:
        options["sinusoids"] = _sinusoids(folder, positions, config.d_model)
    generation = read_generation(folder, layout, config.decoder_vocab_size)
    sizes = config.vocab_size, config.decoder_vocab_size
    hugging_face.check_tensors(folder, wanted_tensors(options, *sizes), state, their_key, TYPES)
    hugging_face.check_finite(folder, weights)
    model = PretrainedTranslator(config, layout, options, _laid_out(state, layout), generation)
    return hugging_face.Imported(model, tuple(positions))


def their_key(key: str) -> str:
    """Return Hugging Face's name of one of our parameters."""
    return {OUTPUT: THEIR_OUTPUT, OUTPUT_BIAS: THEIR_BIAS}.get(key, f"{THEIR_PREFIX}{key}")


def wanted_tensors(
    options: Mapping[str, Any], num_source: int, num_target: int
) -> dict[str, Tensor]:
    """Return the state of a model with these sizes on the meta device."""
    sizes = {
        ENCODER_EMBEDDINGS: torch.empty(num_source, 0),
        DECODER_EMBEDDINGS: torch.empty(num_target, 0),
    }
    with torch.device("meta"):
        model = Transformer.build_with_slots(SimpleNamespace(**options), stand_in_task(sizes), {})
    return {
        name: value for name, value in model.state_dict().items() if not COUNTERS.fullmatch(name)
    }


def fairseq_positions(number: int, width: int) -> Tensor:
    """Return fairseq's sinusoidal positions as a table of Marian's class, (N, H)."""
    table: Tensor = SinusoidalPositionalEmbedding.get_embedding(number + PAD_ID + 1, width, PAD_ID)
    return table[PAD_ID + 1 :]


def _sinusoids(folder: Path, tables: Mapping[str, Tensor], width: int) -> str:
    """Return which sinusoids a folder's tables of positions hold.

    Without tables, return Marian's. Raises `UserError`: a table holds others.
    """
    sinusoids = MARIAN_SINUSOIDS
    for name, table in tables.items():
        if name.endswith(".weights"):  # of an old file, in which they are zeros
            continue
        number = len(table)
        kinds = {
            MARIAN_SINUSOIDS: MarianPositions(width, PAD_ID, number).weights[PAD_ID + 1 :],
            FAIRSEQ: fairseq_positions(number, width),
        }
        matches = (kind for kind, right in kinds.items() if _is_near(table, right))
        sinusoids = next(matches, "")
        if not sinusoids:
            raise UserError(
                f"`{name}` in `{folder}` contains positions that are neither Marian's nor "
                "fairseq's sinusoids, and cannot be imported."
            )
    return sinusoids


def _is_near(table: Tensor, right: Tensor) -> bool:
    """Return whether a table in any precision holds these positions."""
    return table.shape == right.shape and torch.allclose(table.float(), right, rtol=0, atol=0.01)


def check_types(path: Path, weights: Mapping[str, Any]) -> None:
    """Raise a `UserError` for the first weight that is not a tensor of one of `TYPES`."""
    for name, value in weights.items():
        kind = getattr(value, "dtype", type(value).__name__)
        if kind not in TYPES:
            raise UserError(
                f"`{name}` in `{path}` must be a tensor in float32, float16 or bfloat16, but is "
                f"{kind}; for a quantised model use the folder from before quantisation."
            )


def _state(folder: Path, weights: Mapping[str, Any], config: TranslatorConfig) -> dict[str, Tensor]:
    """Return the weights by our names, tied ones as one tensor.

    Raises `UserError`: tied weights differ.
    """
    encoder = f"{THEIR_PREFIX}{ENCODER_EMBEDDINGS}"
    decoder = f"{THEIR_PREFIX}{DECODER_EMBEDDINGS}"
    ties = (SHARED, THEIR_OUTPUT, encoder, decoder)
    check_types(folder, weights)
    state = {}
    for name, value in weights.items():
        if name == THEIR_BIAS:
            state[OUTPUT_BIAS] = value.flatten()
        elif name not in ties:
            if not name.startswith(THEIR_PREFIX):
                raise UserError(
                    f"`{folder}` is not a translator of `transformers`: it contains the unknown "
                    f"tensor `{name}`."
                )
            state[name.removeprefix(THEIR_PREFIX)] = value
    if config.share_encoder_decoder_embeddings:
        shared = _tied(folder, weights, (SHARED, encoder, decoder, THEIR_OUTPUT))
        return state | dict.fromkeys((ENCODER_EMBEDDINGS, DECODER_EMBEDDINGS, OUTPUT), shared)
    target = _tied(folder, weights, (decoder, THEIR_OUTPUT))
    return state | {
        ENCODER_EMBEDDINGS: _tied(folder, weights, (encoder,)),
        DECODER_EMBEDDINGS: target,
        OUTPUT: target,
    }


def _tied(folder: Path, weights: Mapping[str, Tensor], names: tuple[str, ...]) -> Tensor:
    """Return the tensor with these names (UserError: it is missing, or copies differ)."""
    copies = [(name, weights[name]) for name in names if name in weights]
    if not copies:
        raise UserError(f"`{folder}` has no tensor `{names[0]}`: download the weights again.")
    first_name, first = copies[0]
    for name, value in copies[1:]:
        if value.data_ptr() != first.data_ptr() and not torch.equal(value, first):
            raise UserError(
                f"`{name}` in `{folder}` differs from `{first_name}`, although its model ties "
                "them: save the model with equal values."
            )
    return first


def _laid_out(state: dict[str, Tensor], layout: Layout) -> dict[str, Tensor]:
    """Return a state whose embedding rows are in the order of a layout's ids."""
    laid: dict[int, Tensor] = {}  # by data pointer, so that tied tensors stay tied

    def rows_of(name: str, rows: tuple[int, ...], missing: float) -> Tensor:
        key = state[name].data_ptr()
        if key not in laid:
            order = torch.tensor(rows)
            laid[key] = state[name][order]
            laid[key][order == NO_ROW] = missing
        return laid[key]

    result = dict(state)
    if layout.source_rows:
        result[ENCODER_EMBEDDINGS] = rows_of(ENCODER_EMBEDDINGS, layout.source_rows, 0.0)
        for name in (DECODER_EMBEDDINGS, OUTPUT):
            result[name] = rows_of(name, layout.target_rows, 0.0)
        result[OUTPUT_BIAS] = rows_of(OUTPUT_BIAS, layout.target_rows, NEVER)
    return result | versions()


def versions() -> dict[str, Tensor]:
    """Return the version entries of fairseq's stacks."""
    return {f"{side}.version": torch.tensor([3.0]) for side in ("encoder", "decoder")}
