"""What goes into the page of the facts: as text that can be looked at, in few bytes, and as nothing but data."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fairseq_mtmoe.analysis.page.room import every, step_of_experts, thin_curves, thin_texts
from fairseq_mtmoe.io.pages import visible

DIGITS = 6
"""Of every number on the page."""

NOTHING = 65_535
"""Stands for a share where no token was counted."""

_WHOLE = 10_000  # of a packed share: shares have four digits
_SPELLED = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def data_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts as the page has them: every text visible, every number finite and short, experts packed."""
    runs = [dict(run) for run in facts["runs"]]
    left_out = thin_texts(runs)
    thin_curves(runs)
    step = step_of_experts(runs)
    for run in runs:
        run["experts"] = pack_experts(run["experts"], step)
    return {**_shown({**facts, "runs": runs}), "texts_left_out": left_out}


def as_script(data: Mapping[str, Any]) -> str:
    """JSON that a `<script>` element may hold: no sign in it can end the element or a line of a program."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_SPELLED)


def pack_experts(experts: Mapping[str, Any], step: int = 1) -> dict[str, Any]:
    """`shares` as `packed`: in base64 two bytes each (little-endian, in 1/10,000), by update, layer, task and expert.

    Args:
        experts: as `run_facts.fields.Experts`.
        step: each step-th moment is kept, the first and the last always.
    """
    kept = every(len(experts["updates"]), step)
    packed: list[int] = []
    for number in kept:
        for layer, tasks in zip(experts["layers"], experts["shares"][number], strict=True):
            for shares in tasks:
                packed.extend([round(_WHOLE * share) for share in shares] or [NOTHING] * experts["num_experts"][layer])
    return {
        **{name: value for name, value in experts.items() if name != "shares"},
        "updates": [experts["updates"][number] for number in kept],
        "packed": base64.b64encode(np.array(packed, "<u2").tobytes()).decode(),
        "thinned": bool(experts.get("thinned")) or len(kept) < len(experts["updates"]),
    }


def _shown(value: Any) -> Any:
    """A value of JSON with texts (and names) spelled visibly and numbers short; what is not finite is None."""
    match value:
        case str():
            return visible(value)
        case bool() | None:
            return value
        case float():
            return _short(value)
        case Mapping():
            return {visible(name): _shown(one) for name, one in value.items()}
        case list() | tuple():
            return [_shown(one) for one in value]
    return value


def _short(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 2**53 else short
