"""Spans: loss and prediction against what their definitions say, one window at a time."""

import itertools
import math

import pytest
import torch
from torch.nn.functional import linear

from fairseq_mtmoe.backbones.bert.heads import UNREAD, TaskHeads
from fairseq_mtmoe.task_types.tokens import Span

PASSAGES = [(3, 9), (2, 4), (5, 5), (1, 10)]  # the third is empty
LABELS = [(4, 6), (0, 0), (0, 0), (9, 9)]


def numbers(dtype=torch.float32):
    """Of windows whose passages are in different places, what a head gives."""
    drawn = torch.randn(4, 10, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    for row, (start, end) in enumerate(PASSAGES):
        drawn[row, [token for token in range(1, 10) if not start <= token < end]] = UNREAD
    return drawn.to(dtype)


def pairs_of(one, passage):
    """The numbers of all pairs of beginning and end."""
    return {(a, b): one[a, 0] + one[b, 1] for a, b in itertools.product([0, *range(*passage)], repeat=2)}


def slow_loss(one, label, passage):
    """Cross-entropy of a pair among all pairs, divided by the logarithm of their number."""
    pairs = pairs_of(one, passage)
    entropy = torch.logsumexp(torch.stack(list(pairs.values())), 0) - pairs[label]
    return entropy / math.log(max(len(pairs), 4))


def test_the_loss_is_that_of_one_of_all_pairs():
    fast, slow = (numbers(torch.float64).requires_grad_() for _ in range(2))
    loss = Span().loss(fast, torch.tensor(LABELS, dtype=torch.float64))
    expected = sum(slow_loss(*one) for one in zip(slow, LABELS, PASSAGES, strict=True))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(fast.grad, slow.grad, rtol=1e-5, atol=1e-6)
    assert fast.grad[2, 0].abs().max() < 1e-6, "an empty passage teaches nothing"
    half = Span().loss(numbers(torch.float16), torch.tensor(LABELS))
    assert half.dtype == torch.float32 and half.item() == pytest.approx(expected.item(), rel=0.02)


@pytest.mark.parametrize("longest", [1, 3])
def test_the_best_span_of_the_passage(longest):
    found = Span(longest).predictions(numbers()).tolist()
    for window in (0, 1, 3):
        pairs = pairs_of(numbers()[window], PASSAGES[window]).items()
        best = max((number.item(), a, b) for (a, b), number in pairs if 0 < a <= b < a + longest)
        assert found[window] == pytest.approx(best, abs=1e-5)


def test_the_entropy_is_that_of_pairs():
    found = Span().uncertainty(numbers(torch.float64), torch.tensor(LABELS))
    for window in (0, 1, 3):
        pairs = torch.stack(list(pairs_of(numbers(torch.float64)[window], PASSAGES[window]).values())).softmax(0)
        assert found.entropy[window].item() == pytest.approx(-(pairs * pairs.log()).sum().item(), rel=1e-5)
        assert found.most[window].item() == pytest.approx(math.log(len(pairs)), rel=1e-5)
    assert found.entropy[2] == 0 and found.most[2] > 0  # an empty passage is no question


def test_windows_of_a_model_that_diverged_are_the_worst():
    """Each still has its three values, since NaN is what fills rows up."""
    found = Span().predictions(numbers().index_fill(0, torch.tensor([1]), torch.nan))
    assert not found.isnan().any() and found[1, 0] == -math.inf
    torch.testing.assert_close(found[[0, 2, 3]], Span().predictions(numbers())[[0, 2, 3]])


def test_heads_read_the_passage_and_the_first_token():
    torch.manual_seed(1)
    heads, hidden = TaskHeads(5, {"squad": Span().head}), torch.randn(6, 10, 5)
    rows, spans = torch.tensor([[4], [1]]), torch.tensor([[[3, 9]], [[5, 5]]])
    found = heads(hidden, {"squad": rows}, {"squad": spans})["squad"]
    head = heads["squad"]
    for row, token in itertools.product(range(2), range(10)):
        is_read = token == 0 or spans[row, 0, 0] <= token < spans[row, 0, 1]
        expected = linear(hidden[rows[row, 0], token], head.weight, head.bias) if is_read else torch.full((2,), UNREAD)
        torch.testing.assert_close(found[row, token], expected)
    nothing = heads(hidden[:3, :1], {}, {})["squad"]  # without examples, but with a graph
    assert nothing.shape == (0, 1, 2)
    nothing.sum().backward()
    assert head.weight.grad.count_nonzero() == 0
