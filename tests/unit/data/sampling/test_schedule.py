"""Sampling options: what they mean and which are refused."""

import math

import numpy as np
import pytest

from fairseq_mtmoe.data.sampling import Schedule
from fairseq_mtmoe.errors import UserError

SIZES = [800, 150, 50]


def test_uniform_and_concat_and_weights():
    np.testing.assert_allclose(Schedule("uniform").probabilities_at(1, SIZES), [1 / 3] * 3)
    np.testing.assert_allclose(Schedule("concat").probabilities_at(1, SIZES), [0.8, 0.15, 0.05])
    weighted = Schedule("concat", weights=(1, 1, 2))
    np.testing.assert_allclose(weighted.probabilities_at(1, SIZES), [0.25, 0.25, 0.5])
    assert not weighted.takes_everything
    assert Schedule("concat").takes_everything and Schedule("RoundRobin").takes_everything


def test_uniform_then_natural_changes_at_an_epoch():
    schedule = Schedule("uniform-then-natural", natural_from_epoch=4)
    for epoch, shares in ((1, [1 / 3] * 3), (3, [1 / 3] * 3), (4, [0.8, 0.15, 0.05]), (99, [0.8, 0.15, 0.05])):
        np.testing.assert_allclose(schedule.probabilities_at(epoch, SIZES, update=10**6), shares)
    assert not schedule.takes_everything and schedule.temperature_at(4) is None


def test_heating_counts_epochs_from_the_first():
    schedule = Schedule("temperature", 1.5, heating_coefficient=3, heating_epochs=4)
    assert schedule.temperature_at(1) == 1.5
    assert schedule.temperature_at(5) == schedule.temperature_at(50) == pytest.approx(3.0)
    first, last = (schedule.probabilities_at(epoch, SIZES) for epoch in (1, 5))
    assert last[2] > first[2] and last[0] < first[0]


def test_heating_by_update_looks_at_nothing_else():
    schedule = Schedule("temperature", 1.5, heating_coefficient=3, heating_updates=200)
    assert [schedule.temperature_at(epoch, 0) for epoch in (1, 9)] == [1.5, 1.5]
    assert schedule.temperature_at(2, 100) == pytest.approx(1.5 * math.sqrt(2.5))
    assert schedule.temperature_at(1, 200) == schedule.temperature_at(1, 10**6) == pytest.approx(3.0)
    cool, hot = (schedule.probabilities_at(1, SIZES, update) for update in (0, 200))
    assert hot[2] > cool[2] and hot[0] < cool[0]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"method": "greedy"},
            "must be one of uniform, temperature, concat, RoundRobin, uniform-then-natural, uncertainty, but",
        ),
        ({"method": "uncertainty", "weights": (1.0, 2.0)}, "`--sampling-weights` must not be given with"),
        ({"method": "uncertainty", "heating_coefficient": 1.0}, "`--heating-coefficient` must be 0 with"),
        (
            {"method": "uniform-then-natural"},
            "`--natural-from-epoch`, the first epoch that is drawn by size, need each",
        ),
        ({"method": "uniform", "natural_from_epoch": 3}, "need each other: give both or neither"),
        (
            {"method": "uniform-then-natural", "natural_from_epoch": 1},
            "`--natural-from-epoch` must be at least 2, since the epochs before are uniform, but is 1",
        ),
        ({"temperature": 0.0}, "`--sampling-temperature` must be a finite number above 0, but is 0.0"),
        ({"temperature": math.nan}, "`--sampling-temperature`"),
        ({"heating_coefficient": -0.5}, "`--heating-coefficient` must be a finite number of at least 0, but is -0.5"),
        (
            {"method": "temperature", "heating_coefficient": 1.0, "heating_epochs": 3, "heating_updates": 3},
            "`--heating-epochs` and `--heating-updates` exclude each other",
        ),
        (
            {"method": "temperature", "heating_coefficient": 1.0, "heating_updates": 0},
            "`--heating-updates` must be at least 1, but is 0",
        ),
        (
            {"method": "temperature", "heating_coefficient": 1.0, "heating_epochs": 0},
            "`--heating-epochs` must be at least 1, but is 0",
        ),
        ({"heating_coefficient": 1.0, "heating_epochs": 3}, "use `--sampling-method temperature`"),
        ({"weights": (1.0, -1.0)}, "`--sampling-weights`"),
    ],
)
def test_an_option_out_of_its_range_is_one_sentence(options, sentence):
    with pytest.raises(UserError) as error:
        Schedule(**options)
    assert sentence in str(error.value)
