"""Whether a system's translations are better than another's, or chance in drawing the test set could say so.

The tests are sacreBLEU's (`sacrebleu.significance`): the paired bootstrap (Koehn 2004, "Statistical Significance Tests
for Machine Translation Evaluation") and approximate randomisation (Riezler and Maxwell 2005). Here a metric stands in
for its own that notes the scores of resamples and trials, so that a tier is tested by the same draws: resample (trial)
i of the tier is the mean over its pairs of their scores in resample (trial) i.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sacrebleu import significance
from sacrebleu.metrics.base import Score

SAMPLES, TRIALS = 1000, 10_000
"""Resamples of the bootstrap and trials of the randomisation, if nobody says how many: sacreBLEU's own numbers."""
LEVEL = 0.05
"""Differences whose p is below this one are called significant."""
Values = NDArray[np.float64]


class SystemOutput(NamedTuple):
    """A system's score on one test set, and (sentences, numbers) what the metric sums up over sentences."""

    score: float
    statistics: Values


class Draws(NamedTuple):
    """The scores of two systems, the first one's above, on one test set, or their means over several."""

    scores: Values  # (2, 1), over all sentences
    resamples: Values  # (2, samples), on sentences that the bootstrap drew with replacement, the same for both
    trials: Values  # (2, trials), with sentences' translations exchanged between them by chance


@dataclass(frozen=True)
class Comparison:
    """By how much a system is above the first one.

    Attributes:
        first_error, other_error: half the width of the scores' 95% confidence intervals, by the bootstrap.
        interval: the middle 95% of the differences in the bootstrap's resamples.
        p_bootstrap, p_randomisation: how often chance alone gives such a difference, of either sign; 1 where there is
            no difference (for which sacreBLEU gives the smallest p).
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
        """Whether approximate randomisation tells the difference from chance."""
        return self.p_randomisation < LEVEL


class SentenceMean:
    """A metric that is the mean of figures of sentences, such as COMET, as sacreBLEU's tests take metrics."""

    def _extract_corpus_statistics(self, figures: Sequence[float], references: object) -> Values:
        return np.stack([np.asarray(figures, np.float64), np.ones(len(figures))], axis=1)

    def _aggregate_and_compute(self, stats: Any) -> Any:
        return self._compute_score_from_stats(np.asarray(stats).sum(0))

    def _compute_score_from_stats(self, stats: Any) -> Any:
        return Score("mean", float(stats[0] / stats[1]))


class _NotingMetric(SentenceMean):
    """A metric for sacreBLEU's tests that knows the other system's statistics already, and notes the scores."""

    def __init__(self, metric: Any, statistics: Values) -> None:
        self._metric, self._statistics = metric, statistics
        self.noted: list[float] = []

    def _extract_corpus_statistics(self, figures: object, references: object) -> Values:
        return self._statistics

    def _compute_score_from_stats(self, stats: Any) -> Any:
        score = self._metric._compute_score_from_stats(stats)
        self.noted.append(float(score.score))
        return score


def output_of(metric: Any, hypotheses: Sequence[Any], references: Sequence[Sequence[str | None]] = ()) -> SystemOutput:
    """What a metric says of one system's translations (or figures of these), and leaves `metric` with its signature."""
    statistics = metric._extract_corpus_statistics(hypotheses, references)
    score = float(metric._aggregate_and_compute(statistics).score)
    return SystemOutput(score, np.asarray(statistics, np.float64))  # whole numbers are exact in float64


def draw(
    metric: Any, first: SystemOutput, other: SystemOutput, seed: int, samples: int = SAMPLES, trials: int = TRIALS
) -> Draws:
    """Run both of sacreBLEU's tests of two systems on one test set; `seed` is its `SACREBLEU_SEED`."""

    def noted(test: Any, number: int) -> Values:
        noting = _NotingMetric(metric, other.statistics)
        known = {"metric": (first.statistics, significance.Result(first.score))}
        test(known, "", range(len(other.statistics)), None, {"metric": noting}, number, seed=seed)
        return np.array(noting.noted[-2 * number :]).reshape(2, number)  # the last that each test computes

    scores = np.array([[first.score], [other.score]])
    return Draws(scores, noted(significance._paired_bs_test, samples), noted(significance._paired_ar_test, trials))


def resampled(metric: Any, output: SystemOutput, seed: int, samples: int = SAMPLES) -> Values:
    """(samples,) a system's scores on sentences that the bootstrap of `draw` drew, without another system."""
    size = len(output.statistics)
    drawn = np.random.default_rng(seed).choice(size, size=(samples, size), replace=True)
    return np.array([metric._compute_score_from_stats(output.statistics[row].sum(0)).score for row in drawn])


def half_interval(scores: Values) -> float:
    """Half the width of the 95% confidence interval that resamples' scores give."""
    return float(significance.estimate_ci(scores)[1])


def compared(draws: Sequence[Draws]) -> Comparison:
    """What the draws of a test set say, or of several with as many draws, each of which counts the same."""
    scores, resamples, trials = (np.mean(of, axis=0) for of in zip(*draws, strict=True))
    first, other = map(float, scores[:, 0])
    between = resamples[1] - resamples[0]
    ordered, left_out = np.sort(between), len(between) // 40  # its half width is `estimate_ci`'s
    apart = np.abs(between)
    return Comparison(
        first, other, half_interval(resamples[0]), half_interval(resamples[1]), other - first,
        (float(ordered[left_out]), float(ordered[-1 - left_out])),
        p_bootstrap=_p_value(apart - apart.mean(), other - first),
        p_randomisation=_p_value(np.abs(trials[0] - trials[1]), other - first),
    )  # fmt: skip


def _p_value(by_chance: Values, difference: float) -> float:
    return float(significance._compute_p_value(by_chance, abs(difference))) if difference else 1.0
