"""Counting who uses which expert."""

import torch

from fairseq_mtmoe.moe import ExpertLoad, MixtureWeights


def test_tokens_count_by_task_once_enabled_and_without_task_ids_for_the_first():
    load, of_one_row = ExpertLoad(3, 2), ExpertLoad(3)
    expert, task = torch.tensor([0, 2, 2, 1]), torch.tensor([0, 0, 1, 1])
    load.record(expert, task)
    assert not load.counts.any()
    load.enabled = of_one_row.enabled = True
    for task_ids in (task, None):
        load.record(expert, task_ids)
        of_one_row.record(expert, task_ids)
    assert load.counts.tolist() == [[2, 1, 3], [0, 1, 1]] and of_one_row.counts.tolist() == [[2, 2, 4]]
    load.reset()
    assert not load.counts.any()


def test_weights_are_means_over_sentences():
    seen = MixtureWeights(2)
    seen.record(torch.tensor([1.0, 0.0]))
    seen.enabled = True
    seen.record(torch.tensor([[0.5, 0.5], [0.25, 0.75], [0.0, 1.0]], requires_grad=True))
    seen.record(torch.tensor([0.75, 0.25], dtype=torch.bfloat16))
    assert torch.allclose(seen.mean(), torch.tensor([0.375, 0.625]))
    seen.reset()
    assert seen.mean().isnan().all()
