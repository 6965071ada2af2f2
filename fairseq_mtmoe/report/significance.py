"""Significance tests of two systems on a test set, by sacreBLEU.

The tests (`sacrebleu.significance`) are the paired bootstrap (Koehn 2004, "Statistical Significance
Tests for Machine Translation Evaluation") and approximate randomisation (Riezler and Maxwell 2005).
A stand-in for the metric records the scores of resamples and trials. So a tier is tested on the
same draws: its resample (trial) i is the mean over its pairs' scores in resample (trial) i.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sacrebleu import significance
from sacrebleu.metrics.base import Score

SAMPLES = 1000
"""Default number of the bootstrap's resamples: sacreBLEU's."""
TRIALS = 10_000
"""Default number of the randomisation's trials: sacreBLEU's."""
LEVEL = 0.05
"""Differences with a p below this level are significant."""
Values = NDArray[np.float64]


class SystemOutput(NamedTuple):
    """A system's score on one test set, and statistics (sentences, numbers)."""

    score: float
    statistics: Values


class Draws(NamedTuple):
    """Scores of two systems, the first in row 0, on one test set or a mean of several."""

    scores: Values  # (2, 1), over all sentences
    resamples: Values  # (2, samples), on sentences drawn with replacement, the same for both
    trials: Values  # (2, trials), with randomly swapped translations


@dataclass(frozen=True)
class Comparison:
    """A system's difference from the first one.

    Attributes:
        first_error, other_error: half the width of the scores' 95% confidence intervals, by the
            bootstrap.
        interval: the middle 95% of the differences over bootstrap resamples.
        p_bootstrap, p_randomisation: two-sided probability of such a difference by chance; 1
            without a difference (for which sacreBLEU gives the smallest p) or a test.
    """

    first: float
    other: float
    first_error: float
    other_error: float
    difference: float
    interval: tuple[float, float]
    p_bootstrap: float
    p_randomisation: float

    @property
    def is_significant(self) -> bool:
        """Whether approximate randomisation finds the difference significant."""
        return self.p_randomisation < LEVEL


class SentenceMean:
    """A metric for sacreBLEU's tests: the mean of sentences' figures, as of COMET."""

    def _extract_corpus_statistics(self, figures: Sequence[float], references: object) -> Values:
        return np.stack([np.asarray(figures, np.float64), np.ones(len(figures))], axis=1)

    def _aggregate_and_compute(self, stats: Any) -> Any:
        return self._compute_score_from_stats(np.asarray(stats).sum(0))

    def _compute_score_from_stats(self, stats: Any) -> Any:
        return Score("mean", float(stats[0] / stats[1]))


class _NotingMetric(SentenceMean):
    """A metric for sacreBLEU's tests that has the other's statistics, records scores."""

    def __init__(self, metric: Any, statistics: Values) -> None:
        self._metric = metric
        self._statistics = statistics
        self.noted: list[float] = []

    def _extract_corpus_statistics(self, figures: object, references: object) -> Values:
        return self._statistics

    def _compute_score_from_stats(self, stats: Any) -> Any:
        score = self._metric._compute_score_from_stats(stats)
        self.noted.append(float(score.score))
        return score


def output_of(
    metric: Any, hypotheses: Sequence[Any], references: Sequence[Sequence[str | None]] = ()
) -> SystemOutput:
    """Return a system's score and statistics; `metric` then has its signature.

    hypotheses: translations, or their figures.
    """
    statistics = metric._extract_corpus_statistics(hypotheses, references)
    score = float(metric._aggregate_and_compute(statistics).score)
    # Whole numbers are exact in float64.
    return SystemOutput(score, np.asarray(statistics, np.float64))


def draw(
    metric: Any, first: SystemOutput, other: SystemOutput, seed: int, samples: int, trials: int
) -> Draws:
    """Run sacreBLEU's two tests on one test set; `seed` is its `SACREBLEU_SEED`."""

    def noted(test: Any, number: int) -> Values:
        noting = _NotingMetric(metric, other.statistics)
        baseline = {"metric": (first.statistics, significance.Result(first.score))}
        sentences = range(len(other.statistics))
        test(baseline, "", sentences, None, {"metric": noting}, number, seed=seed)
        # The last scores that each test computes are those of its draws.
        return np.array(noting.noted[-2 * number :]).reshape(2, number)

    scores = np.array([[first.score], [other.score]])
    resamples = noted(significance._paired_bs_test, samples)
    return Draws(scores, resamples, noted(significance._paired_ar_test, trials))


def comparison_of(draws: Sequence[Draws], floor: float = -math.inf) -> Comparison:
    """Compare two systems by draws of one test set, or by their mean over several.

    All have the same number of draws, and each test set counts the same. Two scores below `floor`
    are not tested.
    """
    scores, resamples, trials = (np.mean(values, axis=0) for values in zip(*draws, strict=True))
    first, other = map(float, scores[:, 0])
    ordered = np.sort(resamples[1] - resamples[0])
    left_out = len(ordered) // 40  # its half width is `estimate_ci`'s
    tested = other - first if max(first, other) >= floor else 0.0
    sizes = np.abs(ordered)
    return Comparison(
        first,
        other,
        float(significance.estimate_ci(resamples[0])[1]),
        float(significance.estimate_ci(resamples[1])[1]),
        other - first,
        (float(ordered[left_out]), float(ordered[-1 - left_out])),
        p_bootstrap=_p_value(sizes - sizes.mean(), tested),
        p_randomisation=_p_value(np.abs(trials[0] - trials[1]), tested),
    )


def _p_value(by_chance: Values, difference: float) -> float:
    if difference == 0:
        return 1.0
    return float(significance._compute_p_value(by_chance, abs(difference)))
