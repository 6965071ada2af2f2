"""How tokens are dealt out for balanced assignment; what processes then do together is in tests/distributed."""

from hypothesis import given
from hypothesis import strategies as st

from fairseq_mtmoe.moe.parallel.token_shuffle import parts_of


@given(st.integers(0, 50), st.integers(1, 8))
def test_each_token_goes_to_one_process_and_the_parts_are_equal_but_for_one(num_tokens, size):
    for source in range(size):
        parts = parts_of(num_tokens, source, size)
        assert len(parts) == size and sum(parts) == num_tokens
        assert max(parts) - min(parts) <= 1


@given(st.integers(0, 50), st.integers(1, 8))
def test_as_many_tokens_in_each_process_are_dealt_out_evenly(num_tokens, size):
    dealt = [parts_of(num_tokens, source, size) for source in range(size)]
    assert [sum(parts) for parts in zip(*dealt, strict=True)] == [num_tokens] * size
