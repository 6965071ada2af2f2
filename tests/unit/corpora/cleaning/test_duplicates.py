"""Duplicates by their keys, compared with a set."""

import numpy as np
import pytest

from fairseq_mtmoe.corpora.cleaning import keys


@pytest.mark.parametrize("at_once", [1, 1000, 1 << 22])
def test_the_first_of_every_key_stays_however_many_are_sorted_at_a_time(at_once, monkeypatch):
    monkeypatch.setattr(keys, "KEYS_AT_ONCE", at_once)
    draws = np.random.default_rng(1).integers(0, 2**64, 2000, np.uint64)
    few = np.array([0, 2**63, 2**64 - 1, 7, 7, 7, 0], np.uint64)
    values = np.concatenate([few, draws, draws[:400], few])
    seen: set[int] = set()
    expected = [not (key in seen or seen.add(key)) for key in values.tolist()]
    assert keys.first_occurrences(values).tolist() == expected
