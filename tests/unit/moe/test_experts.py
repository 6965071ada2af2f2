"""The expert bank: experts are independent, start as fairseq's feed-forward layers do, and idle ones cost nothing."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from fairseq_mtmoe.moe import ExpertBank, LocalDispatcher
from fairseq_mtmoe.moe.adapters import LoraBank
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement

pytestmark = pytest.mark.usefixtures("every_device_kind")
N, H, F = 3, 4, 8
TO_EXPERTS = LocalDispatcher(N)


@pytest.mark.parametrize("expert", [[2, 0, 1, 0, 2], [2], [0, 3, 2, 3], []])
def test_tokens_are_sorted_and_keep_their_order(expert):
    expert = torch.tensor(expert, dtype=torch.long)
    x = torch.randn(len(expert), 3)
    rows, plan = TO_EXPERTS.dispatch(x, expert, max_rows=2)
    assert torch.equal(rows, x[expert.argsort(stable=True)])
    assert plan.offsets_N.tolist() == torch.bincount(expert, minlength=4)[:3].cumsum(0).tolist()
    assert plan.max_rows == 2 and plan.host_offsets_N is None


def start(kind, num_experts, **options):
    """The first parameters of two banks made after each other, and what is drawn next."""
    torch.manual_seed(0)
    banks = [kind(num_experts, H, F, **options) for _ in range(2)]
    return *(next(bank.parameters()).detach().clone() for bank in banks), torch.rand(3)


PARTS = [(2, {}, 0, 2), *((5, {"placement": ExpertPlacement(5, *part)}, *part) for part in ((0, 2), (2, 1), (3, 2)))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("kind", "parts"), [(ExpertBank, PARTS), (partial(LoraBank, rank=2), PARTS[:1])])
def test_an_expert_starts_the_same_however_many_there_are_and_wherever_it_is(kind, parts, dtype, set_default_dtype):
    set_default_dtype(dtype)
    whole = start(kind, 5)
    for num_experts, options, first, count in parts:
        part = start(kind, num_experts, **options)
        assert all(torch.equal(part[i], whole[i][first : first + count]) for i in range(2))
        assert torch.equal(part[2], whole[2])
    everyone = [tuple(expert.flatten().tolist()) for bank in whole[:2] for expert in bank]
    assert len(set(everyone)) == 10  # two banks of five


def test_what_is_drawn_after_a_bank_is_the_same_where_it_copies_or_has_no_memory():
    drawn = []
    for options, device in (({}, "cpu"), ({"draws": False}, "cpu"), ({}, "meta")):
        torch.manual_seed(0)
        with torch.device(device):
            ExpertBank(N, H, F, **options)
        drawn.append(torch.rand(3).tolist())
    assert drawn[0] == drawn[1] == drawn[2]


def test_experts_start_independently_from_fairseqs_distribution():
    torch.manual_seed(0)
    bank = ExpertBank(4, 64, 256)
    for weight, bias, width in ((bank.fc1_weight, bank.fc1_bias, 64), (bank.fc2_weight, bank.fc2_bias, 256)):
        linear = nn.Linear(width, 1000)
        for parameter, expected in ((weight, linear.weight), (bias, linear.bias)):
            assert parameter.std().item() == pytest.approx(expected.std().item(), rel=0.1)
            assert parameter.abs().max() <= 1 / math.sqrt(width)
            assert not torch.allclose(parameter[0], parameter[1])


def test_idle_experts_are_not_touched_in_inference():
    torch.manual_seed(0)
    bank = ExpertBank(N, H, F)
    with torch.no_grad():
        for parameter in bank.parameters():
            parameter[1].fill_(torch.nan)
        rows, plan = TO_EXPERTS.dispatch(torch.randn(4, H), torch.tensor([0, 2, 2, 2]))
        assert bank(rows, plan.offsets_N).isfinite().all()


def test_dropout_is_for_training():
    expert = [0, 1, 2, 0]
    bank = ExpertBank(N, H, F, dropout=1.0)
    rows, plan = TO_EXPERTS.dispatch(torch.randn(4, H), torch.tensor(expert))
    dropped = TO_EXPERTS.combine(bank(rows, plan.offsets_N), plan)
    assert torch.equal(dropped, bank.fc2_bias[expert])
    assert not torch.equal(TO_EXPERTS.combine(bank.eval()(rows, plan.offsets_N), plan), dropped)
