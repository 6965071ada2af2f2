"""Conditional attention where tokens are not where they stand in their sentences, and where they come one by one."""

import torch

from fairseq_mtmoe.conditioning import ConditionalAttentionBias, TaskEmbeddings, reference
from tests.helpers.models import perturb

K, D, LENGTH = 3, 5, 11
TASK_IDS = torch.tensor([2, 0, 2, 1])


def trained_bias():
    """A module of positions 9 in blocks of 4, 4 and 1, and a table."""
    torch.manual_seed(1)
    table, module = TaskEmbeddings(K, D), ConditionalAttentionBias(D, 9, 4)
    perturb(table, 0.5)
    perturb(module)
    return table, module


def test_sentences_that_are_padded_on_the_left_have_the_bias_of_their_own_places():
    table, module = trained_bias()
    padding_B = torch.tensor([0, 3, 10, 5])
    place_BL = (torch.arange(LENGTH) - padding_B.unsqueeze(1)).clamp(min=0)
    found = module(table(), TASK_IDS, LENGTH, place_BL)
    assert found.shape == (4, 1, LENGTH, LENGTH)
    total, right = 0.0, 0.0
    for bias_LL, task, padding in zip(found[:, 0], TASK_IDS.tolist(), padding_B.tolist(), strict=True):
        slow_LL = reference.attention_bias(module, table(), task, LENGTH - padding)
        torch.testing.assert_close(bias_LL[padding:, padding:], slow_LL)
        weights = torch.linspace(-1, 2, slow_LL.numel()).view_as(slow_LL)
        total, right = total + (bias_LL[padding:, padding:] * weights).sum(), right + (slow_LL * weights).sum()
    parameters = [*table.parameters(), *module.parameters()]
    for one, other in zip(*(torch.autograd.grad(value, parameters) for value in (total, right)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_a_row_is_that_of_all():
    table, module = trained_bias()
    tasks, all_KLL = table(), module.of_tasks(table(), 20)
    for place in range(20):
        torch.testing.assert_close(module.row_of_tasks(tasks, place), all_KLL[:, place, : place + 1])
