"""Buckets in which gradients travel."""

import torch

from fairseq_mtmoe.moe.parallel import placement
from fairseq_mtmoe.moe.parallel.placement import buckets


def test_small_tensors_of_one_type_share_a_message_and_large_ones_have_their_own(monkeypatch):
    monkeypatch.setattr(placement, "BUCKET", 16)
    small, large, half = (torch.zeros(2) for _ in range(5)), torch.zeros(5), torch.zeros(3, dtype=torch.half)
    one, two, three, four, five = small
    found = buckets([one, large, two, half, three, four, five])
    assert [[id(tensor) for tensor in bucket] for bucket in found] == [
        [id(tensor) for tensor in bucket] for bucket in ([large], [one, two], [three, four], [five], [half])
    ]
    assert buckets([]) == []
