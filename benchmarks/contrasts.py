"""The statistics of studies: differences by seed with a pooled error, 95% intervals, Holm, and the words that follow.

Rows and seeds are taken to add up: a figure is its row's plus its seed's plus chance. What is left over in all rows
of several seeds gives one standard deviation, with which each difference of two rows is judged (a randomised block
design). Rows whose figures vary by other amounts, such as those trained on 4 examples and on all, are not pooled:
they are strata (`of_stratum`). `bootstrap` covers the choice of test sentences, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student
from scipy.stats import ttest_rel

LEVEL = 0.95
LEAST_FREEDOM = 2  # degrees of freedom below which nothing is said of chance: two rows of three seeds have them
BETTER, WORSE = "better", "worse"
NONE, NONE_WIDE = "no difference shown", "no difference shown (wide)"
ONE_SEED, FEW_RUNS = "one seed", "too few runs"
Values = Mapping[str, Mapping[int, float]]  # of a row, by seed
Array = NDArray[np.float64]
DRAWS = 2000


@dataclass(frozen=True)
class PooledError:
    """The standard deviation of a figure among those of its seed, and its degrees of freedom (0: unknown)."""

    deviation: float
    freedom: int

    def half_width(self, variance: float) -> float:
        """Half of the 95% interval of a mean whose variance is so many times that of one figure."""
        if not self.freedom:
            return math.nan
        return float(student.ppf((1 + LEVEL) / 2, self.freedom)) * self.deviation * math.sqrt(variance)


@dataclass(frozen=True)
class Difference:
    """A row less its control."""

    mean: float  # over the seeds that both have
    half_width: float  # of the 95% interval, NaN of one seed or too few runs
    seeds: int  # their number
    p: float  # of no difference, two-sided; after Holm where the contrast is one of a family; NaN as `half_width`
    paired: float = math.nan  # p of the paired test of these seeds alone, which needs no other rows
    over_sentences: tuple[float, float] | None = None  # the 95% interval of `bootstrap`, where sentences were kept

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width

    def word(self, less_is_better: bool, wide: float) -> str:
        """Return `better` or `worse` where all intervals leave 0 out and both p are below 0.05.

        Args:
            less_is_better: whether the metric falls as systems get better.
            wide: half of an interval from which on it shows too little to be called `no difference shown`.
        """
        if math.isnan(self.half_width):
            return ONE_SEED if self.seeds == 1 else FEW_RUNS
        intervals = [(self.low, self.high)]
        if self.over_sentences is not None:
            intervals.append(self.over_sentences)
        leave_zero_out = all(not low <= 0 <= high for low, high in intervals)
        if leave_zero_out and max(self.p, self.paired) < 1 - LEVEL:
            return BETTER if (self.mean < 0) == less_is_better else WORSE
        return NONE_WIDE if self.half_width > wide else NONE


def of_stratum(values: Values, strata: Sequence[str], *compared: str) -> Values:
    """The rows whose error is that of the compared ones: those of their stratum, or of several strata only themselves.

    Args:
        values: by row, then by seed.
        strata: parts of rows' names; a row is of the first one that its name contains, others are one stratum.
        compared: one row, or a row and its control.
    """

    def stratum(row: str) -> str:
        return next((part for part in strata if part in row), "")

    own = {stratum(row) for row in compared}
    return {row: of_row for row, of_row in values.items()
            if (stratum(row) in own if len(own) == 1 else row in compared)}  # fmt: skip


def pooled_error(values: Values) -> PooledError:
    """The error of all rows that have several seeds, by least squares of rows and seeds.

    Args:
        values: by row, then by seed; rows of one seed tell nothing of chance and are left out.
    """
    rows = [row for row, of_row in values.items() if len(of_row) > 1]
    seeds = sorted({seed for row in rows for seed in values[row]})
    cells = [(row, seed) for row in rows for seed in values[row]]
    if not cells:
        return PooledError(math.nan, 0)
    design = np.zeros((len(cells), len(rows) + len(seeds)))
    for at, (row, seed) in enumerate(cells):
        design[at, rows.index(row)] = design[at, len(rows) + seeds.index(seed)] = 1
    figures = np.array([values[row][seed] for row, seed in cells])
    fitted, _, rank, _ = np.linalg.lstsq(design, figures, rcond=None)
    freedom = len(cells) - int(rank)
    left = figures - design @ fitted
    if freedom < LEAST_FREEDOM:
        return PooledError(math.nan, 0)
    return PooledError(math.sqrt(float(left @ left) / freedom), freedom)


def difference(row: Mapping[int, float], control: Mapping[int, float], error: PooledError) -> Difference | None:
    """A row less its control, by the seeds that both have; None without any."""
    seeds = row.keys() & control.keys()
    if not seeds:
        return None
    differences = [row[seed] - control[seed] for seed in seeds]
    mean = fmean(differences)
    if len(seeds) == 1 or not error.freedom:
        return Difference(mean, math.nan, len(seeds), math.nan)
    variance = 2 / len(seeds)
    spread = error.deviation * math.sqrt(variance)
    p = 2 * float(student.sf(abs(mean) / spread, error.freedom)) if spread else float(mean == 0)
    paired = float(mean == 0)  # equal differences, which have no spread, are certain
    if np.ptp(differences):
        paired = float(ttest_rel(differences, np.zeros(len(differences))).pvalue)
    return Difference(mean, error.half_width(variance), len(seeds), p, paired)


def bootstrap(
    row: Mapping[int, Array], control: Mapping[int, Array], score: Callable[[Array], Array], draws: int = DRAWS
) -> tuple[float, float, float]:
    """Return a row less its control in the mean over pairs, and its 95% interval over seeds and test sentences.

    Each draw takes seeds, and for all of them the same sentences. Few seeds vary too little among themselves: with n of
    them, what a draw of seeds changes is widened by the square root of n / (n - 1). With one seed it is over sentences.

    Args:
        row: of each seed the statistics, pair × sentence × statistic; the pairs' test sets are parallel.
        score: the metric of sums over sentences, along the last axis.
    """
    seeds = sorted(row.keys() & control.keys())
    statistics = np.array([[row[seed], control[seed]] for seed in seeds])
    count, *_, sentences, _ = statistics.shape
    generator = np.random.default_rng(1)
    drawn_seeds = generator.integers(count, size=(draws, count))
    drawn_sentences = generator.integers(sentences, size=(draws, sentences))
    times = np.array([np.bincount(drawn, minlength=sentences) for drawn in drawn_sentences])
    scores = score(np.einsum("dn,srpnk->dsrpk", times, statistics, optimize=True)).mean(axis=-1)
    differences = scores[..., 0] - scores[..., 1]
    of_all_seeds = differences.mean(axis=1)
    of_drawn_seeds = np.take_along_axis(differences, drawn_seeds, axis=1).mean(axis=1)
    widening = math.sqrt(count / (count - 1)) if count > 1 else 0.0
    low, high = np.quantile(
        of_all_seeds + widening * (of_drawn_seeds - of_all_seeds), [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    )
    whole = score(statistics.sum(axis=-2)).mean(axis=-1)
    return float((whole[:, 0] - whole[:, 1]).mean()), float(low), float(high)


def holm(values: Sequence[float]) -> list[float]:
    """The p-values of a family, adjusted by Holm's method, in their order.

    NaN stands for a member with too few runs. It counts as the largest: the family is as large as it was declared.
    """
    adjusted, so_far = list(values), 0.0
    known = sorted((p, at) for at, p in enumerate(values) if not math.isnan(p))
    for rank, (p, at) in enumerate(known):
        so_far = max(so_far, min(1.0, (len(values) - rank) * p))
        adjusted[at] = so_far
    return adjusted
