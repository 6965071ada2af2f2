"""Checks, their setting, and the rows that they return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from timing import Floor, Ratio, shown

PASSED, FAILED, MEASURED, SKIPPED = "passed", "failed", "measured", "skipped"
FLOORS_ARE_FOR = "H200"


@dataclass(frozen=True)
class Row:
    """One line of the table; `note` says why a check failed."""

    what: str
    outcome: str
    value: str = ""
    floor: str = ""
    note: str = ""


@dataclass(frozen=True)
class Setting:
    """The device, `cuda` or `cpu`, and whether sizes are for a CPU and a few seconds."""

    device: str
    toy: bool

    @property
    def turns(self) -> tuple[int, int]:
        """Repetitions that are timed, and those before them."""
        return (2, 1) if self.toy else (15, 5)

    @property
    def floors_decide(self) -> bool:
        """Whether a missed floor is a failure: at full size, on the card that floors are for."""
        return not self.toy and self.device != "cpu" and FLOORS_ARE_FOR in torch.cuda.get_device_name()


@dataclass(frozen=True)
class Check:
    """One step of a part, by its name; an exception is a failure."""

    name: str
    run: Callable[[], list[Row]]


class Skipped(Exception):
    """A check that cannot run here, and why."""


def passed(what: str, note: str = "") -> Row:
    return Row(what, PASSED, note=note)


def measured(what: str, number: float, unit: str, note: str = "") -> Row:
    return Row(what, MEASURED, f"{shown(number)} {unit}", note=note)


def figure(setting: Setting, what: str, number: float, floor: Floor, note: str = "") -> Row:
    """Return a figure with a floor, which decides only where floors do."""
    outcome = MEASURED
    if setting.floors_decide:
        outcome = PASSED if floor.met(number) else FAILED
    return Row(what, outcome, shown(number), str(floor), note)


def ratio(setting: Setting, what: str, own: Sequence[float], peer: Sequence[float], floor: Floor) -> Row:
    """Return the ratio of two systems' seconds, which has a floor."""
    found = Ratio.of(own, peer)
    return figure(setting, what, found.median, floor, f"quartiles {found.low:.3f}-{found.high:.3f}")
