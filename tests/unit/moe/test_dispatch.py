"""Grouping tokens and bringing them back."""

import pytest
import torch

from fairseq_mtmoe.moe import combine, dispatch


def tokens(number, width=3):
    return torch.arange(1.0, number * width + 1).view(number, width)


def test_balanced_tokens_become_one_tensor_with_one_empty_row_at_most():
    x = tokens(5)
    grouped, plan = dispatch(x, torch.tensor([2, 0, 1, 0, 2]), 3)
    assert grouped.shape == (3, 2, 3)
    assert plan.counts == (2, 1, 2)
    assert plan.capacity == 2
    assert torch.equal(grouped[0], x[[1, 3]])
    assert torch.equal(grouped[1, 0], x[2])
    assert torch.equal(grouped[1, 1], torch.zeros(3))
    assert torch.equal(grouped[2], x[[0, 4]])


@pytest.mark.parametrize("expert", [[2, 0, 2, 0, 2], [1, 1, 1], [2], [0, 2]])
def test_unbalanced_tokens_are_sorted(expert):
    expert = torch.tensor(expert)
    x = tokens(len(expert))
    grouped, plan = dispatch(x, expert, 3)
    assert plan.capacity is None
    assert torch.equal(grouped, x[expert.argsort(stable=True)])
    assert plan.counts == tuple(torch.bincount(expert, minlength=3).tolist())


def test_no_tokens():
    grouped, plan = dispatch(tokens(0), torch.zeros(0, dtype=torch.long), 4)
    assert grouped.shape == (4, 0, 3)
    assert combine(grouped, plan).shape == (0, 3)


@pytest.mark.parametrize("expert", [[0, 1, 2, 0, 1], [1, 1, 0, 1, 2], [0, 0, 0, 0, 0], [3, 2, 1, 0, 2]])
def test_combine_undoes_dispatch_and_so_do_their_gradients(expert):
    x = tokens(5).requires_grad_()
    grouped, plan = dispatch(x, torch.tensor(expert), 4)
    back = combine(2 * grouped, plan)
    assert torch.equal(back, 2 * x)
    weight = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    (back * weight).sum().backward()
    assert torch.equal(x.grad, 2 * weight)


def test_an_expert_out_of_range_is_our_own_mistake():
    with pytest.raises(AssertionError):
        dispatch(tokens(2), torch.tensor([0, 5]), 3)
