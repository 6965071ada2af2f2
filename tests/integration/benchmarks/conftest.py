"""For tests of the scripts of `benchmarks/`."""

import importlib
import logging

import pytest


@pytest.fixture(autouse=True)
def _logging_is_as_before():
    """Commands silence fairseq's messages for good, which other tests want to read."""
    disabled = logging.root.manager.disable
    yield
    logging.disable(disabled)


@pytest.fixture
def bench(request, monkeypatch, tmp_path):
    """The script that the test's module names as `SCRIPT`, imported when it is used; results go to `tmp_path`."""
    monkeypatch.setattr("measure.RESULTS", tmp_path)
    return importlib.import_module(request.module.SCRIPT)
