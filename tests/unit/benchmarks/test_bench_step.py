"""The training benchmark: one pair of models that do the same, sensible batches, and all systems train."""

import itertools
import sys

import pytest
import torch

TINY = dict(width=16, inner=32, layers=2, heads=2, num_experts=4, symbols=200)


@pytest.fixture
def scripts():
    import bench_step
    import wmt15_models

    yield bench_step, wmt15_models
    for name in ("bench_step", "wmt15_models"):
        sys.modules.pop(name)


def test_batches_are_like_texts_and_always_the_same(scripts):
    _, fixtures = scripts
    task = fixtures.translation_task(fixtures.Size(**TINY))
    data = fixtures.sentences(task, 5_000)
    first, again = (list(itertools.islice(fixtures.batches(data, 512), 6)) for _ in range(2))
    for sample, other in zip(first, again, strict=True):
        source, target = sample["net_input"]["src_tokens"], sample["target"]
        assert max(source.numel(), target.numel()) <= 512
        assert source.max() < TINY["symbols"]
        assert (source[:, -1] == task.source_dictionary.eos()).all()
        assert torch.equal(source, other["net_input"]["src_tokens"]) and torch.equal(target, other["target"])
    assert len({sample["target"].shape[1] for sample in first}) > 1


def test_the_pair_is_equal_until_a_weight_is_not(scripts):
    bench, fixtures = scripts
    size = fixtures.Size(**TINY)
    task = fixtures.translation_task(size)
    (sample,) = itertools.islice(fixtures.batches(fixtures.sentences(task, 2_000), 512), 1)
    pair = fixtures.models(size, task)
    assert not pair["sparse"].is_dense
    bench.check_equal(task, pair, sample)
    with torch.no_grad():
        pair["sparse"].decoder.layers[1].moe.experts.fc2_weight.mul_(1.1)
    with pytest.raises(AssertionError):
        bench.check_equal(task, pair, sample)


def test_every_system_trains(scripts):
    bench, fixtures = scripts
    size = fixtures.Size(**TINY)
    task = fixtures.translation_task(size)
    samples = list(itertools.islice(fixtures.batches(fixtures.sentences(task, 2_000), 512), 2))
    found = bench.systems(size, task, samples, "cpu")
    classes = {name: type(system.trainer.optimizer.optimizer).__name__ for name, system in found.items()}
    assert [*classes.values()] == ["Adam", "FusedAdam", "Adam", "FusedAdam"]
    for system in found.values():
        weight = system.trainer.model.encoder.embed_tokens.weight
        before = weight.detach().clone()
        system()
        system()  # the learning rate warms up from 0
        assert not torch.equal(weight, before)
