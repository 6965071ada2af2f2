import math

import numpy as np
import pytest

from fairseq_mtmoe.tasks._benchmark.metrics import score, standard_error


def values(*numbers):
    return np.array(numbers, dtype=np.float64)


def test_metrics_by_hand():
    # 3 true positives, 2 true negatives, 1 false positive, 2 false negatives
    labels, predictions = values(1, 1, 1, 0, 0, 0, 1, 1), values(1, 1, 1, 0, 0, 1, 0, 0)
    expected = (3 * 2 - 1 * 2) / math.sqrt((3 + 1) * (3 + 2) * (2 + 1) * (2 + 2))
    assert score("matthews", labels, predictions) == pytest.approx(100 * expected)
    # Deviations from the means: -2, -1, 3 and -1, -1, 2; sums of products 9, of squares 14 and 6.
    assert score("pearson", values(1, 2, 6), values(0, 0, 3)) == pytest.approx(900 / math.sqrt(84))
    assert score("pearson", values(1, 2, 6), values(1, 1, 1)) == 0
    # Ranks 1.5 1.5 3 against 1 2 3, whose correlation is √3/2
    assert score("spearman", values(1, 1, 2), values(1, 2, 3)) == pytest.approx(100 * math.sqrt(3) / 2)
    # Precision 2/3, recall 2/4
    assert score("f1", values(1, 1, 1, 1, 0), values(1, 1, 0, 0, 1)) == pytest.approx(100 * 2 * 2 / (2 * 2 + 1 + 2))


def test_macro_f1_is_the_mean_over_classes_that_occur():
    # Class 0: precision 1/2, recall 1; class 1: 1/2, 1/2; class 2: nothing found
    labels, predictions = values(0, 1, 1, 2), values(0, 1, 0, 1)
    assert score("macro-f1", labels, predictions) == pytest.approx(100 * (2 / 3 + 1 / 2 + 0) / 3)
    # An answer of no class is wrong, and no class of its own: class 0 has recall 1/2.
    assert score("macro-f1", values(0, 0, 1), values(0, -1, 1)) == pytest.approx(100 * (2 / 3 + 1) / 2)


def test_the_error_of_accuracy_is_that_of_a_share_and_too_few_examples_have_none():
    error = standard_error("accuracy", values(0, 1, 2, 2), values(0, 1, 1, 2))
    assert error == pytest.approx(100 * math.sqrt(0.75 * 0.25 / 4))
    assert math.isnan(standard_error("accuracy", values(1), values(1)))
    assert math.isnan(standard_error("f1", values(1), values(1))) and math.isnan(score("spearman", values(), values()))


def drawn(count):
    draw = np.random.default_rng(5)
    labels = draw.integers(0, 2, count).astype(float)
    return labels, np.where(draw.random(count) < 0.8, labels, 1 - labels)


@pytest.mark.parametrize("metric", ["f1", "spearman"])
def test_the_error_of_other_metrics_is_how_far_fresh_sets_lie_apart(metric):
    fresh = np.random.default_rng(1)
    labels, predictions = drawn(20000)
    sets = [fresh.integers(0, 20000, 200) for _ in range(200)]
    apart = np.std([score(metric, labels[one], predictions[one]) for one in sets])
    assert standard_error(metric, *drawn(200)) == pytest.approx(apart, rel=0.25)
