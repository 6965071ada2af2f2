"""Small raw corpora to prepare data from."""

import pytest

from fairseq_mtmoe.corpora import blocks
from tests.helpers.raw_corpora import write_raw


@pytest.fixture
def raw(tmp_path, monkeypatch):
    """Raw corpora, which are read in blocks of 20 pairs."""
    monkeypatch.setattr(blocks, "BLOCK", 20)
    write_raw(tmp_path / "raw")
    return tmp_path / "raw"
