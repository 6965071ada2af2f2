"""Figures that README and docs quote, by `quoted.yaml`: whether they are those of the table, and how they get there."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from contrasts import FEW_RUNS, HIGHER, LOWER, NONE, ONE_SEED, Difference
from described import Described, Lines, compare, lines_of, shown, studies, with_holm
from omegaconf import MISSING, OmegaConf
from study_figures import PERPLEXITY, RESULTS, ROOT, read_results
from study_plan import Contrast

from fairseq_mtmoe.errors import UserError

QUOTED = ROOT / "benchmarks" / "quoted.yaml"
AGREES, DISAGREES, NOT_JUDGED = "agrees", "disagrees", "not judged"
WORDS = "|".join((HIGHER, LOWER, NONE, AGREES, DISAGREES, ONE_SEED, FEW_RUNS))
FIGURE = re.compile(rf"[+-][\d.]+%? \((?:[+-][\d.]+ to [+-][\d.]+|{ONE_SEED}|{FEW_RUNS})\)(, (?:{WORDS})\b)?")


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


def verdict(found: Difference, paper: float) -> str:
    if math.isnan(found.half_width) or found.word == NONE:
        return found.word
    return AGREES if (found.word == HIGHER) == (paper > 0) else DISAGREES


def load_pages(path: Path = QUOTED) -> Pages:
    found: Pages = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Pages), OmegaConf.load(path)))
    return found


Key = tuple[str, str, str, str]  # metric, row, control, group


def differences(
    quoted: Sequence[Quoted], lines: Sequence[dict[str, str]], known: dict[str, Described]
) -> list[Difference | None]:  # fmt: skip
    """The difference that each figure is, None of a mean or of what the table does not have.

    Holm's families are a study's primary contrasts, the others that it names, and all further ones that pages quote. So
    all pages say the same of each, and what else they quote changes no word of those that the study names.
    """
    named = {name: _named(known[name], lines_of(name, lines)) for name in {one.study for one in quoted}}
    found: list[Difference | None] = []
    families: dict[str, dict[Key, list[int]]] = {}
    for at, one in enumerate(quoted):
        study = known[one.study]
        key = (one.metric or study.metric, one.row, one.control, one.group)
        if not one.control or key in named[one.study]:
            found.append(named[one.study].get(key))
            continue
        found.append(_alone(study, lines_of(one.study, lines), key))
        families.setdefault(one.study, {}).setdefault(key, []).append(at)
    for family in families.values():
        adjusted = with_holm([found[places[0]] for places in family.values()])
        for places, of_one in zip(family.values(), adjusted, strict=True):
            for at in places:
                found[at] = of_one
    return found


def _named(study: Described, lines: Lines) -> dict[Key, Difference | None]:
    """The contrasts that a study names, with Holm's p: primary ones of a metric, and all others."""
    keys = [(one.metric or study.metric, one.row, one.control, one.group) for one in study.contrasts if not one.primary]
    found = dict(zip(keys, with_holm([_alone(study, lines, key) for key in keys]), strict=True))
    for metric in (study.metric, *study.also):
        primary = [one for one in study.compared(metric) if one.primary]
        found |= {(metric, one.row, one.control, one.group): None for one in primary}
        compared = compare(lines, primary, metric, study.strata)
        found |= {(metric, one.row, one.control, one.group): of_one for one, of_one in compared}
    return found


def _alone(study: Described, lines: Lines, key: Key) -> Difference | None:
    metric, *contrast = key
    return next((found for _, found in compare(lines, [Contrast(*contrast)], metric, study.strata)), None)


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
    """What the table has for each quoted figure."""
    lines, known = read_results(RESULTS), studies()
    found = [text_of(one, of_one, lines, known)
             for one, of_one in zip(quoted, differences(quoted, lines, known), strict=True)]  # fmt: skip
    return [(one, figure, "".join(words)) for one, (figure, *words) in zip(quoted, found, strict=True)]


def misquoted(root: Path = ROOT, all_quoted: Sequence[Quoted] | None = None) -> Iterator[str]:
    """What pages must say and do not: a sentence each."""
    found = told(load_pages().quoted if all_quoted is None else all_quoted)
    for page in dict.fromkeys(one.page for one, *_ in found):
        page_lines = (root / page).read_text(encoding="utf-8").splitlines()
        of_page = [one for one in found if one[0].page == page]
        placed = _places(page_lines, of_page)
        where = {id(one): [at] for at, of_line in placed.items() for one in of_line}
        judged: dict[int, list[Told]] = {}
        for one in of_page:
            quoted, figure, word = one
            everywhere = [at for at, line in enumerate(page_lines) if quoted.line in line]
            places = [at for at in where.get(id(one), everywhere) if figure in page_lines[at]]
            if not places:
                yield f"{page}: the line with `{quoted.line}` must have `{figure}`, but has not."
            elif word:
                judged.setdefault(places[0], []).append(one)
        for at, of_line in judged.items():
            is_said, wanted = _says(page_lines, at, of_line)
            if not is_said:
                yield f"{page}: the line with `{of_line[0][0].line}` must have `{wanted}`, but has not."


def updated(page_lines: Sequence[str], of_page: Sequence[Told]) -> list[str]:
    """A page's lines with the differences that it quotes, and their words, as the table has them now.

    Means stay, and so do cells *not judged* of differences that no paper has.
    """
    found = list(page_lines)
    for at, of_line in _places(page_lines, of_page).items():
        found[at] = _with_figures(found[at], of_line)
        cells, column = _cells(found[at]), _column(found, at, "verdict")
        if column and not _is_unjudged(cells[column], of_line):
            cells[column] = _words(of_line)
            found[at] = " | ".join(cells).strip()
    return found


def _places(page_lines: Sequence[str], of_page: Sequence[Told]) -> dict[int, list[Told]]:
    """The differences of each line, in the order in which they stand there.

    Of several with the same words the first is in the first line that has these words, and so on; or all are in the
    only such line. Where there are more or fewer lines, none is placed.
    """
    by_words: dict[str, list[Told]] = {}
    for one in of_page:
        if one[2]:
            by_words.setdefault(one[0].line, []).append(one)
    found: dict[int, list[Told]] = {}
    for words, of_words in by_words.items():
        places = [at for at, line in enumerate(page_lines) if words in line]
        if len(places) == 1:
            places *= len(of_words)
        if len(places) == len(of_words):
            for at, one in zip(places, of_words, strict=True):
                found.setdefault(at, []).append(one)
    return found


def _with_figures(line: str, of_line: Sequence[Told]) -> str:
    """A line with new figures in the places of its first ones, and with their words where the old ones have some."""
    new = iter(of_line)

    def said(old: re.Match[str]) -> str:
        one = next(new, None)
        if one is None:
            return old[0]
        return f"{one[1]}, {one[2]}" if old[1] else one[1]

    return FIGURE.sub(said, line)


def _says(page_lines: Sequence[str], at: int, of_line: Sequence[Told]) -> tuple[bool, str]:
    """Whether a line has the words of its figures: in its table's column `verdict`, else behind each figure."""
    column = _column(page_lines, at, "verdict")
    if not column:
        wanted = [f"{figure}, {word}" for _, figure, word in of_line]
        return all(text in page_lines[at] for text in wanted), "`, `".join(wanted)
    cell = _cells(page_lines[at])[column]
    return cell == _words(of_line) or _is_unjudged(cell, of_line), _words(of_line)


def _words(of_line: Sequence[Told]) -> str:
    return "; ".join(word for *_, word in of_line)


def _is_unjudged(cell: str, of_line: Sequence[Told]) -> bool:
    return cell == NOT_JUDGED and all(one.paper is None for one, *_ in of_line)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]


def _column(page_lines: Sequence[str], at: int, name: str) -> int:
    """The place of a column among the cells of a table's line; 0 where there is no such cell."""
    first = at
    while first and page_lines[first - 1].startswith("|"):
        first -= 1
    head = _cells(page_lines[first])
    column = head.index(name) if name in head and first != at else 0
    return column if column < len(_cells(page_lines[at])) else 0
