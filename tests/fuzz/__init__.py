"""New files for whatever reads files, in long runs: `make test-fuzz`."""

from __future__ import annotations

import importlib

from tests.fuzz.harness import Reader

GROUPS = ("checkpoints", "logs", "corpora", "models")


def readers_of(group: str) -> list[Reader]:
    """Those of a file here; what their commands import is imported."""
    importlib.import_module("tests.fuzz.commands").import_all()
    readers: list[Reader] = importlib.import_module(f"tests.fuzz.{group}").readers()
    return readers
