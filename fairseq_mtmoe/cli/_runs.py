"""What commands that look at runs have in common: options of names, checkpoints, and whether charts can be drawn."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from fairseq_mtmoe.errors import UserError

CHECKPOINTS = ("checkpoint_best.pt", "checkpoint_last.pt")


def checkpoint_of(run: Path) -> Path | None:
    """The best checkpoint of a run, or else its last one; None where it has neither, or is no folder."""
    return next((run / name for name in CHECKPOINTS if (run / name).is_file()), None)


def names(_context: click.Context, _option: click.Parameter, value: str | None) -> tuple[str, ...]:
    """The non-empty entries of a comma-separated option."""
    return tuple(entry.strip() for entry in (value or "").split(",") if entry.strip())


def check_drawing() -> None:
    """Raise `UserError` where Altair is not there, or what makes pictures of its charts."""
    packages = {"altair": "altair", "vl_convert": "vl-convert-python"}
    missing = [package for module, package in packages.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise UserError(f"Charts need {' and '.join(missing)}: `pip install {' '.join(missing)}` brings it.")
