"""Covariance similarity beside equation 7 written out with full matrices."""

import numpy as np
import pytest

from fairseq_mtmoe.analysis.similarity import ModelSimilarities, TaskInputs, similarity

H = 12


def draw(seed, tokens=50, directions=H):
    """Inputs whose covariance falls off quickly, (tokens, H)."""
    generator = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(generator.normal(size=(H, H)))
    lengths = 0.5 ** np.arange(H) * (np.arange(H) < directions)
    return generator.normal(size=(tokens, H)) * lengths @ basis.T + 0.1 * basis[0]


def inputs_of(x_NH):
    return TaskInputs(x_NH.T @ x_NH, len(x_NH))


def best_approximation(x_NH):
    """(a) the covariance, (b) its best approximation of the least rank with 99% of the singular values."""
    covariance = x_NH.T @ x_NH
    left, values, right = np.linalg.svd(covariance)
    for rank in range(1, H + 1):
        if values[:rank].sum() >= 0.99 * values.sum():
            return (left[:, :rank] * values[:rank]) @ right[:rank], rank
    raise AssertionError


def written_out(x_NH, y_MH):
    """Equation 7 by traces: ‖AᵀB‖² is tr(AAᵀBBᵀ), and ‖A‖² is tr(AAᵀ)."""
    (one, _), (other, _) = best_approximation(x_NH), best_approximation(y_MH)
    return np.sqrt(np.trace(one @ other)) / np.sqrt(np.trace(one) * np.trace(other))


@pytest.mark.parametrize("other", [draw(2), draw(3, tokens=7), 100 * draw(1), draw(4, directions=2)])
def test_it_is_equation_7(other):
    x = draw(1)
    found = similarity(inputs_of(x).factor_HR, inputs_of(other).factor_HR)
    assert found == pytest.approx(written_out(x, other), rel=1e-10)
    assert 0 < found < 1


def test_the_rank_holds_99_percent_and_none_less_does():
    approximation, rank = best_approximation(draw(1))
    factor_HR = inputs_of(draw(1)).factor_HR
    assert factor_HR.shape[1] == rank and 1 < rank < H
    np.testing.assert_allclose(factor_HR @ factor_HR.T, approximation, atol=1e-10)


def test_data_along_one_line_and_across_it():
    first, longer, second = (inputs_of(row).factor_HR for row in (np.eye(H)[:1], 2 * np.eye(H)[:1], np.eye(H)[1:2]))
    assert similarity(first, longer) == pytest.approx(1) and similarity(first, second) == pytest.approx(0)


def test_improvements_are_in_percent_of_the_other_score():
    inputs = dict.fromkeys(("cola", "rte", "mnli"), inputs_of(draw(1)))
    together = ModelSimilarities("m", [], inputs, {"cola": 44.0, "rte": 60.0, "mnli": 80.0})
    alone = ModelSimilarities("s", [], inputs, {"cola": 40.0, "rte": 0.0})
    assert together.improvements(alone) == {"cola": pytest.approx(10.0)}
