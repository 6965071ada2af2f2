"""The statistics of studies, beside numpy's and scipy's, and by hand."""

import math

import contrasts
import pytest
from scipy import stats

PAIRED = {"a": {1: 10.0, 2: 12.0, 3: 11.0}, "b": {1: 11.5, 2: 12.5, 3: 13.0}}
THREE = {**PAIRED, "c": {1: 9.0, 2: 12.0, 3: 10.5}}


def test_two_rows_are_the_paired_test():
    """With two rows the pooled error is that of differences by seed."""
    found = contrasts.difference(PAIRED["b"], PAIRED["a"], contrasts.pooled_error(PAIRED))
    expected = stats.ttest_rel(list(PAIRED["b"].values()), list(PAIRED["a"].values()))
    interval = expected.confidence_interval(0.95)
    assert found.mean == pytest.approx(1.5 - 1 / 6)
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


def test_error_is_pooled_over_rows_and_seeds():
    """Of three rows and three seeds: what row and seed means leave over, with four degrees of freedom."""
    rows = {name: sum(of_row.values()) / 3 for name, of_row in THREE.items()}
    seeds = {seed: sum(of_row[seed] for of_row in THREE.values()) / 3 for seed in (1, 2, 3)}
    mean = sum(rows.values()) / 3
    left = [value - rows[name] - seeds[seed] + mean for name, of_row in THREE.items() for seed, value in of_row.items()]
    error = contrasts.pooled_error(THREE)
    assert error.freedom == 4
    assert error.deviation == pytest.approx(math.sqrt(sum(one**2 for one in left) / 4))
    found = contrasts.difference(THREE["b"], THREE["c"], error)
    assert found.half_width == pytest.approx(stats.t.ppf(0.975, 4) * error.deviation * math.sqrt(2 / 3))


def test_rows_of_one_seed_say_nothing_of_chance():
    error = contrasts.pooled_error({**THREE, "d": {2: 100.0}})
    assert error == contrasts.pooled_error(THREE)
    found = contrasts.difference({2: 100.0}, THREE["a"], error)
    assert (found.mean, found.seeds, found.word) == (88.0, 1, contrasts.ONE_SEED)
    assert contrasts.difference({7: 1.0}, THREE["a"], error) is None
    assert contrasts.pooled_error({"d": {2: 1.0}}).freedom == 0


def test_rows_with_other_seeds_are_compared_by_those_in_common():
    values = {**THREE, "d": {1: 20.0, 2: 22.0}}
    found = contrasts.difference(values["d"], values["a"], contrasts.pooled_error(values))
    assert (found.mean, found.seeds) == (10.0, 2)
    assert contrasts.pooled_error(values).freedom == 11 - 4 - 2  # figures less rows less seeds but one


def test_holm_by_hand():
    """Of 0.01, 0.04, 0.03 and 0.20: 4·0.01, 3·0.03, then 2·0.04, which is raised to that before it."""
    assert contrasts.holm([0.04, 0.01, math.nan, 0.2, 0.03])[:2] == pytest.approx([0.09, 0.04])
    adjusted = contrasts.holm([0.04, 0.01, math.nan, 0.2, 0.03])
    assert adjusted[3:] == pytest.approx([0.2, 0.09])
    assert math.isnan(adjusted[2])
    assert contrasts.holm([0.6, 0.7]) == [1.0, 1.0]


@pytest.mark.parametrize(("mean", "half", "p", "word"), [
    (2.0, 1.0, 0.01, "higher"), (-2.0, 1.0, 0.01, "lower"), (2.0, 1.0, 0.06, "no difference shown"),
    (2.0, math.nan, math.nan, "one seed"),
])  # fmt: skip
def test_words_follow_the_rule(mean, half, p, word):
    assert contrasts.Difference(mean, half, 3, p).word == word
