"""A part's record: a file that holds the rows of every check that has ended, so that nothing is measured twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from timing import ROOT, surroundings

from fairseq_mtmoe.io.files import write_text
from gpu_check.rows import FAILED, SKIPPED, Row, Setting, row_from

SOURCES = ("fairseq_mtmoe", "benchmarks", "tests")  # what the results depend on


class Record:
    """The checks of one part, in order: their rows and seconds, and which one is under way.

    The parent process and the one that runs the part take turns with the file; each writes it whole.
    """

    def __init__(self, path: Path, identity: dict[str, str]) -> None:
        self.path = path
        self.identity = identity
        self.surroundings: dict[str, Any] = {}
        self.checks: dict[str, dict[str, Any]] = {}
        self.under_way: str | None = None
        self.complete = False
        self.read()

    def read(self) -> None:
        """Take what the file says, unless it is of other code, another card or another version of torch."""
        data = _read(self.path)
        if data.get("identity") == self.identity:
            self.surroundings, self.checks = data["surroundings"], data["checks"]
            self.under_way, self.complete = data["under_way"], data["complete"]

    @property
    def rows(self) -> list[Row]:
        return [row_from(row) for check in self.checks.values() for row in check["rows"]]

    def begin(self, name: str) -> None:
        self.under_way = name
        self.surroundings = self.surroundings or surroundings()
        self._write()

    def end(self, name: str, rows: Sequence[Row], seconds: float) -> None:
        self.under_way = None
        self.checks[name] = {"rows": [asdict(row) for row in rows], "seconds": round(seconds, 2)}
        self._write()

    def finish(self) -> None:
        self.complete = True
        self._write()

    def forget_all(self) -> None:
        self.checks, self.under_way, self.complete, self.surroundings = {}, None, False, {}
        self._write()

    def forget_unmet(self) -> None:
        """Checks with failures, or that could not run, are to run again."""
        unmet = (FAILED, SKIPPED)
        keep = {
            name: check for name, check in self.checks.items() if all(r["outcome"] not in unmet for r in check["rows"])
        }
        self.complete = self.complete and len(keep) == len(self.checks)
        self.checks, self.under_way = keep, None
        self._write()

    def _write(self) -> None:
        data = {
            "identity": self.identity, "surroundings": self.surroundings, "under_way": self.under_way,
            "complete": self.complete, "checks": self.checks,
        }  # fmt: skip
        write_text(self.path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none, or one that was damaged: all is run again
        return {}
    return data if isinstance(data, dict) else {}


def identity_of(setting: Setting) -> dict[str, str]:
    """What results depend on: with another one they do not count."""
    import torch

    card = torch.cuda.get_device_name() if setting.device != "cpu" else "cpu"
    return {"source": _digest(), "card": card, "torch": torch.__version__, "sizes": "toy" if setting.toy else "full"}


def _digest() -> str:
    found = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            found.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return found.hexdigest()[:16]
