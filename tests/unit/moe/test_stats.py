"""Counting who uses which expert."""

import torch

from fairseq_mtmoe.moe import ExpertLoad, MixtureWeights


def test_it_counts_by_task_once_enabled():
    load = ExpertLoad(3, 2)
    expert, task = torch.tensor([0, 2, 2, 1]), torch.tensor([0, 0, 1, 1])
    load.record(expert, task)
    assert not load.counts.any()
    load.enabled = True
    load.record(expert, task)
    load.record(expert[:2], task[:2])
    assert load.counts.tolist() == [[2, 0, 2], [0, 1, 1]]
    load.reset()
    assert not load.counts.any()


def test_without_tasks_there_is_one_row_and_tokens_without_task_ids_count_for_the_first():
    load, of_tasks = ExpertLoad(2), ExpertLoad(2, 2)
    load.enabled = of_tasks.enabled = True
    load.record(torch.tensor([1, 1]), torch.tensor([5, 7]))
    load.record(torch.tensor([0]), None)
    of_tasks.record(torch.tensor([1, 0]), None)
    assert load.counts.tolist() == [[1, 2]] and of_tasks.counts.tolist() == [[1, 1], [0, 0]]


def test_weights_are_means_over_sentences():
    seen = MixtureWeights(2)
    seen.record(torch.tensor([1.0, 0.0]))
    seen.enabled = True
    seen.record(torch.tensor([[0.5, 0.5], [0.25, 0.75], [0.0, 1.0]], requires_grad=True))
    seen.record(torch.tensor([0.75, 0.25], dtype=torch.bfloat16))
    assert torch.allclose(seen.mean(), torch.tensor([0.375, 0.625]))
    seen.reset()
    assert seen.mean().isnan().all()
