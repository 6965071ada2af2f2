"""Sorting tokens by expert and bringing them back."""

import pytest
import torch

from fairseq_mtmoe.moe import LocalDispatcher, combine, dispatch


def tokens(number, width=3):
    return torch.arange(1.0, number * width + 1).view(number, width)


@pytest.mark.parametrize("expert", [[2, 0, 1, 0, 2], [2, 0, 2, 0, 2], [1, 1, 1], [2], [0, 3, 2, 3]])
def test_tokens_are_sorted_and_keep_their_order(expert):
    expert = torch.tensor(expert)
    x = tokens(len(expert))
    rows, plan = dispatch(x, expert, 3)
    assert torch.equal(rows, x[expert.argsort(stable=True)])
    assert plan.offsets_N.tolist() == torch.bincount(expert, minlength=4)[:3].cumsum(0).tolist()


def test_no_tokens():
    rows, plan = dispatch(tokens(0), torch.zeros(0, dtype=torch.long), 4)
    assert rows.shape == (0, 3)
    assert plan.offsets_N.tolist() == [0, 0, 0, 0]
    assert combine(rows, plan).shape == (0, 3)


@pytest.mark.parametrize("expert", [[0, 1, 2, 0, 1], [1, 1, 0, 1, 2], [0, 0, 0, 0, 0], [3, 2, 1, 0, 4]])
def test_combine_undoes_dispatch_and_so_do_their_gradients(expert):
    x = tokens(5).requires_grad_()
    rows, plan = dispatch(x, torch.tensor(expert), 4)
    factor = torch.arange(1.0, 6).unsqueeze(1)
    back = combine(rows * factor, plan)
    own = factor[plan.row_T]
    assert torch.equal(back, own * x)
    weight = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    (back * weight).sum().backward()
    assert torch.equal(x.grad, own * weight)


def test_the_local_dispatcher_is_both_functions_and_tells_the_experts_what_they_need():
    x, expert, scale = torch.randn(5, 3), torch.tensor([2, 0, 3, 2, 0]), torch.randn(5)
    dispatcher = LocalDispatcher(3)
    rows, plan = dispatcher.dispatch(x, expert, max_rows=2)
    assert torch.equal(rows, dispatch(x, expert, 3)[0])
    assert plan.offsets_N.tolist() == [2, 2, 4] and plan.max_rows == 2 and plan.host_offsets_N is None
    assert torch.equal(dispatcher.combine(rows, plan, scale), x * scale.unsqueeze(1))
