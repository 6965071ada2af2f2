"""Defaults of `generate` in a folder, kept for later exports."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_mtmoe.checkpoints.hugging_face import CONFIG
from fairseq_mtmoe.checkpoints.validation import Generation
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.typed import fault
from fairseq_mtmoe.translation.pretrained.families import TranslatorConfig
from fairseq_mtmoe.translation.pretrained.layout import Layout, read_values

FILE = "generation_config.json"
LONGEST = 200
_OF_TOKENS = {
    "forced_bos_token_id",
    "forced_eos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
    "bad_words_ids",
}


def read_generation(folder: Path, layout: Layout, rows: int) -> dict[str, Any]:
    """Return a folder's defaults with our token ids.

    `config.json` has the defaults if the folder has no `generation_config.json`.

    Raises `UserError`: wrong types, or ids that are not in the model.
    """
    path = folder / FILE
    if not path.exists():
        path = folder / CONFIG
    content = read_values(path)
    defaults = {}
    for name in Generation.__annotations__:
        if content.get(name) is not None:
            defaults[name] = content[name]
    if (wrong := fault(defaults, Generation)) is not None:
        raise UserError(f"`{path}` {wrong}.")
    try:
        return _renumbered(defaults, layout.target_rows or range(rows))
    except KeyError as error:
        raise UserError(
            f"`{path}` must have token ids below {rows:,}, the model's number of tokens, but has "
            f"{error} instead."
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
    ids.pop("forced_eos_token_id", None)
    return {**ids, **_renumbered(kept, target_rows)}


def _renumbered(values: Mapping[str, Any], order: Sequence[int]) -> dict[str, Any]:
    """Return the values with token ids replaced by their places in `order`.

    Raises `KeyError`: it lacks an id.
    """
    places = {number: place for place, number in enumerate(order)}

    def renumbered(value: Any) -> Any:
        if isinstance(value, list):
            return [renumbered(item) for item in value]
        return places[value]

    result = dict(values)
    for name in values.keys() & _OF_TOKENS:
        result[name] = renumbered(values[name])
    return result
