"""Loss and entropies from features against their definitions: values, gradients, blocks, half precision."""

import math
from functools import cache

import pytest
import torch

from fairseq_mtmoe.translation.criterion import projected_loss as module
from fairseq_mtmoe.translation.criterion.projected_loss import ProjectedLoss, projected_entropies, projected_loss

WORDS, WIDTH = 37, 8


def inputs(tokens=11):
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(tokens, WIDTH, generator=generator)
    weight = torch.randn(WORDS, WIDTH, generator=generator)
    return features.requires_grad_(), weight.requires_grad_(), torch.randint(WORDS, (tokens,), generator=generator)


def reference_loss(features_TH, weight_VH, target_T, smoothing):
    log_p_TV = torch.log_softmax((features_TH @ weight_VH.t()).float(), 1)
    nll = -log_p_TV.gather(1, target_T.unsqueeze(1)).sum()
    e = smoothing / (len(weight_VH) - 1)
    loss = (1 - smoothing - e) * nll - e * log_p_TV.sum()
    return ProjectedLoss(loss, nll, (log_p_TV.argmax(1) == target_T).sum())


def gradients(loss_of, features, weight, target, smoothing):
    """The sums, and the gradients of three times the loss."""
    sums = loss_of(features, weight, target, smoothing)
    return sums, torch.autograd.grad(3 * sums.loss, (features, weight))


@pytest.fixture(params=[4, 100])
def rows(request, monkeypatch):
    """Blocks of which the last is smaller, and one block for all."""
    monkeypatch.setattr(module, "BLOCK_LOGITS", 1)
    monkeypatch.setattr(module, "BLOCK_ROWS", request.param)


@pytest.mark.parametrize(("smoothing", "tokens"), [(0.0, 11), (0.7, 11), (0.1, 0)])
@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("scale", [1, 1e4])  # whose exponentials overflow
def test_values_and_gradients_are_the_definitions(smoothing, tokens, scale):
    features, weight, target = inputs(tokens)
    features = (features.detach() * scale).requires_grad_()
    ours, our_gradients = gradients(projected_loss, features, weight, target, smoothing)
    theirs, their_gradients = gradients(reference_loss, features, weight, target, smoothing)
    torch.testing.assert_close(ours.loss, theirs.loss)
    torch.testing.assert_close(ours.nll, theirs.nll)
    torch.testing.assert_close(our_gradients, their_gradients, rtol=1e-4, atol=1e-5 * scale)
    assert ours.correct is None
    counted = projected_loss(features, weight, target, smoothing, count_correct=True)
    assert counted.correct == theirs.correct and torch.equal(counted.loss, ours.loss)


@pytest.mark.usefixtures("rows")
def test_half_precision_is_as_near_as_its_rounding():
    features, weight, target = inputs(tokens=60)
    exact, exact_gradients = gradients(reference_loss, features, weight, target, 0.1)
    halves = (features.detach().bfloat16().requires_grad_(), weight.detach().bfloat16().requires_grad_())
    ours, our_gradients = gradients(projected_loss, *halves, target, 0.1)
    assert ours.loss.dtype == torch.float32
    torch.testing.assert_close(ours.loss, exact.loss, rtol=1e-2, atol=0)
    for ours_, exact_ in zip(our_gradients, exact_gradients, strict=True):
        assert ours_.dtype == torch.bfloat16
        assert (ours_ - exact_).norm() < 0.02 * exact_.norm()


@pytest.mark.skipif("dtype_out" not in torch.ops.aten.addmm.overloads(), reason="torch has no addmm(out_dtype=)")
def test_half_precision_is_summed_in_float32_where_there_is_such_a_product(rows, monkeypatch):
    calls = []

    def addmm(total, left, right, out_dtype, *, beta=1, alpha=1, out):
        calls.append(left.dtype)
        return out.copy_(beta * total + alpha * (left.float() @ right.float()))

    monkeypatch.setattr(module, "adds_in_float32", cache(module.adds_in_float32.__wrapped__))
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("addmm.dtype_out", addmm, "CPU")
        test_half_precision_is_as_near_as_its_rounding()
    assert calls == [torch.bfloat16] * (1 + -(-60 // module.BLOCK_ROWS))  # once to try it


def test_only_what_is_trained_gets_a_gradient():
    for trained in (0, 1):
        features, weight, target = inputs()
        (features, weight)[1 - trained].requires_grad_(False)
        projected_loss(features, weight, target, 0.1).loss.backward()
        expected = torch.autograd.grad(reference_loss(features, weight, target, 0.1).loss, (features, weight)[trained])
        torch.testing.assert_close((features, weight)[trained].grad, expected[0], rtol=1e-4, atol=1e-5)
        assert (features, weight)[1 - trained].grad is None
    with torch.no_grad():
        assert not projected_loss(*inputs(), 0.1).loss.requires_grad


@pytest.mark.usefixtures("rows")
def test_entropies_are_the_definitions_also_in_half_precision():
    features, weight = (value.detach() for value in inputs()[:2])
    right = torch.distributions.Categorical(logits=features @ weight.t()).entropy()
    torch.testing.assert_close(projected_entropies(features, weight), right)
    assert projected_entropies(features[:0], weight).shape == (0,)
    undecided = projected_entropies(torch.zeros(3, WIDTH), weight)
    torch.testing.assert_close(undecided, torch.full((3,), math.log(WORDS)))
    found = projected_entropies(features.half(), weight.half())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, right, atol=0.05, rtol=0.05)
    sure = projected_entropies((1000 * features).half(), weight.half())
    assert sure.isfinite().all() and sure.max() < 0.01
