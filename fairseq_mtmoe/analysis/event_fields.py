"""What the fields of a run log's events must be, so that whoever reads the log can rely on them.

Only the fields that the pictures use are looked at; others, and other kinds of events, may hold anything.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LARGEST_COUNT = 2**53  # a float holds every whole number up to it
LARGEST_AMOUNT = 1e30
TRAINED_AMOUNTS = ("lr", "gnorm", "wps", "ups", "wpb", "bsz", "clip", "loss_scale", "gb_free", "padding", "skipped",
                   "expert_comm_ms")  # fmt: skip
"""What the event `train` has beside losses, as far as fairseq knows it."""


@dataclass(frozen=True)
class Rule:
    """What a field must be, in words and as a test."""

    words: str
    holds: Callable[[Any], bool]
    required: bool = False


def is_count(value: Any) -> bool:
    """Whether it is a whole number from 0, not too large to be drawn; `10.0` is one."""
    return _is_number(value) and 0 <= value <= LARGEST_COUNT and value == int(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_amount(value: Any) -> bool:
    """Whether it is a number from 0, not too large to be drawn, or None for one that was not finite."""
    return value is None or (_is_number(value) and 0 <= value <= LARGEST_AMOUNT)


def _is_name(value: Any) -> bool:
    """Whether it is text without halves of characters, which JSON can spell and nobody can write."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def _is_list_of(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(holds, value))


def _is_dictionary_of(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(_is_name, value)) and all(map(holds, value.values()))


def _is_figure(value: Any) -> bool:
    """Whether it is a number of either sign, not too large to be drawn, or None for one that was not finite."""
    return value is None or (_is_number(value) and abs(value) <= LARGEST_AMOUNT)


def _has_perplexity(value: Any) -> bool:
    return isinstance(value, dict) and _is_amount(value.get("ppl")) and all(map(_is_figure, value.values()))


def is_plain(value: Any) -> bool:
    """Whether it is a value of an option: none, a truth, a number, text, or a list of such."""
    if isinstance(value, list):
        return all(is_plain(one) and not isinstance(one, list) for one in value)
    return value is None or isinstance(value, bool) or _is_name(value) or (_is_number(value) and value == value)


_COUNT = "a whole number from 0"
_AMOUNT = f"null or a number from 0 to {LARGEST_AMOUNT:g}"
_FIGURE = f"null or a number from {-LARGEST_AMOUNT:g} to {LARGEST_AMOUNT:g}"
_TEXT_OR_NONE = Rule("null or text", lambda value: value is None or _is_name(value))
_UPDATE = Rule(_COUNT, is_count, required=True)
_NAME = Rule("text", _is_name)
_SIZE = {name: Rule(_COUNT, is_count) for name in ("parameters", "multiplications")}
_NAMES = Rule("a list of names", _is_list_of(_is_name))

FIELDS: dict[str, dict[str, Rule]] = {
    "run": {
        "sizes": Rule(f"names with {_COUNT} each", _is_dictionary_of(is_count)),
        "task_ids": _NAME,
        "task_names": _NAMES,
        "tiers": Rule("names with a name each", _is_dictionary_of(_is_name)),
        "options": Rule("names with plain values", _is_dictionary_of(is_plain)),
        "versions": Rule("names with text each", _is_dictionary_of(_is_name)),
        "seed": Rule(f"null or {_COUNT}", lambda value: value is None or is_count(value)),
        **_SIZE,
        **dict.fromkeys(
            ("sampling_method", "commit", "command", "folder", "hardware", "started", "data"), _TEXT_OR_NONE
        ),
    },
    "sampling": {
        "epoch": _UPDATE,
        "temperature": Rule(_AMOUNT, _is_amount),
        "part": Rule(_COUNT, is_count),
        "updates_before": Rule(_COUNT, is_count),
        "probabilities": Rule(f"names with {_AMOUNT} each", _is_dictionary_of(_is_amount)),
        "of_candidates": Rule("true or false", lambda value: isinstance(value, bool)),
    },
    "train": {
        "update": _UPDATE,
        **{name: Rule(_AMOUNT, _is_amount) for name in ("minutes", "tokens", *TRAINED_AMOUNTS)},
        **{name: Rule(_FIGURE, _is_figure) for name in ("loss", "nll_loss")},
    },
    "valid": {
        "update": _UPDATE,
        "epoch": Rule(_COUNT, is_count),
        "minutes": Rule(_AMOUNT, _is_amount),
        "tokens": Rule(_AMOUNT, _is_amount),
        "pairs": Rule(f"names with `ppl`, {_AMOUNT}, each", _is_dictionary_of(_has_perplexity)),
        "subset": _NAME,
        "tiers": Rule(f"names with `ppl`, {_AMOUNT}, each", _is_dictionary_of(_has_perplexity)),
        "all": Rule(f"a dictionary with `ppl`, {_AMOUNT}", _has_perplexity),
        "tasks": Rule(f"names with named figures, {_FIGURE}, each", _is_dictionary_of(_is_dictionary_of(_is_figure))),
        "groups": Rule(f"names with named figures, {_FIGURE}, each", _is_dictionary_of(_is_dictionary_of(_is_figure))),
    },
    "experts": {
        "update": _UPDATE,
        "subset": _NAME,
        "task_names": _NAMES,
        "layers": Rule(
            "names with rows of whole numbers from 0 each", _is_dictionary_of(_is_list_of(_is_list_of(is_count)))
        ),
    },
    "gates": {
        "update": _UPDATE,
        "subset": _NAME,
        "layers": Rule(f"names with named figures, {_FIGURE}, each", _is_dictionary_of(_is_dictionary_of(_is_figure))),
    },
    "expert_comm": {
        "update": _UPDATE,
        "updates": Rule(_COUNT, is_count),
        "layers": Rule(f"names with named figures, {_AMOUNT}, each", _is_dictionary_of(_is_dictionary_of(_is_amount))),
    },
    "sparsified": {"update": _UPDATE, "num_experts": Rule(_COUNT, is_count), **_SIZE},
    "selection": {
        "update": _UPDATE,
        "trained": Rule(f"names with {_COUNT} each", _is_dictionary_of(is_count)),
        "relative_entropy": Rule(f"names with {_AMOUNT} each", _is_dictionary_of(_is_amount)),
        "share_of_data": Rule(_AMOUNT, _is_amount),
    },
    "sources": {
        "update": _UPDATE,
        "subset": _NAME,
        "target": _NAME,
        "sources": _NAMES,
        "layers": Rule(f"names with lists of {_AMOUNT} each", _is_dictionary_of(_is_list_of(_is_amount))),
    },
}


def what_is_wrong(event: dict[str, Any]) -> str | None:
    """Which field of an event is not what it must be, as the second half of a sentence; None if all are."""
    for name, rule in FIELDS.get(event["event"], {}).items():
        if name in event and not rule.holds(event[name]):
            return f"must have {rule.words} as `{name}`, but has {reprlib.repr(event[name])}"
        if rule.required and name not in event:
            return f"must have {rule.words} as `{name}`, but has none"
    return None
