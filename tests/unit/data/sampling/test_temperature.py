"""Equations 1 and 2: published values, extreme sizes and temperatures."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_mtmoe.data.sampling import heated_temperature, temperature_probabilities

SIZES = st.lists(st.integers(1, 10**15), min_size=1, max_size=60)


def test_equation_1():
    p = np.array([0.9, 0.09, 0.01])
    expected = p ** (1 / 1.5) / (p ** (1 / 1.5)).sum()
    np.testing.assert_allclose(temperature_probabilities([9000, 900, 100], 1.5), expected)


@given(SIZES, st.floats(1e-300, 1e300))
def test_any_sizes_and_temperature_give_probabilities(sizes, temperature):
    p = temperature_probabilities(sizes, temperature)
    assert np.isfinite(p).all() and (p >= 0).all()
    assert p.sum() == pytest.approx(1)
    assert (np.diff(p[np.argsort(sizes)]) >= -1e-12).all()


def test_the_limits_are_the_largest_task_alone_and_all_tasks_alike():
    np.testing.assert_allclose(temperature_probabilities([10, 30, 20], 1e-6), [0, 1, 0])
    np.testing.assert_allclose(temperature_probabilities([1, 10**12], 1e12), [0.5, 0.5])


def test_a_task_without_sentences_is_not_sampled():
    np.testing.assert_allclose(temperature_probabilities([0, 10, 10], 3.0), [0, 0.5, 0.5])


def test_equation_2_starts_at_the_start_and_ends_at_sqrt_of_1_plus_k():
    assert heated_temperature(1.5, 3.0, 10, 0) == 1.5
    assert heated_temperature(1.5, 3.0, 10, 10) == heated_temperature(1.5, 3.0, 10, 1000) == pytest.approx(3.0)
    assert heated_temperature(1.5, 1.0, 10, 5) == pytest.approx(1.5 * math.sqrt(1.5))
