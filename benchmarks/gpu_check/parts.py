"""The parts, in the order in which they run: the cheap ones that tell most first."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A module of this folder with a function `checks(setting)`.

    Attributes:
        minutes: after which it is ended; what it takes on an H200 is a third of that.
        needs: packages without which it is skipped.
    """

    module: str
    title: str
    minutes: float
    needs: tuple[str, ...] = ()


PARTS = {
    "reference": Part("reference", "layers against moe/reference.py", 5),
    "waits": Part("waits", "what the host waits for", 3),
    "layer": Part("layer", "one expert layer, forward and backward", 6),
    "assignment": Part("assignment", "balanced assignment", 4),
}
ALL_MINUTES = 25  # after which no part is begun, so that all of it ends in half an hour
