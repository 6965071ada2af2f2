"""Long-running fuzzing of whatever reads files: `make test-fuzz`."""

from __future__ import annotations

import importlib
from typing import Any

_GROUPS = ("checkpoints", "logs")


def all_readers() -> list[Any]:
    """Those of each file here, with what their commands import."""
    importlib.import_module("tests.fuzz.commands").import_all()
    return [reader for group in _GROUPS for reader in importlib.import_module(f"tests.fuzz.{group}").readers()]
