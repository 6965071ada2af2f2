"""How uncertain a model is of each kind of answer."""

import math

import pytest
import torch

from fairseq_mtmoe.answers import Classification, Ranking, Regression, WordPair

NO_LABELS = torch.zeros(3, 3)


@pytest.mark.parametrize("answer", [Classification(3), WordPair(3), Ranking()])
def test_one_of_several_has_the_entropy_of_the_choices(answer):
    numbers = torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
    entropy, most = answer.uncertainty(numbers, NO_LABELS)
    p = numbers.softmax(1)
    torch.testing.assert_close(entropy, -(p * p.log()).sum(1))
    torch.testing.assert_close(most, torch.full((3,), math.log(3)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
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


def test_a_regression_is_uncertain_where_dropout_changes_more_than_the_examples_do():
    draws = torch.tensor([[1.0, 1.2, 0.8], [3.0, 3.0, 3.0], [5.0, 6.0, 4.0]])
    entropy, most = Regression().uncertainty(draws.unsqueeze(2), NO_LABELS)
    between = torch.tensor([1.0, 3.0, 5.0]).var() - (0.04 + 0.0 + 1.0) / 3 / 3
    right = [(variance / (variance + between)) ** 0.5 for variance in (0.04, 0.0, 1.0)]
    torch.testing.assert_close(entropy, torch.tensor(right))
    assert most.tolist() == [1, 1, 1]
    other_unit = Regression().uncertainty(100 * draws.unsqueeze(2) + 7, NO_LABELS).entropy
    torch.testing.assert_close(other_unit, entropy)


@pytest.mark.parametrize("tau", [0.0, 0.3, 1.0, 3.0])
def test_a_regressions_share_is_what_it_is_where_the_spread_of_the_examples_is_known(tau):
    """Draws around values that spread by τ, with σ = 1; whatever is estimated of them is to be near what is known."""
    generator = torch.Generator().manual_seed(1)
    values = tau * torch.randn(50_000, 1, generator=generator)
    draws = values + torch.randn(50_000, 2, generator=generator)
    within = draws.var(1)
    right = (within / (within + tau**2)).sqrt().mean().item()
    found = Regression().uncertainty(draws.unsqueeze(2), NO_LABELS).entropy.mean().item()
    assert found == pytest.approx(right, abs=0.03 if tau else 0.1)
    batches = [Regression().uncertainty(part.unsqueeze(2), NO_LABELS).entropy for part in draws.split(32)[:500]]
    assert torch.cat(batches).mean().item() == pytest.approx(right, abs=0.03 if tau else 0.2)  # of a step's candidates


def test_a_regression_at_its_edges():
    def uncertainty(draws):
        return Regression().uncertainty(torch.tensor(draws).unsqueeze(2), NO_LABELS).entropy.tolist()

    assert uncertainty([[2.0, 2.0], [2.0, 2.0]]) == [0, 0]  # without dropout, and untrained
    assert uncertainty([[2.0, 4.0]]) == [pytest.approx((2 / 3) ** 0.5)]  # alone
    assert uncertainty([[1.0, 3.0], [3.0, 1.0]]) == [pytest.approx((1 / 1.01) ** 0.5)] * 2  # never quite undecided
    nearly_alike = uncertainty([[1.0, 3.0], [3.0, 1.1], [1.5, 2.4], [2.8, 1.2]])
    assert len(set(nearly_alike)) == 4 and 0.97 < min(nearly_alike) < max(nearly_alike) < 1
