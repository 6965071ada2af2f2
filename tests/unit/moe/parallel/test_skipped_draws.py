"""Numbers that are not drawn leave the generator as if they had been."""

import pytest
import torch
from torch import nn

from fairseq_mtmoe.moe import ExpertBank
from fairseq_mtmoe.moe.parallel import skipped_draws
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement
from fairseq_mtmoe.moe.parallel.skipped_draws import WORDS, jumps_right, skip_uniform


def generators(before):
    """Two of the same state, after so many numbers."""
    made = [torch.Generator("cpu").manual_seed(3) for _ in range(2)]
    for generator in made:
        torch.empty(before).uniform_(generator=generator)
    return made


@pytest.fixture
def always_jumps(monkeypatch):
    monkeypatch.setattr(skipped_draws, "FEW", 1)


def test_torchs_generator_is_the_one_that_is_meant():
    assert jumps_right()


@pytest.mark.parametrize("before", [0, 1, WORDS - 1, WORDS, WORDS + 1])
@pytest.mark.parametrize("count", [0, 1, WORDS - 1, WORDS, 2 * WORDS, 100_000])
@pytest.mark.usefixtures("always_jumps")
def test_the_state_is_that_after_drawing(before, count):
    drawn, skipped = generators(before)
    torch.empty(count).uniform_(-0.1, 0.1, generator=drawn)
    skip_uniform(count, skipped)
    assert torch.equal(drawn.get_state(), skipped.get_state())


def test_long_ways_are_the_sum_of_their_parts():
    one, other = generators(5)
    skip_uniform(10**10, one)
    for _ in range(4):
        skip_uniform(10**10 // 4, other)
    assert torch.equal(one.get_state(), other.get_state())


def test_a_generator_that_is_another_is_drawn_from(monkeypatch, always_jumps):
    monkeypatch.setattr(skipped_draws, "_jump", lambda count, generator: generator.manual_seed(count))
    jumps_right.cache_clear()
    drawn, skipped = generators(7)
    skip_uniform(200_000, skipped)
    assert not jumps_right()
    jumps_right.cache_clear()
    torch.empty(200_000).uniform_(generator=drawn)
    assert torch.equal(drawn.get_state(), skipped.get_state())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.usefixtures("always_jumps")
def test_experts_start_the_same_wherever_they_are(dtype):
    torch.set_default_dtype(dtype)
    try:
        torch.manual_seed(0)
        whole, after = ExpertBank(5, 16, 24), nn.Linear(3, 3)
        for first, count in ((0, 2), (2, 1), (3, 2)):
            torch.manual_seed(0)
            part = ExpertBank(5, 16, 24, placement=ExpertPlacement(5, first, count))
            for mine, all_ in zip(part.parameters(), whole.parameters(), strict=True):
                assert torch.equal(mine, all_[first : first + count])
            assert torch.equal(nn.Linear(3, 3).weight, after.weight)  # what is drawn next
        torch.manual_seed(0)
        ExpertBank(5, 16, 24, draws=False)
        assert torch.equal(nn.Linear(3, 3).weight, after.weight)
    finally:
        torch.set_default_dtype(torch.float32)
