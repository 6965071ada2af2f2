"""The scripts of `benchmarks/` import each other by name."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture(autouse=True)
def _scripts_are_found(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
