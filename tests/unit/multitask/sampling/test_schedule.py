"""Sampling options: what they mean, equations 1 and 2, counts that are exact in sum and in expectation, refusals."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_mtmoe.multitask.sampling.schedule import Schedule, apportion, temperature_probabilities
from tests.helpers.refused import refused

SIZES = [800, 150, 50]


def test_equation_1():
    p = np.array([0.9, 0.09, 0.01])
    expected = p ** (1 / 1.5) / (p ** (1 / 1.5)).sum()
    np.testing.assert_allclose(temperature_probabilities([9000, 900, 100], 1.5), expected)
    np.testing.assert_allclose(temperature_probabilities([0, 10, 10], 3.0), [0, 0.5, 0.5])


@given(st.lists(st.integers(1, 10**15), min_size=1, max_size=60), st.floats(1e-300, 1e300))
def test_any_sizes_and_temperature_give_probabilities(sizes, temperature):
    p = temperature_probabilities(sizes, temperature)
    assert np.isfinite(p).all() and (p >= 0).all()
    assert p.sum() == pytest.approx(1)
    assert (np.diff(p[np.argsort(sizes)]) >= -1e-12).all()


SHARES = st.lists(st.floats(0, 1), min_size=1, max_size=50).filter(lambda shares: sum(shares) > 1e-6)


@given(st.integers(0, 10**12), SHARES, st.floats(0, 1, exclude_max=True))
def test_counts_sum_to_the_total_and_are_the_shares_rounded(total, shares, offset):
    shares = np.array(shares)
    counts = apportion(total, shares, offset)
    assert counts.sum() == total and (counts >= 0).all()
    assert (np.abs(counts - total * shares / shares.sum()) < 1 + 1e-3).all()


def test_over_all_offsets_the_mean_of_counts_is_the_share():
    shares = np.array([0.61, 0.29, 0.07, 0.03])
    offsets = (np.arange(10_000) + 0.5) / 10_000
    mean = np.mean([apportion(10, shares, offset) for offset in offsets], axis=0)
    assert mean == pytest.approx(10 * shares, abs=1e-3)
    assert apportion(2**52, np.array([1.0, 0.0]), 1 - 2**-53).tolist() == [2**52, 0]


def test_uniform_and_concat_and_weights():
    weighted = Schedule(sampling_weights=(1, 1, 2))
    np.testing.assert_allclose(Schedule("uniform").probabilities_at(1, SIZES), [1 / 3] * 3)
    np.testing.assert_allclose(Schedule("concat").probabilities_at(1, SIZES), [0.8, 0.15, 0.05])
    np.testing.assert_allclose(weighted.probabilities_at(1, SIZES), [0.25, 0.25, 0.5])
    assert Schedule("concat").takes_everything and Schedule("RoundRobin").takes_everything
    assert not weighted.takes_everything


def test_heating_counts_epochs_from_the_first_or_updates_alone():
    schedule = Schedule("temperature", 1.5, heating_coefficient=3, heating_epochs=4)
    assert schedule.temperature_at(1) == 1.5
    assert schedule.temperature_at(5) == schedule.temperature_at(50) == pytest.approx(3.0)
    first, last = (schedule.probabilities_at(epoch, SIZES) for epoch in (1, 5))
    assert last[2] > first[2] and last[0] < first[0]
    by_update = Schedule("temperature", 1.5, heating_coefficient=3, heating_updates=200)
    assert [by_update.temperature_at(epoch, 0) for epoch in (1, 9)] == [1.5, 1.5]
    assert by_update.temperature_at(2, 100) == pytest.approx(1.5 * math.sqrt(2.5))
    assert by_update.temperature_at(1, 200) == by_update.temperature_at(1, 10**6) == pytest.approx(3.0)
    np.testing.assert_allclose(by_update.probabilities_at(1, SIZES, 200), last)


HEATED = {"sampling_method": "temperature", "heating_coefficient": 1.0}


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"sampling_method": "greedy"}, "--sampling-method"),
        ({"sampling_method": "uncertainty", "sampling_weights": (1.0, 2.0)}, "--sampling-weights"),
        ({"sampling_method": "uniform-then-natural"}, "--sampling-method"),
        ({"sampling_method": "uniform", "natural_from_epoch": 3}, "--sampling-method"),
        ({"sampling_method": "uniform-then-natural", "natural_from_epoch": 1}, "--natural-from-epoch"),
        ({"sampling_temperature": 0.0}, "--sampling-temperature"),
        ({"heating_coefficient": -0.5}, "--heating-coefficient"),
        ({**HEATED, "heating_epochs": 3, "heating_updates": 3}, "--heating-epochs"),
        ({**HEATED, "heating_updates": 0}, "--heating-updates"),
        (HEATED, "--heating-coefficient --heating-epochs --heating-updates --max-epoch"),
        ({"heating_coefficient": 1.0, "heating_epochs": 3}, "--heating-coefficient"),
        ({**HEATED, "sampling_weights": (1.0, 1.0), "heating_epochs": 3}, "--heating-coefficient"),
        ({"sampling_weights": (1.0, -1.0)}, "--sampling-weights"),
    ],
)
def test_an_option_out_of_its_range_is_named(options, name):
    with refused(*name.split()):
        Schedule(**options).check_duration()
