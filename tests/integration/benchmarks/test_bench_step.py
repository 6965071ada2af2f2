"""The training benchmark: one pair of models that do the same, and all systems train."""

import itertools

import pytest
import torch

SCRIPT = "bench_step"
TINY = dict(width=16, inner=32, layers=2, heads=2, num_experts=4, symbols=200)


@pytest.fixture
def made(bench):
    """The task and batches of real lengths."""
    size = bench.Size(**TINY)
    task = bench.translation_task(size)
    return size, task, list(itertools.islice(bench.batches(bench.sentences(task, 5_000), 512), 6))


def test_the_pair_is_equal_until_a_weight_is_not(bench, made):
    size, task, (sample, *_) = made
    pair = bench.models(size, task)
    assert not pair["sparse"].is_dense
    bench.check_equal(task, pair, sample)
    with torch.no_grad():
        pair["sparse"].decoder.layers[1].moe.experts.fc2_weight.mul_(1.1)
    with pytest.raises(AssertionError):
        bench.check_equal(task, pair, sample)


@pytest.mark.scheduled
def test_every_system_trains(bench, made):
    size, task, samples = made
    found = bench.systems(size, task, samples[:2])
    classes = [type(system.trainer.optimizer.optimizer).__name__ for system in found.values()]
    assert classes == ["Adam", "FusedAdam", "Adam", "FusedAdam"]
    for system in found.values():
        weight = system.trainer.model.encoder.embed_tokens.weight
        before = weight.detach().clone()
        system()
        system()  # the learning rate warms up from 0
        assert not torch.equal(weight, before)
