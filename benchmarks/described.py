"""The studies as their pages describe them, and their contrasts in `results/results.csv`.

Studies are described by `studies/*.yaml`, registered before they ran, and by `earlier.yaml`, which ran before there was
such a rule.
"""

from __future__ import annotations

import functools
import itertools
import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import contrasts
import sentences
import study_plan
from contrasts import Difference, Values
from omegaconf import MISSING, OmegaConf
from study_figures import OF_GATES, PERPLEXITY, RESULTS
from study_plan import STUDIES, Contrast, Entry, Study

EARLIER = STUDIES.with_name("earlier.yaml")
SENTENCES = RESULTS.parent / "sentences"  # n-gram counts of test sentences, by study and run
TRANSLATED = (PERPLEXITY, "bleu", "chrf")
TIERS = ("all", "high", "mid", "low")
BEST = "best valid perplexity"  # of a run's validations: a metric that the curves give
UPDATES_TO = "updates to perplexity "  # then a perplexity: a metric that the curves give
Curve = list[tuple[int, float]]  # updates with their figures
WIDE, WIDE_RATIO = 1.0, 0.05  # half-widths that are called wide: points, and logarithms of perplexities
SCORED = (
    "Scores are by `mtmoe evaluate {study.score}` with the mean of the last {study.averaged} checkpoints; *all* is the "
    "mean of the pairs. Validation perplexity is that of the last checkpoint; *all* is over all tokens."
)


@dataclass
class Described:
    """What a page says of a study that is not in the table."""

    title: str = MISSING  # what was compared
    text: str = ""  # data, models, scale
    old: str = ""  # what has changed in the code since, if anything
    metric: str = PERPLEXITY  # of the first table and of contrasts
    also: list[str] = field(default_factory=list)  # further metrics, a table each
    groups: list[str] = field(default_factory=lambda: list(TIERS))  # tiers or tasks, the tables' columns
    strata: list[str] = field(default_factory=list)  # parts of names of rows that share an error, see `of_stratum`
    rows: dict[str, str] = field(default_factory=dict)  # titles by name, in the tables' order
    # Controls: every row is compared with each, in every group, and those over all pairs are primary
    beside: list[str] = field(default_factory=list)
    contrasts: list[Contrast] = field(default_factory=list)  # others
    facts: list[str] = field(default_factory=list)  # lines for the end of the page, such as commands
    entry: Entry | None = None  # what the dense row must reach; registered studies have it

    def compared(self, metric: str) -> list[Contrast]:
        is_own = metric == self.metric
        found = [
            Contrast(row, control, group, metric, is_own and group == self.groups[0])
            for at, control in enumerate(self.beside) for group in self.groups
            for row in self.rows if row not in self.beside[: at + 1]
        ]  # fmt: skip
        return found + [one for one in self.contrasts if (one.metric or self.metric) == metric]


@dataclass(frozen=True)
class Lines:
    """Lines of the table, a study's."""

    lines: Sequence[dict[str, str]]

    def values(self, metric: str, group: str) -> dict[str, dict[int, float]]:
        """By row and seed a tier's or task's figure: that of the last update, or what its curve says."""
        figure, source = _last, metric
        if metric == BEST:
            figure, source = _lowest, PERPLEXITY
        elif metric.startswith(UPDATES_TO):
            figure, source = functools.partial(updates_to, float(metric.removeprefix(UPDATES_TO))), PERPLEXITY
        found: dict[str, dict[int, float]] = {}
        for (row, seed), curve in self._curves(source, group).items():
            value = figure(curve)
            if value is not None:
                found.setdefault(row, {})[seed] = value
        return found

    def _curves(self, metric: str, group: str) -> dict[tuple[str, int], Curve]:
        """Return by row and seed the figures with the update of each, in the order of updates."""
        curves: dict[tuple[str, int], Curve] = {}
        for line in self.lines:
            if line["metric"] == metric and group == (line["task"] or line["tier"]):
                point = int(line["update"] or 0), float(line["value"])
                curves.setdefault((line["row"], int(line["seed"])), []).append(point)
        return {run: sorted(curve, key=lambda point: point[0]) for run, curve in curves.items()}

    def provenance(self) -> str:
        """Commits with versions, processors and days, each in the table's order."""
        commits = dict.fromkeys(f"{line['commit']} ({line['version']})" for line in self.lines)
        parts = [f"commit {', '.join(commits)}"]
        parts += [", ".join(dict.fromkeys(line[key] for line in self.lines)) for key in ("processor", "date")]
        return "; ".join(parts)


def _last(curve: Curve) -> float:
    return curve[-1][1]


def _lowest(curve: Curve) -> float:
    return min(value for _, value in curve)


def updates_to(perplexity: float, curve: Curve) -> float | None:
    """Return the update at which a validation curve first reaches a perplexity, between two validations."""
    for (before, high), (after, low) in itertools.pairwise(curve):
        if high > perplexity >= low:
            return before + (after - before) * math.log(high / perplexity) / math.log(high / low)
    return None


def studies() -> dict[str, Described]:
    found = {path.stem: _registered(path) for path in sorted(STUDIES.glob("*.yaml"))}
    schema = OmegaConf.structured(Described)
    earlier = OmegaConf.load(EARLIER)
    for name in earlier:
        found[str(name)] = OmegaConf.to_object(OmegaConf.merge(schema, earlier[name]))  # type: ignore[assignment]
    return found


def _registered(path: Path) -> Described:
    study = study_plan.load(path)
    return Described(
        title=study.question, text=study.text, metric=study.metric,
        also=_further_metrics(study),
        groups=["all", *study.groups, *study.tasks] if study.tasks else [*study.groups] or list(TIERS),
        strata=study.strata, rows={name: row.title for name, row in study.rows.items()},
        contrasts=study.contrasts,
        facts=[*_facts(study), *(f"Amended on {one}" for one in study_plan.amendments(path.stem)),
               *(f"Not as planned: {one}" for one in study_plan.abandoned(path.stem))], entry=study.entry,
    )  # fmt: skip


def _further_metrics(study: Study) -> list[str]:
    if study.tasks:
        return [*OF_GATES.values()]
    named = [one.metric for one in study.contrasts if one.metric]
    return [metric for metric in dict.fromkeys([*TRANSLATED, *named]) if metric != study.metric]


def _facts(study: Study) -> list[str]:
    facts = [f"Rule: {study.rule}", f"When a row is given up: {study.kill}", f"Data: `{study.prepare}`"]
    facts += [] if study.tasks else [SCORED.format(study=study)]
    facts += [f"{study.updates} updates. Options of all rows: `{study.options}`"]
    common = len(shlex.split(study.options))
    for name, row in study.rows.items():
        own = shlex.join(study.options_of(name)[common:]) or "nothing else"
        rate = f", at the learning rate of {study.rows[row.rate].title}" if row.rate not in ("", name) else ""
        facts.append(f"{row.title}: `{own}`{rate}")
    return facts


def lines_of(study: str, lines: Iterable[dict[str, str]]) -> Lines:
    return Lines([line for line in lines if line["study"] == study])


@functools.cache
def over_sentences(folder: Path, row: str, control: str) -> dict[str, tuple[float, float, float]]:
    """Return BLEU of a row less its control over all pairs, by test set, with its 95% interval.

    The interval covers seeds and test sentences. The set of the study's own DATA has an empty name.

    Args:
        folder: of the study's n-gram counts; without those of both rows the result is empty.
    """
    files = []
    for name in (row, control):
        paths = folder.glob(f"{name}-[0-9]*.npz")
        files.append({int(path.stem.rpartition("-")[2]): path for path in paths})
    if not all(files):
        return {}
    first = next(iter(files[0].values()))
    intervals = {}
    for test_set, pairs in sentences.sets_of(first).items():
        statistics = []
        for of_row in files:
            statistics.append({seed: sentences.read(path, pairs) for seed, path in of_row.items()})
        intervals[test_set] = contrasts.bootstrap(*statistics, sentences.bleu)
    return intervals


def is_relative(metric: str) -> bool:
    """Whether differences are in percent: of perplexities, whose logarithms are compared."""
    return "perplexity" in metric


def word_of(difference: Difference, metric: str) -> str:
    less_is_better = is_relative(metric) or "spread" in metric
    return difference.word(less_is_better, WIDE_RATIO if is_relative(metric) else WIDE)


def scaled(values: Values, metric: str) -> Values:
    """The figures as they are compared: logarithms of perplexities."""
    if not is_relative(metric):
        return values
    return {row: {seed: math.log(value) for seed, value in of_row.items()} for row, of_row in values.items()}


def compare(
    lines: Lines, asked: Sequence[Contrast], metric: str, strata: Sequence[str] = ()
) -> list[tuple[Contrast, Difference]]:
    """The contrasts of which there are runs; primary ones with Holm's p, over all primary ones that are asked."""
    found: list[Difference | None] = []
    for one in asked:
        values = scaled(lines.values(metric, one.group), metric)
        error = contrasts.pooled_error(contrasts.of_stratum(values, strata, one.row, one.control))
        difference = contrasts.difference(values.get(one.row, {}), values.get(one.control, {}), error)
        if difference and metric == "bleu" and one.group == "all":
            difference = with_sentences(difference, lines, one)
        found.append(difference)
    family = [at for at, one in enumerate(asked) if one.primary]
    adjusted = dict(zip(family, with_holm([found[at] for at in family]), strict=True))
    found = [adjusted.get(at, of_one) for at, of_one in enumerate(found)]
    return [(one, of_one) for one, of_one in zip(asked, found, strict=True) if of_one]


def with_sentences(difference: Difference, lines: Lines, contrast: Contrast) -> Difference:
    """Return a difference of BLEU with its interval over sentences, if they were kept."""
    folder = SENTENCES / lines.lines[0]["study"]
    interval = over_sentences(folder, contrast.row, contrast.control).get("")
    if interval is None:
        return difference
    _, low, high = interval
    return replace(difference, over_sentences=(low, high))


def with_holm(family: Sequence[Difference | None]) -> list[Difference | None]:
    """The differences of a family with Holm's p; None is one that has no runs."""
    adjusted = contrasts.holm([one.p if one else math.nan for one in family])
    return [one and replace(one, p=p) for one, p in zip(family, adjusted, strict=True)]


def percent(value: float) -> float:
    return 100 * math.expm1(value)


def shown(found: Difference, metric: str) -> str:
    """Such as `-14.3% (-15.9 to -12.7)`, or `-6.3% (one seed)`."""
    scale, unit = (percent, "%") if is_relative(metric) else (float, "")
    if math.isnan(found.half_width):
        return f"{scale(found.mean):+.1f}{unit} ({word_of(found, metric)})"
    return f"{scale(found.mean):+.1f}{unit} ({scale(found.low):+.1f} to {scale(found.high):+.1f})"
