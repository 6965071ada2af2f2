"""Figures that README and docs quote, by `quoted.yaml`: whether they are those of the table."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import described
from contrasts import BETTER, FEW_RUNS, NONE, NONE_WIDE, ONE_SEED, WORSE, Difference
from described import UPDATES_TO, Described, Lines
from omegaconf import MISSING, OmegaConf
from study_figures import PARAMETERS, RESULTS, ROOT, STEP
from study_plan import Contrast, read_table

from fairseq_mtmoe.core.errors import UserError

QUOTED = ROOT / "benchmarks" / "quoted.yaml"
AGREES, DISAGREES, EXCLUDES, POST_HOC = "agrees", "disagrees", "excludes the paper's figure", "post hoc"
ALL_WORDS = (BETTER, WORSE, NONE_WIDE, NONE, AGREES, DISAGREES, EXCLUDES, POST_HOC, ONE_SEED, FEW_RUNS)
WORDS = "|".join(map(re.escape, ALL_WORDS))


@dataclass
class Curve:
    """A line of the picture: rows of a study by cost. One without a timed step has the step of the first."""

    study: str = MISSING
    study_title: str = MISSING  # of its panel
    title: str = MISSING
    rows: list[str] = field(default_factory=list)


@dataclass
class Quoted:
    """A figure that a page quotes."""

    page: str = MISSING  # its path from the repository's root
    line: str = MISSING  # words of the line in which it stands
    study: str = MISSING
    row: str = MISSING
    control: str = ""  # empty for a mean instead of a difference
    group: str = "all"
    metric: str = ""
    paper: float | None = None  # the paper's difference, as it is shown
    by_seed: bool = False  # whether the difference of each seed is quoted, and p of these seeds alone


Told = tuple[Quoted, str, str]  # with its figure and, of a difference, its word or verdict


@dataclass
class Pages:
    picture: list[Curve] = field(default_factory=list)
    quoted: list[Quoted] = field(default_factory=list)


def verdict(difference: Difference, metric: str, paper: float | None, is_named: bool = True) -> str:
    """Return the word of a difference, and where a paper has one, what it says of the paper's.

    Args:
        paper: the paper's difference, as it is shown: in percent of a perplexity.
        is_named: whether the study named the contrast; others have no word of their own.
    """
    word = described.word_of(difference, metric)
    if math.isnan(difference.half_width):
        return word
    if paper is None:
        return word if is_named else POST_HOC
    is_shown = is_named and word in (BETTER, WORSE)
    scale = described.percent if described.is_relative(metric) else float
    if is_shown and (difference.mean > 0) != (paper > 0):
        return DISAGREES
    if not scale(difference.low) <= paper <= scale(difference.high):
        return EXCLUDES
    if not is_named:
        return POST_HOC
    return AGREES if is_shown else NONE_WIDE


def load_pages(path: Path = QUOTED) -> Pages:
    found: Pages = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Pages), OmegaConf.load(path)))
    return found


Key = tuple[str, str, str, str]  # metric, row, control, group


def named(study: Described, lines: Lines) -> dict[Key, Difference | None]:
    """Return the contrasts that a study names, with p after Holm: primary ones of a metric, and all others.

    Pages do not change these two families, whatever they quote.
    """
    keys = [(one.metric or study.metric, one.row, one.control, one.group) for one in study.contrasts if not one.primary]
    of_study = dict(zip(keys, described.with_holm([_alone(study, lines, key) for key in keys]), strict=True))
    for metric in (study.metric, *study.also):
        primary = [one for one in study.compared(metric) if one.primary]
        of_study |= {(metric, one.row, one.control, one.group): None for one in primary}
        compared = described.compare(lines, primary, metric, study.strata)
        of_study |= {(metric, one.row, one.control, one.group): difference for one, difference in compared}
    return of_study


def _alone(study: Described, lines: Lines, key: Key) -> Difference | None:
    metric, *contrast = key
    return next((found for _, found in described.compare(lines, [Contrast(*contrast)], metric, study.strata)), None)


def told(quoted: Sequence[Quoted]) -> list[Told]:
    """What the table has for each quoted figure."""
    lines, known = read_table(RESULTS), described.studies()
    of_studies = {name: described.lines_of(name, lines) for name in {one.study for one in quoted}}
    families = {name: named(known[name], of_study) for name, of_study in of_studies.items()}
    return [text_of(one, known[one.study], of_studies[one.study], families[one.study]) for one in quoted]


def text_of(quoted: Quoted, study: Described, lines: Lines, family: dict[Key, Difference | None]) -> Told:
    """Return what the line of the page must have: the figure, and of a difference its word or verdict.

    Raises:
        UserError: the table has no such figure.
    """
    metric = quoted.metric or study.metric
    values = lines.values(metric, quoted.group)
    row, control = (values.get(name) for name in (quoted.row, quoted.control))
    if not row or (quoted.control and not control):
        raise UserError(f"`quoted.yaml` must name figures of the table, but {quoted} is none.")
    if not control:
        return quoted, _mean(metric, row), ""
    if metric == PARAMETERS:
        return quoted, f"{fmean(row.values()) / fmean(control.values()) - 1:+.0%}", ""
    key = (metric, quoted.row, quoted.control, quoted.group)
    difference = family[key] if key in family else _alone(study, lines, key)
    if difference is None:
        raise UserError(f"`quoted.yaml` must name rows with seeds in common, but {quoted} has none.")
    if quoted.by_seed:
        seeds = [f"{row[seed] - control[seed]:+.1f}" for seed in sorted(row.keys() & control.keys())]
        return quoted, f"{', '.join(seeds[:-1])} and {seeds[-1]} (p {difference.paired:.2g})", ""
    return quoted, described.shown(difference, metric), verdict(difference, metric, quoted.paper, key in family)


def _mean(metric: str, of_row: dict[int, float]) -> str:
    """Return a mean as pages have it."""
    mean = fmean(of_row.values())
    if metric in STEP:
        return f"{mean:.2f}"
    return f"{mean:,.0f}" if metric.startswith(UPDATES_TO) else f"{mean:.1f}"


def misquoted(root: Path = ROOT, all_quoted: Sequence[Quoted] | None = None) -> Iterator[str]:
    """What pages must say and do not: a sentence each."""
    for quoted, figure, word in told(load_pages().quoted if all_quoted is None else all_quoted):
        page_lines = (root / quoted.page).read_text(encoding="utf-8").splitlines()
        places = [at for at, line in enumerate(page_lines) if quoted.line in line and figure in line]
        if not any(_says(page_lines, at, figure, word) for at in places):
            wanted = ", ".join(filter(None, (figure, word)))
            yield f"{quoted.page}: the line with `{quoted.line}` must have `{wanted}`, but has not."


def _says(page_lines: Sequence[str], at: int, figure: str, word: str) -> bool:
    """Whether a line has the word of its figure: in its table's column `verdict`, else behind it, if one is there."""
    verdict = _verdict(page_lines, at)
    if verdict:
        return not word or word in verdict.split("; ")
    said = re.search(rf"{re.escape(figure)}, ({WORDS})(?!\w)", page_lines[at])
    return not word or said is None or said[1] == word


def _verdict(page_lines: Sequence[str], at: int) -> str:
    """Return the cell of a table's row in the column `verdict`; empty where there is none."""
    head = at
    while head and page_lines[head - 1].startswith("|"):
        head -= 1
    names, cells = (re.split(r"(?<!\\)\|", page_lines[place]) for place in (head, at))
    by_name = {name.strip(): cell.strip() for name, cell in zip(names, cells, strict=False)}
    return by_name.get("verdict", "")
