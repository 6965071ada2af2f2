"""For tests of the scripts of `benchmarks/`."""

import logging

import pytest


@pytest.fixture(autouse=True)
def _logging_is_as_before():
    """Commands silence fairseq's messages for good, which other tests want to read."""
    disabled = logging.root.manager.disable
    yield
    logging.disable(disabled)
