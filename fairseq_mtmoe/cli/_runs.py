"""The checkpoint of a run's folder, for commands that look at runs."""

from __future__ import annotations

from pathlib import Path

CHECKPOINTS = ("checkpoint_best.pt", "checkpoint_last.pt")


def checkpoint_of(run: Path) -> Path | None:
    """The best checkpoint of a run, or else its last one; None where it has neither, or is no folder."""
    return next((run / name for name in CHECKPOINTS if (run / name).is_file()), None)
