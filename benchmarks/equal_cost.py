"""Systems beside a baseline of the same active size: after as many updates, and after as many minutes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from training_report import RunResult

from fairseq_mtmoe.analysis.scores import ALL
from fairseq_mtmoe.analysis.series import PerplexitySeries
from fairseq_mtmoe.io.markdown import markdown_table

UNITS = UPDATES, MINUTES = ("updates", "minutes")
HEADING = "## Beside the baseline, at equal cost"
EXPLAINED = (
    "Perplexity of all pairs with the weights of that moment, no best of several; between two validations its "
    "logarithm is taken to fall along a straight line. *Equal*: as many as the shortest run of the seed has; "
    "minutes are of training alone. Differences are taken seed by seed, with their standard error. *Step*: minutes of "
    "an update beside the baseline's."
)


def at(series: PerplexitySeries, over: Sequence[float], place: float) -> float:
    """Perplexity of all pairs at a place of `over` (updates or minutes), NaN where the run never came to.

    Args:
        series: of one run.
        over: a value for each of its validations, rising.
        place: in the unit of `over`.
    """
    values = [math.log(value) for value in series.groups[ALL]]
    for index, end in enumerate(over):
        if end < place:
            continue
        if index == 0:
            return math.exp(values[0]) if end == place else math.nan
        share = (place - over[index - 1]) / (end - over[index - 1])
        return math.exp(values[index - 1] + share * (values[index] - values[index - 1]))
    return math.nan


@dataclass(frozen=True)
class Equal:
    """A system beside a baseline.

    Attributes:
        title: of the system.
        name: of it.
        seeds: that both have.
        step: minutes of an update beside the baseline's, the mean.
        perplexity: at equal `updates` and at equal `minutes`, the mean.
        percent: by how much that is above the baseline's, seed by seed, in percent.
    """

    title: str
    name: str
    seeds: int
    step: float
    perplexity: dict[str, float]
    percent: dict[str, list[float]]


def systems_at_equal_cost(results: Sequence[RunResult], baseline: str) -> list[Equal]:
    """Every system beside one of them, by the seeds that both have; nothing if there is no such system.

    Args:
        results: of all systems and seeds.
        baseline: the name of the system that all are compared with.
    """
    by_seed = {result.seed: result for result in results if result.system.name == baseline}
    together = [result for result in results if result.seed in by_seed]
    found = []
    for name in dict.fromkeys(result.system.name for result in together):
        pairs = [(result, by_seed[result.seed]) for result in together if result.system.name == name]
        values = {unit: _together(pairs, together, unit) for unit in UNITS}
        found.append(
            Equal(
                title=pairs[0][0].system.title,
                name=name,
                seeds=len(pairs),
                step=fmean(_step(*pair) for pair in pairs),
                perplexity={unit: fmean(ours for ours, _ in values[unit]) for unit in UNITS},
                percent={unit: [100 * (ours / other - 1) for ours, other in values[unit]] for unit in UNITS},
            )
        )
    return found


def equal_cost(results: Sequence[RunResult], baseline: str) -> list[str]:
    """Lines of Markdown: each system's perplexity at equal updates and at equal minutes, and its difference in percent.

    Args:
        results: of all systems and seeds.
        baseline: the name of the system that all are compared with.
    """
    rows = []
    for found in systems_at_equal_cost(results, baseline):
        row = [found.title, found.seeds, f"{found.step:.2f}"]
        for unit in UNITS:
            row += [f"{found.perplexity[unit]:.2f}", _difference(found.percent[unit]) if found.name != baseline else ""]
        rows.append(row)
    if not rows:
        return []
    head = ["system", "seeds", "step", "at equal updates", "%", "at equal minutes", "%"]
    return [HEADING, "", EXPLAINED, "", markdown_table(head, rows), ""]


def _together(
    pairs: Sequence[tuple[RunResult, RunResult]], everything: Sequence[RunResult], unit: str
) -> list[tuple[float, float]]:
    """Both perplexities of each pair where the shortest of all runs of its seed ended, in `updates` or `minutes`."""
    found = []
    for pair in pairs:
        last = min(getattr(one.log.perplexity, unit)[-1] for one in everything if one.seed == pair[0].seed)
        ours, other = (at(one.log.perplexity, getattr(one.log.perplexity, unit), last) for one in pair)
        found.append((ours, other))
    return found


def _step(result: RunResult, other: RunResult) -> float:
    """Training minutes of an update, beside the other run's."""
    ours, theirs = (one.log.perplexity.minutes[-1] / one.log.perplexity.updates[-1] for one in (result, other))
    return ours / theirs


def _difference(percent: Sequence[float]) -> str:
    """How far below (or above) the baseline, in percent, with the standard error over seeds."""
    error = f" ±{stdev(percent) / math.sqrt(len(percent)):.1f}" if len(percent) > 1 else ""
    return f"{fmean(percent):+.1f}{error}"
