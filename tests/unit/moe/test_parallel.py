"""Who holds which experts, how gradients and tokens are dealt out; more is in tests/distributed."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_mtmoe.moe.parallel import placement
from fairseq_mtmoe.moe.parallel.collectives import CommRecord
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement, buckets, place_experts, whole_models
from fairseq_mtmoe.moe.parallel.token_shuffle import parts_of


def test_bytes_count_while_it_is_enabled():
    record, rows = CommRecord(), torch.zeros(5, 3, 2, dtype=torch.float16)
    for enabled in (False, True):
        record.enabled = enabled
        for num_rows in (4, 1):
            with record.measure(num_rows, rows):
                pass
        assert record.num_bytes == enabled * 5 * 3 * 2 * 2
        assert (record.seconds > 0) == enabled
    record.reset()
    assert (record.num_bytes, record.seconds) == (0, 0.0)


def test_small_tensors_of_one_type_share_a_message_and_large_ones_have_their_own(monkeypatch):
    monkeypatch.setattr(placement, "BUCKET", 16)
    small, large, half = (torch.zeros(2) for _ in range(5)), torch.zeros(5), torch.zeros(3, dtype=torch.half)
    one, two, three, four, five = small
    found = buckets([one, large, two, half, three, four, five])
    right = [large], [one, two], [three, four], [five], [half]
    assert [list(map(id, bucket)) for bucket in found] == [list(map(id, bucket)) for bucket in right]
    assert buckets([]) == []


def placed(rank, world_size, num_experts, monkeypatch):
    """What a process that would be one of several holds; its groups are lists of their processes."""
    processes = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_world_size=lambda: world_size,
        get_rank=lambda: rank,
        new_group=lambda ranks, timeout: ranks,
        group=SimpleNamespace(WORLD=object()),
    )
    monkeypatch.setattr(placement, "dist", processes)
    return place_experts(num_experts)


@pytest.mark.parametrize(("num_experts", "world_size"), [(8, 4), (4, 4), (2, 4), (4, 6), (6, 4), (3, 4), (5, 1)])
def test_every_group_holds_every_expert_once_and_replicas_hold_the_same(num_experts, world_size, monkeypatch):
    found = [placed(rank, world_size, num_experts, monkeypatch) for rank in range(world_size)]
    held = [list(range(here.first, here.first + here.count)) for here in found]
    for rank, here in enumerate(found):
        group = here.group or [rank]
        assert rank in group and len(group) == here.group_size
        assert [expert for other in group for expert in held[other]] == list(range(num_experts))
        same = [other for other in range(world_size) if held[other] == held[rank]]
        assert (here.replicas or [rank]) == (same if here.is_sharded else [rank])
        assert here.replica == (same.index(rank) if here.is_sharded else 0)


def test_a_process_takes_its_part_of_what_is_of_all_experts_and_whole_models_hold_all(monkeypatch):
    with whole_models():
        assert placed(1, 4, 4, monkeypatch) == ExpertPlacement(4, 0, 4)
    assert placed(1, 4, 4, monkeypatch).first == 1
    here = ExpertPlacement(6, 2, 2)
    assert here.local(torch.arange(6)).tolist() == [2, 3] and here.local(torch.tensor([8, 9])).tolist() == [8, 9]


@given(st.integers(0, 50), st.integers(1, 8))
def test_tokens_are_dealt_out_evenly(num_tokens, size):
    dealt = [parts_of(num_tokens, source, size) for source in range(size)]
    for parts in dealt:
        assert len(parts) == size and sum(parts) == num_tokens and max(parts) - min(parts) <= 1
    assert [sum(parts) for parts in zip(*dealt, strict=True)] == [num_tokens] * size
