"""Defaults of `generate` in a folder, kept for later exports."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_mtmoe.checkpoints.hugging_face import CONFIG
from fairseq_mtmoe.checkpoints.validation import Generation
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import read_json
from fairseq_mtmoe.core.typed import fault
from fairseq_mtmoe.translation.pretrained.families import TranslatorConfig
from fairseq_mtmoe.translation.pretrained.layout import Layout

FILE = "generation_config.json"
LONGEST = 200
_OF_TOKENS = (
    "forced_bos_token_id",
    "forced_eos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
    "bad_words_ids",
)


def read_generation(folder: Path, layout: Layout, rows: int) -> dict[str, Any]:
    """Return a folder's defaults with our token ids.

    `config.json` has the defaults if the folder has no `generation_config.json`.

    Raises `UserError`: wrong types, or ids that are not in the model.
    """
    path = folder / FILE if (folder / FILE).exists() else folder / CONFIG
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"`{path}` must hold a dictionary, but holds something else.")
    names = Generation.__annotations__
    defaults = {name: content[name] for name in names if content.get(name) is not None}
    if (wrong := fault(defaults, Generation)) is not None:
        raise UserError(f"`{path}` {wrong}.")
    target_rows = layout.target_rows or range(rows)
    ids = {row: index for index, row in enumerate(target_rows) if row is not None}
    try:
        return _renumbered(defaults, ids)
    except KeyError as error:
        raise UserError(
            f"`{path}` must have ids of the model's {rows:,} tokens, but has {error} instead."
        ) from error


def for_hugging_face(
    kept: Mapping[str, Any] | None, config: TranslatorConfig, target_rows: tuple[int, ...]
) -> dict[str, Any]:
    """Return the values of a `generation_config.json`: kept ones, or a beam of 5."""
    values = config.for_hugging_face()
    ids = {name: value for name, value in values.items() if name.endswith("token_id")}
    if kept is None:
        longest = min(LONGEST, config.max_position_embeddings)
        return {
            **ids,
            "bad_words_ids": [[config.pad_token_id]],
            "num_beams": 5,
            "max_length": longest,
        }
    model_ids = {name: value for name, value in ids.items() if name not in _OF_TOKENS}
    defaults = {name: kept[name] for name in Generation.__annotations__ if name in kept}
    their_ids = {index: row for row, index in enumerate(target_rows)}
    return {**model_ids, **_renumbered(defaults, their_ids)}


def _renumbered(values: Mapping[str, Any], ids: Mapping[int, int]) -> dict[str, Any]:
    """Return the values with token ids mapped by `ids` (KeyError: an id is missing)."""

    def renumbered(value: Any) -> Any:
        if isinstance(value, list):
            return [renumbered(item) for item in value]
        return ids[value]

    result = dict(values)
    for name, value in values.items():
        if name in _OF_TOKENS:
            result[name] = renumbered(value)
    return result
