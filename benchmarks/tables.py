"""Every table and figure of the studies, made of `results/results.csv`.

python benchmarks/tables.py write    # results/STUDY.md, and a picture
python benchmarks/tables.py check    # figures that pages quote, by quoted.yaml
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import altair as alt
import click
import contrasts
import described
from contrasts import Difference, Values
from described import SENTENCES, Described, Lines
from quotes import Curve, load_pages, misquoted
from study_figures import MULTIPLICATIONS, NO_SEED, OF_GATES, PARAMETERS, PERPLEXITY, RESULTS, SCORE, STEP
from study_plan import Contrast, Entry, read_table

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import write_text
from fairseq_mtmoe.core.tables import Table

PICTURE = RESULTS.with_name("cost.png")
TITLES = {"bleu": "BLEU", "chrf": "chrF++", PERPLEXITY: "Validation perplexity"}
DASH = "–"
OVER_SENTENCES = (
    "Seeds and test sentences are drawn 2,000 times: a hierarchical bootstrap of corpus BLEU. "
    "A difference of BLEU over all pairs has the word *better* or *worse* only where this "
    "interval leaves 0 out, too."
)
READ = (
    "Differences are between runs of the same seed, in percent where the metric is a perplexity. In parentheses: 95% "
    "intervals; their error is pooled over {pooled}. Primary contrasts have p after Holm, and a word: *better* or "
    "*worse* where the interval leaves 0 out, p is below 0.05, and so is p of the paired test of the same seeds alone. "
    "Other contrasts have p without a correction, and no word. ± is half of a mean's 95% interval, in percent of a "
    "perplexity, without what all rows share by having the same seed: compare rows of different seeds by "
    "their differences alone. One seed has no interval."
)
ALIKE = (
    "rows of several seeds that have the same of {strata} in their names, or none of them{since}; between such groups "
    "it is that of the two rows"
)


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
        tables = _means(study, lines, metric)
        if not tables:
            continue
        parts += [f"## {TITLES.get(metric, metric.capitalize())}", *tables]
        compared = described.compare(lines, study.compared(metric), metric, study.strata)
        if compared:
            parts += [_contrast_table(study, compared, metric)]
    parts += _over_sentences(study.contrasts, SENTENCES / name)
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


def _means(study: Described, lines: Lines, metric: str) -> list[str]:
    """Tables of means: all rows with figures of the groups; then rows of other tasks, which others begin with."""
    by_group = {group: lines.values(metric, group) for group in study.groups}
    by_group = {group: values for group, values in by_group.items() if values}
    strata = None if metric in OF_GATES.values() else study.strata  # some gates are frozen
    tables = [_table_of(study.rows, by_group, metric, strata)]
    in_groups = {row for values in by_group.values() for row in values}
    for name in (name for name in study.rows if name not in in_groups):
        of_row = [line for line in lines.lines if line["row"] == name and line["metric"] == metric and line["task"]]
        by_task = {line["task"]: lines.values(metric, line["task"]) for line in of_row}
        tables.append(_table_of({name: study.rows[name]}, by_task, metric))
    return [table for table in tables if table]


def _table_of(
    titles: dict[str, str], by_group: dict[str, Values], metric: str, strata: Sequence[str] | None = None
) -> str:
    """A row for each system, a column for each group; intervals are of a row among those of its seeds."""
    rows = []
    for name, title in titles.items():
        seeds = max((len(values.get(name, {})) for values in by_group.values()), default=0)
        if seeds:
            rows.append([title, seeds, *(_mean(name, values, metric, strata) for values in by_group.values())])
    return Table(["row", "seeds", *by_group], rows).in_markdown() if rows else ""


def _mean(row: str, values: Values, metric: str, strata: Sequence[str] | None = None) -> str:
    """A mean with half of its interval, in percent where differences are; or without `strata` alone."""
    of_row = values.get(row, {})
    if not of_row:
        return DASH
    half = math.nan if strata is None else _half_width(row, values, metric, strata)
    mean = f"{fmean(of_row.values()):.1f}"
    if math.isnan(half):
        return mean
    return f"{mean} ±{described.percent(half):.1f}%" if described.is_relative(metric) else f"{mean} ±{half:.1f}"


def _half_width(row: str, values: Values, metric: str, strata: Sequence[str]) -> float:
    """Return half of the 95% interval of a row's mean; NaN of one seed."""
    seeds = len(values[row])
    if seeds < 2:
        return math.nan
    alike = contrasts.of_stratum(described.scaled(values, metric), strata, row)
    return contrasts.pooled_error(alike).half_width(1 / seeds)


def _contrast_table(study: Described, compared: Sequence[tuple[Contrast, Difference]], metric: str) -> str:
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for one, found in compared:
        p = "" if math.isnan(found.p) else ", p < 0.001" if found.p < 0.001 else f", p {found.p:.3f}"
        p += " after Holm" if p and one.primary else ""
        word = f": {described.word_of(found, metric)}" if one.primary and not math.isnan(found.half_width) else ""
        cells.setdefault((one.row, one.control), {})[one.group] = f"{described.shown(found, metric)}{word}{p}"
    columns = list(dict.fromkeys(one.group for one, _ in compared))
    rows = [[study.rows.get(row, row), study.rows.get(control, control), *(of.get(group, "") for group in columns)]
            for (row, control), of in cells.items()]  # fmt: skip
    return Table(["row", "control", *columns], rows, texts=2 + len(columns)).in_markdown()


def _over_sentences(asked: Sequence[Contrast], folder: Path) -> list[str]:
    """Return a section with BLEU of contrasts over all pairs, for each test set that was kept."""
    rows = []
    for contrast in asked:
        if contrast.group != "all" or contrast.metric not in ("", "bleu"):
            continue
        intervals = described.over_sentences(folder, contrast.row, contrast.control)
        for name, (mean, low, high) in intervals.items():
            cell = f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"
            rows.append([contrast.row, contrast.control, name or "test", cell])
    if not rows:
        return []
    head = ["row", "control", "test set", "BLEU"]
    return ["## Over seeds and test sentences", OVER_SENTENCES, Table(head, rows, texts=4).in_markdown()]


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
        "quartiles. Dense has the common options alone. Rows without a line have one of these shapes, or dense's."
    )
    head = ["row", "million parameters", "multiplications", "step / dense"]
    return ["## Cost", said, Table(head, rows, texts=(0, 3)).in_markdown()]


def _rates(lines: Lines, metric: str, titles: dict[str, str]) -> list[str]:
    """The sweep of learning rates, where the table has one: rows such as `dense, rate 3e-3`."""
    swept: dict[str, dict[str, float]] = {}
    for name, of_seeds in lines.values(metric, "all").items():
        row, is_swept, rate = name.partition(", rate ")
        if is_swept:
            swept.setdefault(row, {})[rate] = fmean(of_seeds.values())
    best = {row: (max if metric == SCORE else min)(of_row, key=of_row.__getitem__) for row, of_row in swept.items()}
    of_gates = {name: lines.values(name, "all") for name in OF_GATES.values()}
    of_gates = {name: values for name, values in of_gates.items() if any(", rate " in row for row in values)}
    rows = [
        [titles.get(row, row), rate, f"{value:.2f}",
         *(_mean(f"{row}, rate {rate}", of, name) for name, of in of_gates.items()),
         "yes" if rate == best[row] else ""]
        for row, of_row in swept.items() for rate, value in sorted(of_row.items(), key=lambda one: float(one[0]))
    ]  # fmt: skip
    head = ["row", "learning rate", f"{metric.replace('valid ', 'validation ')}, all", *of_gates, "chosen"]
    said = "Shorter runs of one other seed; the rate of the best one holds for all rows that name it below."
    return ["## Learning rates", said, Table(head, rows).in_markdown()] if rows else []


def _entry(entry: Entry, lines: Lines) -> list[str]:
    bleu = lines.values("bleu", "all").get(entry.row)
    kinds = ("model", "shuffled", "trigrams")
    model, shuffled, trigrams = (lines.values(f"perplexity, {kind}", "all").get(entry.row) for kind in kinds)
    if not (bleu and model and shuffled and trigrams):
        return []
    score = fmean(bleu.values())
    over_own = fmean(shuffled.values()) / fmean(model.values())
    over_trigrams = fmean(model.values()) / fmean(trigrams.values())
    rows = [
        ("BLEU, mean over all pairs", f"at least {entry.bleu:g}", f"{score:.1f}", score >= entry.bleu),
        ("perplexity with shuffled sources / with its own", f"at least {entry.shuffled:g}", f"{over_own:.2f}",
         over_own >= entry.shuffled),
        ("perplexity / that of source-free trigrams", f"at most {entry.source_free:g}", f"{over_trigrams:.2f}",
         over_trigrams <= entry.source_free),
    ]  # fmt: skip
    cells = [[*texts, "yes" if is_met else "no"] for *texts, is_met in rows]
    table = Table(["what", "asked", "found", "met"], cells, texts=(0, 1, 3))
    return ["## Does the dense row translate?", table.in_markdown()]


# ---- the picture of BLEU over cost ----


def draw(curves: Sequence[Curve], lines: Sequence[dict[str, str]], known: dict[str, Described], path: Path) -> None:
    """Draw BLEU over the cost of training, a panel for each study."""
    panels = []
    for name in dict.fromkeys(curve.study for curve in curves):
        of_study = [curve for curve in curves if curve.study == name]
        panels.append(_panel(of_study, points_of(of_study, described.lines_of(name, lines), known[name])))
    alt.hconcat(*panels).resolve_scale(color="independent").save(path, scale_factor=1.5)


def points_of(curves: Sequence[Curve], lines: Lines, study: Described) -> list[dict[str, str | float]]:
    """Return a point for each row that has runs: BLEU over all pairs, its interval, and its cost.

    A cost is the updates times the time of a step, as a multiple of the first point's.

    Raises:
        UserError: neither a row nor the first row of its curve has a timed step.
    """
    values, steps = lines.values("bleu", "all"), lines.values(STEP[0], "all")
    scored = [line for line in lines.lines if line["metric"] == "bleu" and line["tier"] == "all"]
    updates = {line["row"]: int(line["update"]) for line in scored}
    points: list[dict[str, str | float]] = []
    unit = math.nan
    run_rows = [(curve, row) for curve in curves for row in curve.rows if row in values]
    for curve, row in run_rows:
        step = steps.get(row) or steps.get(curve.rows[0])
        if not step:
            raise UserError(f"`{row}` must have a timed step: run `study_steps.py {curve.study} DATA --record`.")
        cost, mean = updates[row] * step[int(NO_SEED)], fmean(values[row].values())
        unit = cost if math.isnan(unit) else unit
        points.append({"curve": curve.title, "cost": cost / unit, "mean": mean})
        half = _half_width(row, values, "bleu", study.strata)
        if not math.isnan(half):
            points[-1] |= {"low": mean - half, "high": mean + half}
    return points


def _panel(curves: Sequence[Curve], points: list[dict[str, str | float]]) -> alt.LayerChart:
    log = alt.Scale(type="log", nice=False, padding=16)
    cost = alt.X("cost:Q", title="cost of training (dense of equal cost = 1)", scale=log)
    mean = alt.Y("mean:Q", title="BLEU, all pairs", scale=alt.Scale(zero=False, padding=8))
    titles = [curve.title for curve in curves]
    color = alt.Color("curve:N", sort=titles, title=None, legend=alt.Legend(labelLimit=400))
    base = alt.Chart(alt.InlineData(points)).encode(x=cost, color=color)
    intervals = base.transform_filter("isValid(datum.low)").mark_rule().encode(y="low:Q", y2="high:Q")
    marks = base.mark_point(filled=True, size=50, opacity=1).encode(y=mean)
    return alt.layer(intervals, base.mark_line().encode(y=mean), marks).properties(
        title=curves[0].study_title, width=360, height=260
    )


# ---- commands ----


@click.group()
def main() -> None:
    """Tables and figures of the studies."""


@main.command()
def write() -> None:
    """Write the page of every study that has figures, and the picture of BLEU over cost."""
    lines, known = read_table(RESULTS), described.studies()
    for name, study in known.items():
        of_study = described.lines_of(name, lines)
        if of_study.lines:
            write_text(RESULTS.with_name(f"{name}.md"), page(name, study, of_study))
    draw(load_pages().picture, lines, known, PICTURE)


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
