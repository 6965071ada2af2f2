"""The model that a run starts from: `--init-model`.

It is a file of `mtmoe import-hf` or a dense checkpoint. It determines the new model's sizes, its
languages and their tokens, and the vocabulary of the data.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from omegaconf import open_dict
from torch import Tensor

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.key_maps import EMBEDDINGS, MOE
from fairseq_mtmoe.checkpoints.rebuild import check_sizes, model_options, plain
from fairseq_mtmoe.core.errors import UserError, flag, raise_invalid
from fairseq_mtmoe.core.transformer_options import TranslatorForm
from fairseq_mtmoe.core.typed import fault
from fairseq_mtmoe.translation.data.new_language import with_codes
from fairseq_mtmoe.translation.data.vocabulary import NUM_SPECIAL, Vocabulary
from fairseq_mtmoe.translation.task import options

logger = logging.getLogger(__name__)

# Options, by fairseq's names, that the weights determine; the run's options determine all else.
_STACK = (
    "embed_dim",
    "ffn_embed_dim",
    "layers",
    "attention_heads",
    "normalize_before",
    "learned_pos",
)
LIMITS = ("max_source_positions", "max_target_positions")
_SIZES_OF_STACKS = [f"{side}_{name}" for side in ("encoder", "decoder") for name in _STACK]
SIZES = (
    *_SIZES_OF_STACKS,
    "decoder_input_dim",
    "decoder_output_dim",
    "activation_fn",
    "layernorm_embedding",
    "no_scale_embedding",
    "share_all_embeddings",
    "share_decoder_input_output_embed",
    "no_token_positional_embeddings",
    "no_decoder_final_norm",
    *LIMITS,
    *(field.name for field in fields(TranslatorForm)),
)


@dataclass(frozen=True)
class InitialModel:
    """A dense translator that a run starts from."""

    path: str
    sizes: Mapping[str, Any]
    settings: Mapping[str, Any]  # its task's state
    weights: Mapping[str, Tensor]  # memory-mapped: read on first use

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The vocabulary with a symbol for each row of the embeddings, if it is known."""
        vocabulary = Vocabulary.of_state(self.settings)
        return None if vocabulary is None else with_codes(vocabulary, self.settings)

    @property
    def forms(self) -> dict[str, Any]:
        """The task options that the model determines: languages and language tokens."""
        return {name: self.settings[name] for name in options.FORMS if name in self.settings}

    def check(self, source: Any, target: Any, data: str) -> None:
        """Check a data directory's dictionaries, with their language tokens (UserError)."""
        vocabulary = self.vocabulary
        sides = {"source": source, "target": target}
        for (side, dictionary), name in zip(sides.items(), EMBEDDINGS, strict=True):
            is_same = len(dictionary) == len(self.weights[name])
            if vocabulary is not None:
                symbols = tuple(dictionary.symbols[NUM_SPECIAL:])
                is_same &= symbols == getattr(vocabulary, side).symbols
            if not is_same:
                raise UserError(
                    f"`{data}` must be a data directory with the vocabulary of `{self.path}`, but "
                    f"has another; `mtmoe prepare … --vocabulary-of {self.path}` makes one."
                )

    def note_sizes(self, cfg: Any) -> None:
        """Set this model's sizes in a new model's options."""
        changed = {
            name: value
            for name, value in self.sizes.items()
            if name in cfg and cfg.get(name) != value
        }
        if changed:
            shown = ", ".join(f"{name} = {value}" for name, value in changed.items())
            logger.info(f"from {self.path}: {shown}")
        with open_dict(cfg):
            cfg.update(changed)


def expect_sizes(path: str, user_options: Mapping[str, Any]) -> None:
    """Compare a user's options with the model in a file (UserError: other sizes)."""
    sizes = _model_options(file_io.peek(path) or {})
    for name in SIZES:
        if name not in sizes or name not in user_options:
            continue
        size = sizes[name]
        value = user_options[name]
        # Shorter sentences fit, too.
        is_limit = name in LIMITS and isinstance(size, int) and value <= size
        if str(value) != str(size) and not is_limit:
            raise UserError(
                f"`{flag(name)}` must be {size}, as in the model of `--init-model`, or be left "
                f"out, but is {value}."
            )


def load(path: str) -> InitialModel:
    """Return the model in a file (UserError: no dense translator)."""
    state = file_io.load(path, mapped=True, remedy="write it anew")
    sizes = _model_options(state)
    weights = state.get("model") or {}
    if not weights.keys() >= {*EMBEDDINGS} or not sizes:
        raise UserError(
            "`--init-model` must be a translator, in a file of `mtmoe import-hf` or a dense "
            f"checkpoint, but `{path}` contains another model."
        )
    if any(MOE in name for name in weights):
        raise UserError(
            f"`--init-model` must be a dense model, but `{path}` has experts; use "
            "`--finetune-from-model` for it."
        )
    model_sizes = {name: sizes[name] for name in SIZES if name in sizes}
    check_sizes(path, list(model_sizes.items()), weights)
    settings = {**_stock_forms(state), **(state.get("task_state") or {})}
    return InitialModel(path, model_sizes, settings, weights)


def check_places(
    path: str, state: Mapping[str, Any], langs: Sequence[str], tasks: Sequence[str], goes_on: bool
) -> None:
    """Check that languages and tasks have their places of a checkpoint.

    A place is a token, a gate or an expert.

    A run that `goes_on` is refused (UserError); one that starts from the weights alone is warned.
    """
    model = _model_options(state)
    saved = (state.get("task_state") or {}).get("langs") or []
    names = (model.get("task_names") or "").split(",")
    orders = (("--langs", saved, langs), ("the tasks of --task-ids", names, tasks))
    for option, before, now in orders:
        # Tables of another length do not fit, and loading says so. Only fixed experts may be more
        # than the tasks.
        if not any(before):
            continue
        if len(before) != len(now) and "fixed" not in (model.get("expert_gates") or ""):
            continue
        for name_before, name in zip(before, now, strict=False):
            if name == name_before:
                continue
            if goes_on:
                rule = f"{','.join(before)} in this order, to continue from `{path}`"
                raise_invalid(option, rule, ",".join(now))
            logger.warning(
                f"{name} begins with the weights of {name_before}, since {path} has "
                f"{','.join(before)} in this order, and the run has {','.join(now)}"
            )
            break


def _model_options(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint's model options; fairseq 0.9 and 0.10 keep them in `args`."""
    return model_options(state) or plain(state.get("args"))


def _stock_forms(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return `FORMS` from the options that stock fairseq's multilingual task saves."""
    task = plain((state.get("cfg") or {}).get("task")) or plain(state.get("args"))
    if fault(task.get("langs"), list[str]) is not None:
        return {}
    return {name: task[name] for name in options.FORMS if task.get(name) is not None}
