"""Every table and figure of the studies, made of `results/results.csv`.

    python benchmarks/tables.py write                                        # results/STUDY.md, and a picture
    python benchmarks/tables.py show catalogs dense_heated dense high bleu   # one contrast, as pages quote it
    python benchmarks/tables.py check                                        # figures that pages quote, by quoted.yaml
    python benchmarks/tables.py update                                       # puts them and their words there

Studies are described by `studies/*.yaml`, registered before they ran, and by `earlier.yaml`, which ran before there was
such a rule.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

import altair as alt
import click
import contrasts
import study_plan
from contrasts import FEW_RUNS, HIGHER, LOWER, NONE, ONE_SEED, Difference, Values
from omegaconf import MISSING, OmegaConf
from study import (
    MULTIPLICATIONS,
    NO_SEED,
    OF_GATES,
    PARAMETERS,
    PERPLEXITY,
    RESULTS,
    ROOT,
    SCORE,
    STEP,
    read_results,
)
from study_plan import STUDIES, Contrast, Entry, Study

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import write_text
from fairseq_mtmoe.io.pages import markdown_table

BENCHMARKS = ROOT / "benchmarks"
EARLIER, QUOTED = BENCHMARKS / "earlier.yaml", BENCHMARKS / "quoted.yaml"
PICTURE = RESULTS.with_name("options.png")
TITLES = {"bleu": "BLEU", "chrf": "chrF++", PERPLEXITY: "Validation perplexity"}
TIERS = ("all", "high", "mid", "low")
AGREES, DISAGREES, NOT_JUDGED = "agrees", "disagrees", "not judged"
WORDS = "|".join((HIGHER, LOWER, NONE, AGREES, DISAGREES, ONE_SEED, FEW_RUNS))
FIGURE = re.compile(rf"[+-][\d.]+%? \((?:[+-][\d.]+ to [+-][\d.]+|{ONE_SEED}|{FEW_RUNS})\)(, (?:{WORDS})\b)?")
DASH = "–"
ROW = 36  # pixels of the picture
READ = (
    "Differences are between runs of the same seed, in percent where the metric is a perplexity. In parentheses: 95% "
    "intervals; their error is pooled over {pooled}. Primary contrasts have p after Holm, and a word: *higher* or "
    "*lower* where the interval leaves 0 out and p is below 0.05. Other contrasts have p without a correction, and no "
    "word. ± is half of a mean's 95% interval, without what all rows share by having the same seed: compare rows of "
    "different seeds by their differences alone. One seed has no interval."
)
SCORED = (
    "Scores are by `mtmoe evaluate {study.score}` with the mean of the last {study.averaged} checkpoints; *all* is the "
    "mean of the pairs. Validation perplexity is that of the last checkpoint; *all* is over all tokens."
)
ALIKE = (
    "rows of several seeds that have the same of {strata} in their names, or none of them{since}; between such groups "
    "it is that of the two rows"
)


@dataclass
class Described:
    """What a page says of a study that is not in the table.

    Attributes:
        title: what was compared.
        text: data, models, scale.
        old: what has changed in the code since, if anything.
        metric: of the first table and of contrasts.
        also: further metrics, a table each.
        groups: tiers or tasks, the tables' columns.
        strata: parts of the names of rows that share an error, see `contrasts.of_stratum`.
        rows: titles by name, in the tables' order.
        beside: controls: every row is compared with each, in every group, and those over all pairs are primary.
        contrasts: others.
        facts: lines for the end of the page, such as commands.
        entry: what the dense row must reach; registered studies have it.
    """

    title: str = MISSING
    text: str = ""
    old: str = ""
    metric: str = PERPLEXITY
    also: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=lambda: list(TIERS))
    strata: list[str] = field(default_factory=list)
    rows: dict[str, str] = field(default_factory=dict)
    beside: list[str] = field(default_factory=list)
    contrasts: list[Contrast] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    entry: Entry | None = None

    def compared(self, metric: str) -> list[Contrast]:
        is_own = metric == self.metric
        found = [
            Contrast(row, control, group, metric, is_own and group == self.groups[0])
            for at, control in enumerate(self.beside) for group in self.groups
            for row in self.rows if row not in self.beside[: at + 1]
        ]  # fmt: skip
        return found + [one for one in self.contrasts if (one.metric or self.metric) == metric]


@dataclass
class Panel:
    """A part of the picture: contrasts of a study by row, each with its control."""

    title: str = MISSING
    study: str = MISSING
    metric: str = PERPLEXITY
    groups: list[str] = field(default_factory=list)
    controls: dict[str, str] = field(default_factory=dict)


@dataclass
class Quoted:
    """A figure that a page quotes.

    Attributes:
        page: its path from the repository's root.
        line: words of the line in which it stands.
        control: empty for a mean instead of a difference.
        paper: the paper's difference, or its sign; the line then has the verdict, too.
    """

    page: str = MISSING
    line: str = MISSING
    study: str = MISSING
    row: str = MISSING
    control: str = ""
    group: str = "all"
    metric: str = ""
    paper: float | None = None


Told = tuple[Quoted, str, str]  # with its figure and, of a difference, its word or verdict


@dataclass
class Pages:
    picture: list[Panel] = field(default_factory=list)
    quoted: list[Quoted] = field(default_factory=list)


@dataclass(frozen=True)
class Lines:
    """Lines of the table, a study's."""

    lines: Sequence[dict[str, str]]

    def values(self, metric: str, group: str) -> dict[str, dict[int, float]]:
        """By row and seed a tier's or task's figure, that of the last update."""
        found: dict[str, dict[int, tuple[int, float]]] = {}
        for line in self.lines:
            if line["metric"] != metric or group != (line["task"] or line["tier"]):
                continue
            of_row, seed, update = found.setdefault(line["row"], {}), int(line["seed"]), int(line["update"] or 0)
            if seed not in of_row or update >= of_row[seed][0]:
                of_row[seed] = update, float(line["value"])
        return {row: {seed: value for seed, (_, value) in of_row.items()} for row, of_row in found.items()}

    def provenance(self) -> str:
        """Commits with versions, processors and days, each in the table's order."""
        commits = dict.fromkeys(f"{line['commit']} ({line['version']})" for line in self.lines)
        parts = [f"commit {', '.join(commits)}"]
        parts += [", ".join(dict.fromkeys(line[key] for line in self.lines)) for key in ("processor", "date")]
        return "; ".join(parts)


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
        also=[*OF_GATES.values()] if study.tasks else [PERPLEXITY, *(["chrf"] if study.metric == "bleu" else [])],
        groups=["all", *study.groups, *study.tasks] if study.tasks else [*study.groups] or list(TIERS),
        strata=study.strata, rows={name: row.title for name, row in study.rows.items()},
        contrasts=study.contrasts,
        facts=[*_facts(study), *(f"Amended on {one}" for one in study_plan.amendments(path.stem))], entry=study.entry,
    )  # fmt: skip


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


def is_relative(metric: str) -> bool:
    """Whether differences are in percent: of perplexities, whose logarithms are compared."""
    return "perplexity" in metric


def _scaled(values: Values, metric: str) -> Values:
    if not is_relative(metric):
        return values
    return {row: {seed: math.log(value) for seed, value in of_row.items()} for row, of_row in values.items()}


def compare(
    lines: Lines, asked: Sequence[Contrast], metric: str, strata: Sequence[str] = ()
) -> list[tuple[Contrast, Difference]]:
    """The contrasts of which there are runs; primary ones with Holm's p, over all primary ones that are asked."""
    found: list[Difference | None] = []
    for one in asked:
        values = _scaled(lines.values(metric, one.group), metric)
        error = contrasts.pooled_error(contrasts.of_stratum(values, strata, one.row, one.control))
        found.append(contrasts.difference(values.get(one.row, {}), values.get(one.control, {}), error))
    family = [at for at, one in enumerate(asked) if one.primary]
    adjusted = dict(zip(family, with_holm([found[at] for at in family]), strict=True))
    found = [adjusted.get(at, of_one) for at, of_one in enumerate(found)]
    return [(one, of_one) for one, of_one in zip(asked, found, strict=True) if of_one]


def with_holm(family: Sequence[Difference | None]) -> list[Difference | None]:
    """The differences of a family with Holm's p; None is one that has no runs."""
    adjusted = contrasts.holm([one.p if one else math.nan for one in family])
    return [one and replace(one, p=p) for one, p in zip(family, adjusted, strict=True)]


def _percent(value: float) -> float:
    return 100 * math.expm1(value)


def shown(found: Difference, metric: str) -> str:
    """Such as `-14.3% (-15.9 to -12.7)`, or `-6.3% (one seed)`."""
    scale, unit = (_percent, "%") if is_relative(metric) else (float, "")
    if math.isnan(found.half_width):
        return f"{scale(found.mean):+.1f}{unit} ({found.word})"
    return f"{scale(found.mean):+.1f}{unit} ({scale(found.low):+.1f} to {scale(found.high):+.1f})"


def verdict(found: Difference, paper: float) -> str:
    if math.isnan(found.half_width) or found.word == NONE:
        return found.word
    return AGREES if (found.word == HIGHER) == (paper > 0) else DISAGREES


# ---- pages ----


def page(name: str, study: Described, lines: Lines) -> str:
    parts = [f"# {study.title}", study.text]
    if study.old:
        parts.append(f"**Old**: {study.old}")
    parts += [f"Made by `python benchmarks/tables.py write` of [results.csv](results.csv), study `{name}`: "
              f"{lines.provenance()}.", READ.format(pooled=_pooled(study))]  # fmt: skip
    if study.entry:
        parts += _entry(study.entry, lines)
    for metric in (study.metric, *study.also):
        table = _means(study, lines, metric)
        if not table:
            continue
        parts += [f"## {TITLES.get(metric, metric.capitalize())}", table]
        compared = compare(lines, study.compared(metric), metric, study.strata)
        if compared:
            parts += [_contrast_table(study, compared, metric)]
    parts += _costs(study, lines)
    parts += _rates(lines, SCORE if study.metric == SCORE else PERPLEXITY, study.rows)
    if study.facts:
        parts += ["## How it was made", "\n".join(f"- {fact}" for fact in study.facts)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _pooled(study: Described) -> str:
    if not study.strata:
        return "all rows of several seeds"
    strata = ", ".join(f"`{part.strip(', _')}`" for part in study.strata)
    return ALIKE.format(strata=strata, since=", which was decided after the runs" if study.old else "")


def _means(study: Described, lines: Lines, metric: str) -> str:
    """A row for each system, a column for each group; intervals are of a row beside others of its seeds."""
    by_group = {group: lines.values(metric, group) for group in study.groups}
    by_group = {group: values for group, values in by_group.items() if values}
    rows = []
    for name, title in study.rows.items():
        seeds = max((len(values.get(name, {})) for values in by_group.values()), default=0)
        if seeds:
            rows.append([title, seeds, *(_mean(name, values, study.strata) for values in by_group.values())])
    return markdown_table(["row", "seeds", *by_group], rows) if rows else ""


def _mean(row: str, values: Values, strata: Sequence[str]) -> str:
    of_row = values.get(row, {})
    if not of_row:
        return DASH
    error = contrasts.pooled_error(contrasts.of_stratum(values, strata, row))
    half = error.half_width(1 / len(of_row)) if len(of_row) > 1 else math.nan
    return f"{fmean(of_row.values()):.1f}" + ("" if math.isnan(half) else f" ±{half:.1f}")


def _contrast_table(study: Described, compared: Sequence[tuple[Contrast, Difference]], metric: str) -> str:
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for one, found in compared:
        p = "" if math.isnan(found.p) else f", p {found.p:.3f}{' after Holm' if one.primary else ''}"
        word = f": {found.word}" if one.primary and not math.isnan(found.half_width) else ""
        cells.setdefault((one.row, one.control), {})[one.group] = f"{shown(found, metric)}{word}{p}"
    columns = list(dict.fromkeys(one.group for one, _ in compared))
    rows = [[study.rows.get(row, row), study.rows.get(control, control), *(of.get(group, "") for group in columns)]
            for (row, control), of in cells.items()]  # fmt: skip
    return markdown_table(["row", "control", *columns], rows, 2 + len(columns))


def _costs(study: Described, lines: Lines) -> list[str]:
    """What each shape costs; rows that differ in no option of the model are one shape."""
    figures = {metric: lines.values(metric, "all") for metric in (PARAMETERS, MULTIPLICATIONS, *STEP)}
    rows = []
    for row, title in study.rows.items():
        if row not in figures[MULTIPLICATIONS]:
            continue
        parameters, multiplications, *step = (of[row][int(NO_SEED)] for of in figures.values())
        median, low, high = (f"{ratio:.2f}" for ratio in step)
        rows.append([title, f"{parameters / 1e6:.2f}", f"{multiplications / 1e6:.2f}", f"{median} ({low} to {high})"])
    if not rows:
        return []
    said = (
        "Multiplications are those of one source and one target token, in millions, without attention's products. A "
        "step is forward, backward and Adam on one thread; all shapes in turn in one process, 15 turns: median and "
        "quartiles. Rows that are not here have the shape of one that is, or were not timed."
    )
    head = ["row", "million parameters", "multiplications", "step / dense"]
    return ["## Cost", said, markdown_table(head, rows, (0, 3))]


def _rates(lines: Lines, metric: str, titles: dict[str, str]) -> list[str]:
    """The sweep of learning rates, where the table has one: rows such as `dense, rate 3e-3`."""
    swept: dict[str, dict[str, float]] = {}
    for name, of_seeds in lines.values(metric, "all").items():
        row, is_swept, rate = name.partition(", rate ")
        if is_swept:
            swept.setdefault(row, {})[rate] = fmean(of_seeds.values())
    best = {row: (max if metric == SCORE else min)(of_row, key=of_row.__getitem__) for row, of_row in swept.items()}
    rows = [
        [titles.get(row, row), rate, f"{value:.2f}", "yes" if rate == best[row] else ""]
        for row, of_row in swept.items() for rate, value in sorted(of_row.items(), key=lambda one: float(one[0]))
    ]  # fmt: skip
    head = ["row", "learning rate", f"{metric.replace('valid ', 'validation ')}, all", "chosen"]
    said = "Shorter runs of one other seed; the rate of the best one holds for all rows that name it below."
    return ["## Learning rates", said, markdown_table(head, rows)] if rows else []


def _entry(entry: Entry, lines: Lines) -> list[str]:
    bleu = lines.values("bleu", "all").get(entry.row)
    kinds = ("model", "shuffled", "trigrams")
    model, shuffled, trigrams = (lines.values(f"perplexity, {kind}", "all").get(entry.row) for kind in kinds)
    if not (bleu and model and shuffled and trigrams):
        return []
    mean = {kind: fmean(of.values()) for kind, of in zip(kinds, (model, shuffled, trigrams), strict=True)}
    rows = [
        ["BLEU, mean over all pairs", f"at least {entry.bleu:g}", f"{fmean(bleu.values()):.1f}",
         fmean(bleu.values()) >= entry.bleu],
        ["perplexity with shuffled sources / with its own", f"at least {entry.shuffled:g}",
         f"{mean['shuffled'] / mean['model']:.2f}", mean["shuffled"] >= entry.shuffled * mean["model"]],
        ["perplexity / that of source-free trigrams", f"at most {entry.source_free:g}",
         f"{mean['model'] / mean['trigrams']:.2f}", mean["model"] <= entry.source_free * mean["trigrams"]],
    ]  # fmt: skip
    cells = [[what, asked, found, "yes" if met else "no"] for what, asked, found, met in rows]
    return ["## Does the dense row translate?", markdown_table(["what", "asked", "found", "met"], cells, (0, 1, 3))]


# ---- the picture of docs/results ----


def draw(panels: Sequence[Panel], lines: Sequence[dict[str, str]], known: dict[str, Described], path: Path) -> None:
    """Contrasts with 95% intervals, hollow without one; panels have the same rows, which the first names."""
    points = [points_of(panel, lines, known[panel.study]) for panel in panels]
    drawn = {point["row"] for of_panel in points for point in of_panel}
    names = [name for name in dict.fromkeys(label for panel in panels for label in labels(panel, known[panel.study]))
             if name in drawn]  # fmt: skip
    charts = [_panel(panel, of_panel, names, panel is panels[0])
              for panel, of_panel in zip(panels, points, strict=True)]  # fmt: skip
    alt.hconcat(*charts).save(path, scale_factor=1.5)


def labels(panel: Panel, study: Described) -> list[str]:
    return [f"{study.rows[row]} beside {study.rows[control]}" for row, control in panel.controls.items()]


def points_of(panel: Panel, lines: Sequence[dict[str, str]], study: Described) -> list[dict[str, str | float]]:
    """A point for each contrast and group of a panel that has runs; `low` and `high` are missing without interval."""
    scale = _percent if is_relative(panel.metric) else float
    names = dict(zip(panel.controls, labels(panel, study), strict=True))
    asked = [Contrast(row, control, group) for group in panel.groups for row, control in panel.controls.items()]
    points: list[dict[str, str | float]] = []
    for one, found in compare(lines_of(panel.study, lines), asked, panel.metric, study.strata):
        ends = {} if math.isnan(found.half_width) else {"low": scale(found.low), "high": scale(found.high)}
        points.append({"row": names[one.row], "group": one.group, "mean": scale(found.mean), **ends})
    return points


def _panel(
    panel: Panel, points: list[dict[str, str | float]], names: list[str], is_first: bool
) -> alt.LayerChart:  # fmt: skip
    unit = "%" if is_relative(panel.metric) else TITLES.get(panel.metric, panel.metric)
    base = alt.Chart(alt.InlineData(points)).encode(
        y=alt.Y("row:N", title=None, scale=alt.Scale(domain=names), axis=alt.Axis(labelLimit=500, labels=is_first)),
        yOffset=alt.YOffset("group:N", sort=panel.groups),
        color=alt.Color("group:N", title=None, sort=panel.groups, legend=alt.Legend(orient="bottom")),
    )
    axis = alt.X("mean:Q", title=f"difference, {unit}", scale=alt.Scale(padding=8))
    zero = alt.Chart(alt.InlineData([{"mean": 0}])).mark_rule(color="gray").encode(x="mean:Q")
    intervals = base.transform_filter("isValid(datum.low)").mark_rule().encode(x="low:Q", x2="high:Q")
    means = base.mark_point(size=28, opacity=1).encode(x=axis)
    full = means.transform_filter("isValid(datum.low)").encode(fill=alt.Fill("group:N", legend=None))
    layers = alt.layer(zero, intervals, means, full)
    return layers.properties(title=panel.title, width=240, height=alt.Step(ROW, **{"for": "position"}))


# ---- figures that pages quote ----


def load_pages(path: Path = QUOTED) -> Pages:
    found: Pages = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Pages), OmegaConf.load(path)))
    return found


def differences(
    quoted: Sequence[Quoted], lines: Sequence[dict[str, str]], known: dict[str, Described]
) -> list[Difference | None]:  # fmt: skip
    """The difference that each figure is, None of a mean or of what the table does not have.

    Those of a page that are no primary contrasts of their study are one family of Holm's.
    """
    found: list[Difference | None] = []
    families: dict[str, dict[tuple[str, ...], list[int]]] = {}
    for at, one in enumerate(quoted):
        study = known[one.study]
        metric, key = one.metric or study.metric, (one.row, one.control, one.group)
        same = [each for each in study.compared(metric) if (each.row, each.control, each.group) == key]
        asked = next((each for each in same if each.primary), Contrast(*key))
        family = [each for each in study.compared(metric) if each.primary] if asked.primary else [asked]
        compared = compare(lines_of(one.study, lines), family if one.control else [], metric, study.strata)
        found.append(next((of_one for each, of_one in compared if each == asked), None))
        if one.control and not asked.primary:
            families.setdefault(one.page, {}).setdefault((one.study, metric, *key), []).append(at)
    for family_of_page in families.values():
        adjusted = with_holm([found[places[0]] for places in family_of_page.values()])
        for places, of_one in zip(family_of_page.values(), adjusted, strict=True):
            for at in places:
                found[at] = of_one
    return found


def text_of(
    quoted: Quoted, found: Difference | None, lines: Sequence[dict[str, str]], known: dict[str, Described]
) -> list[str]:  # fmt: skip
    """What the line of the page must have: the figure, and of a difference its word or verdict.

    Raises:
        UserError: the table has no such figure.
    """
    metric = quoted.metric or known[quoted.study].metric
    if quoted.control and found:
        return [shown(found, metric), found.word if quoted.paper is None else verdict(found, quoted.paper)]
    values = lines_of(quoted.study, lines).values(metric, quoted.group).get(quoted.row)
    if quoted.control or not values:
        raise UserError(f"`quoted.yaml` must name figures of the table, but {quoted} is none.")
    return [f"{fmean(values.values()):.1f}"]


def told(quoted: Sequence[Quoted]) -> list[Told]:
    lines, known = read_results(RESULTS), studies()
    found = [text_of(one, of_one, lines, known)
             for one, of_one in zip(quoted, differences(quoted, lines, known), strict=True)]  # fmt: skip
    return [(one, figure, "".join(words)) for one, (figure, *words) in zip(quoted, found, strict=True)]


def misquoted(root: Path = ROOT, all_quoted: Sequence[Quoted] | None = None) -> Iterator[str]:
    """What pages must say and do not: a sentence each."""
    quoted = load_pages().quoted if all_quoted is None else all_quoted
    pages = {one.page: (root / one.page).read_text(encoding="utf-8").splitlines() for one in quoted}
    judged: dict[tuple[str, int], list[Told]] = {}
    for one, figure, word in told(quoted):
        places = [at for at, line in enumerate(pages[one.page]) if one.line in line and figure in line]
        if not places:
            yield f"{one.page}: the line with `{one.line}` must have `{figure}`, but has not."
        elif word:
            judged.setdefault((one.page, places[0]), []).append((one, figure, word))
    for (page_name, at), of_line in judged.items():
        is_said, wanted = _says(pages[page_name], at, of_line)
        if not is_said:
            yield f"{page_name}: the line with `{of_line[0][0].line}` must have `{wanted}`, but has not."


def updated(page_lines: Sequence[str], of_page: Sequence[Told]) -> list[str]:
    """A page's lines with the differences that it quotes, and their words, as the table has them now.

    Of figures named by the same words the first is in the first line that has these words, and so on; or all are in
    the only such line. Means stay, and so do cells *not judged* of differences that no paper has.
    """
    found, by_words = list(page_lines), dict[str, list[Told]]()
    for one in of_page:
        by_words.setdefault(one[0].line, []).append(one)
    for words, of_words in by_words.items():
        places = [at for at, line in enumerate(page_lines) if words in line]
        for at in places if len(places) in (1, len(of_words)) else ():
            of_line = of_words if len(places) == 1 else [of_words[places.index(at)]]
            of_line = [one for one in of_line if one[2]]
            figures = iter(of_line)
            found[at] = FIGURE.sub(lambda old, figures=figures: _said(old, next(figures, None)), found[at])
            cells = [cell.strip() for cell in found[at].split("|")]
            column = _column(found, at, "verdict")
            if of_line and column and not _is_unjudged(cells[column], of_line):
                cells[column] = _words(of_line)
                found[at] = " | ".join(cells).strip()
    return found


def _said(old: re.Match[str], new: Told | None) -> str:
    """What takes the place of a figure in a page, with its word if the old one has one."""
    if not new:
        return old[0]
    return f"{new[1]}, {new[2]}" if old[1] else new[1]


def _says(page_lines: Sequence[str], at: int, of_line: Sequence[Told]) -> tuple[bool, str]:
    """Whether a line has the words of its figures: in its table's column `verdict`, else behind each figure."""
    column = _column(page_lines, at, "verdict")
    if not column:
        wanted = [f"{figure}, {word}" for _, figure, word in of_line]
        return all(text in page_lines[at] for text in wanted), "`, `".join(wanted)
    cell = page_lines[at].split("|")[column].strip()
    return cell == _words(of_line) or _is_unjudged(cell, of_line), _words(of_line)


def _words(of_line: Sequence[Told]) -> str:
    return "; ".join(word for *_, word in of_line)


def _is_unjudged(cell: str, of_line: Sequence[Told]) -> bool:
    return cell == NOT_JUDGED and all(one.paper is None for one, *_ in of_line)


def _column(page_lines: Sequence[str], at: int, name: str) -> int:
    """The place of a column among a table's cells; 0 outside of tables, and where there is no such column."""
    first = at
    while first and page_lines[first - 1].startswith("|"):
        first -= 1
    head = [cell.strip() for cell in page_lines[first].split("|")]
    return head.index(name) if name in head and first != at else 0


# ---- commands ----


@click.group()
def main() -> None:
    """Tables and figures of the studies."""


@main.command()
def write() -> None:
    """Write the page of every study that has figures, and the picture of docs/results."""
    lines, known = read_results(RESULTS), studies()
    for name, study in known.items():
        of_study = lines_of(name, lines)
        if of_study.lines:
            write_text(RESULTS.with_name(f"{name}.md"), page(name, study, of_study))
    draw(load_pages().picture, lines, known, PICTURE)


@main.command()
@click.argument("study")
@click.argument("row")
@click.argument("control")
@click.argument("group", default="all")
@click.argument("metric", default="")
def show(study: str, row: str, control: str, group: str, metric: str) -> None:
    """Show a contrast as pages quote it, and its word."""
    quoted = Quoted("", "", study, row, control, group, metric)
    lines, known = read_results(RESULTS), studies()
    (found,) = differences([quoted], lines, known)
    click.echo(": ".join(text_of(quoted, found, lines, known)))


@main.command()
def update() -> None:
    """Put differences and their words into the pages that quote them, and show the lines that change.

    Then read these lines: what else they say may no longer hold.
    """
    quoted = load_pages().quoted
    found = told(quoted)
    for name in dict.fromkeys(one.page for one in quoted):
        text = (ROOT / name).read_text(encoding="utf-8")
        new = updated(text.splitlines(), [one for one in found if one[0].page == name])
        for before, after in zip(text.splitlines(), new, strict=True):
            if before != after:
                click.echo(f"{name}\n- {before}\n+ {after}")
        write_text(ROOT / name, "\n".join(new) + "\n")


@main.command()
def check() -> None:
    """Compare the figures that pages quote with the table."""
    wrong = list(misquoted())
    for sentence in wrong:
        click.echo(sentence)
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from error
