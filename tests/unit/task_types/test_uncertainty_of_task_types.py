"""How uncertain a model is of each kind of answer."""

import math
from statistics import NormalDist

import pytest
import torch

from fairseq_mtmoe.task_types import Classification, Ranking, Regression, WordPair

NO_LABELS = torch.zeros(3, 3)


@pytest.mark.parametrize("answer", [Classification(3), WordPair(3), Ranking()])
def test_one_of_several_has_the_entropy_of_the_choices(answer):
    numbers = torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
    entropy, most = answer.uncertainty(numbers, NO_LABELS)
    p = numbers.softmax(1)
    torch.testing.assert_close(entropy, -(p * p.log()).sum(1))
    torch.testing.assert_close(most, torch.full((3,), math.log(3)))


@pytest.mark.parametrize("dtype", [torch.float16])
def test_entropies_are_of_full_precision_and_finite(dtype):
    numbers = torch.tensor([[0.0, 0.001], [6e4, -6e4], [-1e4, 0.0]], dtype=dtype)
    entropy = Classification(2).uncertainty(numbers, NO_LABELS).entropy
    assert entropy.dtype == torch.float32 and entropy[1:].tolist() == [0, 0]
    assert 0.69314 < entropy[0] <= math.log(2) and entropy[0] != entropy.to(dtype)[0]


def test_candidates_that_are_not_there_are_no_choice():
    numbers = torch.tensor([[1.0, 2.0, 9.0], [0.0, 0.0, 0.0], [5.0, -9.0, 9.0]])
    labels = torch.tensor([[1.0, 0.0, math.nan], [0.0, 1.0, 0.0], [1.0, math.nan, math.nan]])
    entropy, most = Ranking().uncertainty(numbers, labels)
    torch.testing.assert_close(entropy[0], Classification(2).uncertainty(numbers[:1, :2], NO_LABELS).entropy[0])
    torch.testing.assert_close(most, torch.tensor([2.0, 3.0, 1.0]).log())
    assert entropy[1] == most[1] and entropy[2] == most[2] == 0


def binary_entropy(p):
    return -(p * math.log(p) + (1 - p) * math.log(1 - p)) if 0 < p < 1 else 0.0


def regression(draws, labels):
    entropy, most = Regression().uncertainty(draws.unsqueeze(2), labels)
    assert most.tolist() == pytest.approx([math.log(2)] * len(draws))
    return entropy


def test_a_regression_is_as_uncertain_as_the_choice_of_its_half_written_out():
    draws = torch.tensor([[1.0, 1.2, 0.8], [3.0, 3.0, 3.0], [5.0, 6.0, 4.0], [4.0, 2.0, 3.0]])
    labels = torch.tensor([1.5, 2.0, 5.0, 3.5])
    said = [1.0, 3.0, 5.0, 3.0]
    error = sum((one - label) ** 2 for one, label in zip(said, labels.tolist(), strict=True)) / 4
    right = []
    for one, variance in zip(said, (0.04, 0.0, 1.0, 1.0), strict=True):
        p = NormalDist().cdf((one - sum(said) / 4) / math.sqrt(error + variance))
        right.append(binary_entropy(p))
    torch.testing.assert_close(regression(draws, labels), torch.tensor(right))
    torch.testing.assert_close(regression(100 * draws + 7, 100 * labels + 7), torch.tensor(right))  # in another unit


def test_a_regression_at_its_edges():
    assert regression(torch.full((2, 2), 2.0), torch.tensor([1.0, 4.0])).tolist() == pytest.approx([math.log(2)] * 2)
    assert regression(torch.tensor([[2.0, 4.0]]), torch.tensor([9.0])).tolist() == pytest.approx([math.log(2)])  # alone
    exact = torch.tensor([1.0, 3.0])
    assert regression(exact.unsqueeze(1).expand(2, 2), exact).tolist() == [0, 0]  # without dropout, and all right
    assert regression(torch.full((3, 2), 0.1), torch.full((3,), 0.1)).isfinite().all()
