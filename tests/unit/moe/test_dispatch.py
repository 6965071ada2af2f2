"""Sorting tokens by expert and bringing them back."""

import pytest
import torch

from fairseq_mtmoe.moe import LocalDispatcher


def tokens(number, width=3):
    return torch.arange(1.0, number * width + 1).view(number, width)


@pytest.mark.parametrize("expert", [[2, 0, 1, 0, 2], [2], [0, 3, 2, 3], []])
def test_tokens_are_sorted_and_keep_their_order(expert):
    expert = torch.tensor(expert, dtype=torch.long)
    x = tokens(len(expert))
    rows, plan = LocalDispatcher(3).dispatch(x, expert, max_rows=2)
    assert torch.equal(rows, x[expert.argsort(stable=True)])
    assert plan.offsets_N.tolist() == torch.bincount(expert, minlength=4)[:3].cumsum(0).tolist()
    assert plan.max_rows == 2 and plan.host_offsets_N is None


@pytest.mark.parametrize("expert", [[0, 1, 2, 0, 1], [0, 0, 0, 0, 0], [3, 2, 1, 0, 4]])
def test_combine_undoes_dispatch_and_so_do_their_gradients(expert):
    dispatcher, x, scale = LocalDispatcher(4), tokens(5).requires_grad_(), torch.arange(1.0, 6)
    rows, plan = dispatcher.dispatch(x, torch.tensor(expert))
    own = scale[plan.row_T].unsqueeze(1)
    back = dispatcher.combine(rows * scale.unsqueeze(1), plan)
    assert torch.equal(back, own * x) and torch.equal(dispatcher.combine(rows, plan, scale[plan.row_T]), back)
    weight = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    (back * weight).sum().backward()
    assert torch.equal(x.grad, own * weight)
