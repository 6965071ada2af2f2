"""What a check is, what it is told, and what it finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timing import Floor, shown

PASSED, FAILED, MEASURED, SKIPPED = OUTCOMES = ("passed", "failed", "measured", "skipped")
FLOORS_ARE_FOR = "H200"


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        what: was checked or measured.
        outcome: one of `OUTCOMES`.
        value: with its unit, as it is to be shown.
        floor: what the value has to reach, if there is one.
        note: why it failed or was skipped; what else there is to know.
        number: the value for the JSON.
    """

    what: str
    outcome: str
    value: str = ""
    floor: str = ""
    note: str = ""
    number: float | None = None


@dataclass(frozen=True)
class Setting:
    """Where and how large.

    Attributes:
        device: torch's name, `cuda` or `cpu`.
        toy: sizes for a CPU and a few seconds.
        folder: for what a part writes; absolute.
    """

    device: str
    toy: bool
    folder: Path

    @property
    def floors_decide(self) -> bool:
        """Whether a figure that misses its floor is a failure: at full size, on the card that floors are for."""
        import torch

        return not self.toy and self.device != "cpu" and FLOORS_ARE_FOR in torch.cuda.get_device_name()


@dataclass(frozen=True)
class Check:
    """One step of a part, by a name that is unique in it; an exception is a failure, `Skipped` aside."""

    name: str
    run: Callable[[], list[Row]]


class Skipped(Exception):
    """A check that cannot run here; the message says why: "skipped, because …"."""


def passed(what: str, note: str = "") -> Row:
    return Row(what, PASSED, note=note)


def measured(what: str, number: float, unit: str = "", note: str = "") -> Row:
    return Row(what, MEASURED, f"{shown(float(number))} {unit}".strip(), note=note, number=float(number))


def figure(setting: Setting, what: str, number: float, floor: Floor, note: str = "") -> Row:
    """A number beside its floor, which decides where it can."""
    outcome = MEASURED if not setting.floors_decide else PASSED if floor.met(number) else FAILED
    return Row(what, outcome, shown(float(number)), str(floor), note, float(number))


def row_from(data: dict[str, Any]) -> Row:
    return Row(**data)
