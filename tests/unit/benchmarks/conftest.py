"""The scripts of `benchmarks/` import each other by name."""

import logging
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture(autouse=True)
def _scripts_are_found(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture(autouse=True)
def _logging_is_as_before():
    """Commands silence fairseq's messages for good, which other tests want to read."""
    disabled = logging.root.manager.disable
    yield
    logging.disable(disabled)
