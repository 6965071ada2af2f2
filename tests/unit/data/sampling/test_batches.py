"""Batches are fairseq's, with nothing dropped."""

import numpy as np
import pytest
from fairseq.data import data_utils
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_mtmoe.data.sampling import Runs, batch_ends
from fairseq_mtmoe.errors import UserError


def runs_of(rows):
    *lengths, count = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return Runs(np.array(lengths), count)


def fairseq_ends(runs, max_tokens, max_sentences, multiple):
    tokens = np.repeat(runs.lengths.max(axis=0), runs.count)
    if not len(tokens):
        return []
    indices = np.arange(len(tokens))
    batches = data_utils.batch_by_size(indices, None, tokens, max_tokens, max_sentences, multiple)
    ends = np.cumsum([len(batch) for batch in batches]).tolist()
    return ends if ends and ends[-1] == len(tokens) else [*ends, len(tokens)]


LENGTH = st.integers(1, 12)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(LENGTH, LENGTH, st.integers(1, 60)), max_size=12),
    st.booleans(),
    st.one_of(st.none(), st.integers(12, 200)),
    st.one_of(st.none(), st.integers(1, 30)),
    st.sampled_from([1, 2, 3, 8]),
)
def test_the_batches_are_fairseqs(rows, ordered, max_tokens, max_sentences, multiple):
    runs = runs_of(sorted(rows) if ordered else rows)
    expected = fairseq_ends(runs, max_tokens, max_sentences, multiple)
    assert batch_ends(runs, max_tokens, max_sentences, multiple).tolist() == expected


@pytest.mark.parametrize("lengths", [[[2, 4]], [[2, 3], [2, 4]], [[1, 1], [2, 2], [1, 4]]])
def test_the_longest_of_any_number_of_sides_counts(lengths):
    assert batch_ends(Runs(np.array(lengths), np.array([5, 5])), max_tokens=8).tolist() == [4, 6, 8, 10]


def test_sentences_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="must be at least 9, the length of the longest example, but is 8"):
        batch_ends(runs_of([(3, 4, 1), (2, 9, 1)]), 8)


def test_the_cost_does_not_depend_on_the_number_of_sentences():
    ends = batch_ends(runs_of([(3, 3, 10**12), (2, 4, 10**12)]), None, 10**11)
    assert len(ends) == 20 and ends[-1] == 2 * 10**12
