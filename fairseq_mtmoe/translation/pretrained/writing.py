"""Export a dense translator, imported or trained, to Hugging Face's folder."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_mtmoe.checkpoints import hugging_face
from fairseq_mtmoe.checkpoints.key_maps import (
    DECODER_EMBEDDINGS,
    EMBEDDINGS,
    ENCODER_EMBEDDINGS,
    OUTPUT,
    OUTPUT_BIAS,
)
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.transformer_options import FAIRSEQ, all_options
from fairseq_mtmoe.translation.data.new_language import with_codes
from fairseq_mtmoe.translation.data.vocabulary import GENERATION, Vocabulary
from fairseq_mtmoe.translation.model.key_map import (
    COUNTERS,
    SHARED,
    THEIR_BIAS,
    THEIR_PREFIX,
)
from fairseq_mtmoe.translation.pretrained.families import (
    M2M_100,
    MARIAN,
    TranslatorConfig,
    config_of_options,
)
from fairseq_mtmoe.translation.pretrained.generation import FILE, for_hugging_face
from fairseq_mtmoe.translation.pretrained.layout import NEVER
from fairseq_mtmoe.translation.pretrained.reading import TYPES, fairseq_positions, wanted_tensors
from fairseq_mtmoe.translation.pretrained.tokenizer_files import Tokenizer, tokenizer_for
from fairseq_mtmoe.translation.pretrained.tokenizers import SETTINGS

NOT_SERVED = (
    "CTranslate2 cannot serve it, because it starts the decoder with another token; train with "
    "--decoder-begins-with-pad, or with norms before sub-layers"
)
OTHER_START = (
    "CTranslate2 writes other translations: its decoder begins with zeros, but the row of <pad> "
    "is not zero"
)


@dataclass(frozen=True)
class ExportedTranslator:
    """The content of a translator's folder."""

    config: TranslatorConfig
    tokenizer: Tokenizer
    tensors: dict[str, Tensor]  # by Hugging Face's names
    generation: Mapping[str, Any]  # the values of `generation_config.json`

    @property
    def said(self) -> str:
        """Return a warning for users as the end of a sentence, or an empty text."""
        if self.config.model_type != MARIAN:
            return ""
        if self.config.decoder_start_token_id == self.tokenizer.eos_id:
            return f"; {NOT_SERVED}"
        separate = self.tensors.get(f"{THEIR_PREFIX}{DECODER_EMBEDDINGS}")
        embeddings = self.tensors.get(SHARED, separate)
        assert embeddings is not None
        return f"; {OTHER_START}" if embeddings[self.tokenizer.pad_id].any() else ""

    def write(self, folder: Path, own: Collection[str] = (), like: Path | None = None) -> None:
        """Write the folder, completely or not at all; see `write_model`.

        own: names of our parameters.
        """
        kind = json.loads(self.tokenizer.files[SETTINGS])["tokenizer_class"]
        values = {**self.config.for_hugging_face(), "tokenizer_class": kind}
        files = {**self.tokenizer.files, FILE: hugging_face.as_json(self.generation)}
        own = [f"{THEIR_PREFIX}{name}" for name in own]
        hugging_face.write_model(folder, values, files, self.tensors, own, like)


def exported_translator(
    path: Path,
    content: Mapping[str, Any],
    options: Mapping[str, Any],
    first_word: int | None = None,
) -> ExportedTranslator:
    """Return the folder's content for a dense translator's checkpoint.

    first_word: id of the language token that `generate` begins with, unless told otherwise.

    Raises `UserError`: no class computes it.
    """
    settings = content.get("task_state") or {}
    vocabulary = _vocabulary_of(path, settings)
    entries = content["model"].items()
    state = {name: value for name, value in entries if not COUNTERS.fullmatch(name)}
    full = with_codes(vocabulary, settings)
    symbols = [side.dictionary().symbols for side in (full.source, full.target)]
    sizes = tuple(len(state[name]) for name in EMBEDDINGS)
    if sizes != (full.source.size, full.target.size):
        raise UserError(
            f"`{path}` must have an embedding for each symbol, but has {sizes[0]} source and "
            f"{sizes[1]} target embeddings for {len(symbols[0])} and {len(symbols[1])} symbols."
        )
    options = {**options, **all_options(options)}
    config = config_of_options(path, options, *sizes)
    if config.model_type == M2M_100 and OUTPUT_BIAS in state:
        if state[OUTPUT_BIAS].any():
            raise UserError(
                f"`{path}` cannot be converted: `transformers` does not support its "
                "`--output-bias`."
            )
        del state[OUTPUT_BIAS]
    wanted = wanted_tensors(config.options(OUTPUT_BIAS in state), *sizes)
    hugging_face.check_tensors(path, wanted, state, types=TYPES)
    never: set[str] = set()
    if OUTPUT_BIAS in state:
        rows = (state[OUTPUT_BIAS] < NEVER / 2).nonzero().flatten()
        never.update(symbols[1][row] for row in rows.tolist())
    tokenizer = tokenizer_for(config, vocabulary, symbols, settings, never)
    config = replace(
        config,
        vocab_size=len(tokenizer.source_rows),
        decoder_vocab_size=len(tokenizer.target_rows),
        pad_token_id=tokenizer.pad_id,
        eos_token_id=tokenizer.eos_id,
        decoder_start_token_id=tokenizer.start_id,
    )
    generation = for_hugging_face(settings.get(GENERATION), config, tokenizer.target_rows)
    if first_word is not None:
        generation["forced_bos_token_id"] = tokenizer.target_rows.index(first_word)
    tensors = _tensors(state, config, tokenizer, options)
    return ExportedTranslator(config, tokenizer, tensors, generation)


def _vocabulary_of(path: Path, settings: Mapping[str, Any]) -> Vocabulary:
    """Return the vocabulary of a task's state (UserError: none, or other marks)."""
    vocabulary = Vocabulary.of_state(settings)
    if vocabulary is None:
        raise UserError(
            f"`{path}` does not contain its vocabulary, as files of `mtmoe import-hf` and "
            "checkpoints of runs on a data directory of `mtmoe prepare` do: export one of these."
        )
    if settings.get("lang_tok_replacing_bos_eos"):
        raise UserError(
            f"`{path}` cannot be converted: it was trained with `--lang-tok-replacing-bos-eos`, "
            "and tokenizers of `transformers` write language tokens in addition to end tokens."
        )
    return vocabulary


def _tensors(
    state: Mapping[str, Tensor],
    config: TranslatorConfig,
    tokenizer: Tokenizer,
    options: Mapping[str, Any],
) -> dict[str, Tensor]:
    """Return the tensors by Hugging Face's names."""
    source = _in_order(state[ENCODER_EMBEDDINGS], tokenizer.source_rows)
    apart = (*EMBEDDINGS, OUTPUT, OUTPUT_BIAS)
    tensors = {f"{THEIR_PREFIX}{name}": value for name, value in state.items() if name not in apart}
    if config.share_encoder_decoder_embeddings:
        tensors[SHARED] = source
    else:
        tensors[f"{THEIR_PREFIX}{ENCODER_EMBEDDINGS}"] = source
        tensors[f"{THEIR_PREFIX}{DECODER_EMBEDDINGS}"] = _in_order(
            state[DECODER_EMBEDDINGS], tokenizer.target_rows
        )
    if config.model_type != M2M_100:
        bias = source.new_zeros(config.decoder_vocab_size)
        if OUTPUT_BIAS in state:
            bias = _in_order(state[OUTPUT_BIAS], tokenizer.target_rows)
        tensors[THEIR_BIAS] = bias.unsqueeze(0)
    if config.model_type == MARIAN and options.get("sinusoids", FAIRSEQ) == FAIRSEQ:
        table = fairseq_positions(config.max_position_embeddings, config.d_model)
        for side in ("encoder", "decoder"):
            name = f"{THEIR_PREFIX}{side}.embed_positions.weight"
            tensors[name] = table.to(source.dtype, copy=True)
    return tensors


def _in_order(value: Tensor, rows: tuple[int, ...]) -> Tensor:
    """Return the rows in this order, or the tensor itself if it has this order."""
    return value if rows == tuple(range(len(value))) else value[torch.tensor(rows)]
