"""The assignment for GPUs, on a CPU: fair shares, a small gap, and that it never waits for a value."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from fairseq_mtmoe.moe import balanced_assignment
from fairseq_mtmoe.moe.form import Form, form_everywhere
from fairseq_mtmoe.moe.gates import assigned
from fairseq_mtmoe.moe.waitless import waitless_assignment
from tests.unit.moe.test_assignment import KINDS, SIZES, assert_fair, make, optimum, tied, total

FEW_VALUES = (tied,)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("tokens", "experts"), [*SIZES, (1, 2), (4096, 16), (4099, 64)])
def test_shares_are_fair(kind, tokens, experts):
    assert_fair(waitless_assignment(make(kind, tokens, experts)), tokens, experts)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in FEW_VALUES])
@pytest.mark.parametrize(("tokens", "experts"), [(4096, 16), (4099, 64), (8192, 128)])
def test_gap_at_the_size_of_a_batch(kind, tokens, experts):
    scores = make(kind, tokens, experts).float()
    best = total(scores, balanced_assignment(scores, exact=True))
    spread = (scores.amax(1) - scores.amin(1)).double().sum().item()
    assert best - total(scores, waitless_assignment(scores)) <= 1e-3 * spread


def test_the_sample_is_in_step_with_no_sentences():
    """Tokens come as (length, sentences): each 64th is of the same sentence, which has wishes of its own."""
    generator = torch.Generator().manual_seed(5)
    scores = 3 * torch.randn(64, 16, generator=generator).repeat(256, 1)
    scores += torch.randn(scores.shape, generator=generator)
    best = total(scores, balanced_assignment(scores, exact=True))
    spread = (scores.amax(1) - scores.amin(1)).double().sum().item()
    assert best - total(scores, waitless_assignment(scores)) <= 1e-3 * spread


def test_padding_takes_no_part():
    scores = make(KINDS[0], 700, 16)
    padding = torch.rand(700, generator=torch.Generator().manual_seed(3)) < 0.3
    scores[padding] = 100 * torch.randn(int(padding.sum()), 16, generator=torch.Generator().manual_seed(4))
    expert = waitless_assignment(scores, padding)
    assert (expert[padding] == 16).all()
    real = scores[~padding]
    assert_fair(expert[~padding], len(real), 16)
    spread = (real.amax(1) - real.amin(1)).double().sum().item()
    assert optimum(real) - total(real, expert[~padding]) <= 1e-3 * spread


def test_nothing_but_padding():
    assert (waitless_assignment(torch.randn(5, 3), torch.ones(5, dtype=torch.bool)) == 3).all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 0.0])
def test_no_finite_score_at_all(value):
    assert_fair(waitless_assignment(torch.full((11, 4), value)), 11, 4)


def test_infinite_scores_count_as_the_highest_and_lowest_finite_one():
    scores = make(KINDS[0], 400, 4)
    odd = scores.clone()
    odd[3, 2], odd[5, 1], odd[6, 0] = torch.inf, -torch.inf, torch.nan
    scores[3, 2], scores[5, 1], scores[6, 0] = scores.max(), scores.min(), scores.min()
    assert torch.equal(waitless_assignment(odd), waitless_assignment(scores))
    assert waitless_assignment(odd)[3] == 2


@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e30, 3e37])
def test_scores_of_extreme_size(scale):
    scores = make(KINDS[0], 640, 4).clamp(-3, 3)
    expert = waitless_assignment((scores.double() * scale).float())
    assert_fair(expert, 640, 4)
    spread = (scores.amax(1) - scores.amin(1)).double().sum().item()
    assert optimum(scores) - total(scores, expert) <= 1e-3 * spread


def traced(function, *arguments):
    """The operations of `function`, found with tensors that have no values."""
    return make_fx(function, tracing_mode="fake")(*arguments)


SCORES, PADDING = make(KINDS[0], 512, 8).float(), torch.arange(512) % 7 == 0


@pytest.mark.parametrize("arguments", [(SCORES,), (SCORES, PADDING)], ids=["no padding", "padding"])
def test_no_value_is_waited_for(arguments):
    graph = traced(lambda *tensors: waitless_assignment(*tensors), *arguments)
    assert torch.equal(graph(*arguments), waitless_assignment(*arguments))


def test_waiting_would_be_noticed():
    with pytest.raises(GuardOnDataDependentSymNode):
        traced(lambda scores: waitless_assignment(scores) + int(scores.sum() > 0), SCORES)


@pytest.mark.parametrize("padding", [None, PADDING])
def test_gates_and_assignment_take_this_form_on_a_gpu(padding):
    with form_everywhere(Form.GPU):
        taken = assigned(SCORES, padding)
    assert torch.equal(taken, waitless_assignment(SCORES, padding))
    assert not torch.equal(taken, assigned(SCORES, padding))  # a CPU finds the very best
