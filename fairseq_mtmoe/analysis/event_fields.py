"""What the fields of a run log's events must be, so that whoever reads the log can rely on them.

Only the fields that the pictures use are looked at; others, and other kinds of events, may hold anything.
"""

from __future__ import annotations

from typing import Annotated, Any, Required

from fairseq_mtmoe.io.typed import Rule, Text, fault

LARGEST_COUNT = 2**53  # a float holds every whole number up to it
LARGEST_AMOUNT = 1e30
TRAINED_AMOUNTS = ("lr", "gnorm", "wps", "ups", "wpb", "bsz", "clip", "loss_scale", "gb_free", "padding", "skipped",
                   "expert_comm_ms")  # fmt: skip
"""What the event `train` has beside losses, as far as fairseq knows it."""


def is_count(value: Any) -> bool:
    """Whether it is a whole number from 0, not too large to be drawn; `10.0` is one."""
    return _is_number(value) and 0 <= value <= LARGEST_COUNT and value == int(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_plain(value: Any) -> bool:
    """Whether it is a value of an option: none, a truth, a number, text, or a list of such."""
    if isinstance(value, list):
        return all(is_plain(one) and not isinstance(one, list) for one in value)
    return value is None or isinstance(value, bool) or (fault(value, Text | float) is None and value == value)


_AMOUNT = f"null or a number from 0 to {LARGEST_AMOUNT:g}"
Count = Annotated[float, Rule("a whole number from 0", is_count)]
Amount = Annotated[float | None, Rule(_AMOUNT, lambda value: value is None or 0 <= value <= LARGEST_AMOUNT)]
Figure = Annotated[
    float | None,
    Rule(
        _AMOUNT.replace("0 to", f"{-LARGEST_AMOUNT:g} to"), lambda value: value is None or abs(value) <= LARGEST_AMOUNT
    ),
]
Plain = Annotated[Any, Rule("a plain value", is_plain)]
Figures = dict[Text, Figure]
_SIZE = {"parameters": Count, "multiplications": Count}


Perplexity = Annotated[Figures, Rule(f"`ppl`, {_AMOUNT},", lambda value: fault(value.get("ppl"), Amount) is None)]

FIELDS: dict[str, dict[str, Any]] = {
    "run": {
        "sizes": dict[Text, Count], "task_ids": Text, "task_names": list[Text], "tiers": dict[Text, Text],
        "options": dict[Text, Plain], "versions": dict[Text, Text], "seed": Count | None,
        **_SIZE,
        **dict.fromkeys(
            ("sampling_method", "commit", "command", "folder", "hardware", "started", "data"), Text | None
        ),
    },
    "sampling": {
        "epoch": Required[Count], "temperature": Amount, "part": Count, "updates_before": Count,
        "probabilities": dict[Text, Amount], "of_candidates": bool,
    },
    "train": {
        "update": Required[Count], "loss": Figure, "nll_loss": Figure,
        **dict.fromkeys(("minutes", "tokens", *TRAINED_AMOUNTS), Amount),
    },
    "valid": {
        "update": Required[Count], "epoch": Count, "minutes": Amount, "tokens": Amount, "subset": Text,
        "pairs": dict[Text, Perplexity], "tiers": dict[Text, Perplexity], "all": Perplexity,
        "tasks": dict[Text, Figures], "groups": dict[Text, Figures],
    },
    "experts": {
        "update": Required[Count], "subset": Text, "task_names": list[Text], "layers": dict[Text, list[list[Count]]],
    },
    "gates": {"update": Required[Count], "subset": Text, "layers": dict[Text, Figures]},
    "expert_comm": {"update": Required[Count], "updates": Count, "layers": dict[Text, dict[Text, Amount]]},
    "sparsified": {"update": Required[Count], "num_experts": Count, **_SIZE},
    "selection": {
        "update": Required[Count], "trained": dict[Text, Count], "relative_entropy": dict[Text, Amount],
        "share_of_data": Amount,
    },
    "sources": {
        "update": Required[Count], "subset": Text, "target": Text, "sources": list[Text],
        "layers": dict[Text, list[Amount]],
    },
}  # fmt: skip


def what_is_wrong(event: dict[str, Any]) -> str | None:
    """Which field of an event is not what it must be, as the second half of a sentence; None if all are."""
    found = fault(event, FIELDS.get(event["event"], Any))
    return None if found is None else str(found)
