"""What came out: each row of a published table beside the same row of a study, and both above the table's baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from published_tables import Column, Published, Row
from report_glue import beyond_chance
from studies import Study, TimingStudy, Values
from timing import Ratio

from fairseq_mtmoe.analysis.comparison import Spread, spread
from fairseq_mtmoe.analysis.tables import with_error
from fairseq_mtmoe.io.markdown import markdown_table

NONE = "–"
REPRODUCED, CONTRARY, OPEN, ALONE, ABSENT = "agrees", "disagrees", "no difference shown", "one seed", "not run"
OUTCOMES = (REPRODUCED, CONTRARY, OPEN, ALONE, ABSENT)
SMALLEST = 0.2  # a paper's difference in points which is no larger is not one that could be reproduced


@dataclass(frozen=True)
class Verdict:
    """How far a row is above the baseline, and whether that is what the paper says.

    Attributes:
        cell: of the table.
        outcome: one of `OUTCOMES`, or empty where the paper says nothing of it.
    """

    cell: str
    outcome: str


def verdict(table: Published, study: Study, row: Row, column: Column) -> Verdict:
    """Of a row's figure beside the baseline's, seed by seed."""
    own, other = row.values(study, column), table.base.values(study, column)
    shared = [seed for seed in own if seed in other]
    seeds = [seed for seed in shared if not math.isnan(own[seed] + other[seed])]
    if not seeds:
        return Verdict(NONE, "")
    sign, shown = _says(table, row, column)
    if isinstance(study, TimingStudy):
        ours, outcome = _of_times([own[seed] for seed in seeds], [other[seed] for seed in seeds], sign)
    else:
        ours, outcome = _of_seeds(spread([own[seed] - other[seed] for seed in seeds]), len(seeds), sign)
    if outcome and len(seeds) < len(shared):  # a run that never came there says as much as those that did
        outcome = OPEN
    beside = f"{shown} / {ours}" if shown else ours
    return Verdict(f"{beside} ({outcome})" if outcome else beside, outcome)


def _says(table: Published, row: Row, column: Column) -> tuple[int, str]:
    """The sign of the paper's difference, 0 where it says none, and the difference."""
    title = column.like or column.title
    if title not in row.paper or title not in table.base.paper:
        return 0, ""
    own, base = row.paper[title], table.base.paper[title]
    difference = 100 * (own / base - 1) if table.relative else own - base
    sign = (
        0
        if abs(difference) < SMALLEST + 1e-9
        else -1
        if (difference < 0) != (column.lower and column.like != "")
        else 1
    )
    return sign, "" if column.like else f"{difference:+,.{0 if abs(difference) >= 1000 else 1}f}"


def _of_seeds(found: Spread, seeds: int, sign: int) -> tuple[str, str]:
    text = difference_with_error(found, seeds)
    if not sign:
        return text, ""
    if seeds == 1:
        return text, ALONE
    if not beyond_chance(found, seeds):
        return text, OPEN
    return text, REPRODUCED if found.mean * sign > 0 else CONTRARY


def _of_times(own: Sequence[float], other: Sequence[float], sign: int) -> tuple[str, str]:
    """In percent, the median and the quartiles of the ratios, turn by turn."""
    ratio = Ratio.of(own, other)
    middle, low, high = (100 * (value - 1) for value in (ratio.median, ratio.low, ratio.high))
    text = f"{middle:+.1f} ({low:+.1f} to {high:+.1f})"
    if not sign:
        return text, ""
    if low <= 0 <= high:
        return text, OPEN
    return text, REPRODUCED if middle * sign > 0 else CONTRARY


def difference_with_error(found: Spread, seeds: int) -> str:
    """Such as `+1.2 ±0.4`: the mean of differences with the same seed and its standard error."""
    mean = round(found.mean, 1) + 0.0  # no -0.0
    return ("+" if mean >= 0 else "") + with_error(mean, found.deviation / math.sqrt(seeds), 1)


def comparison(table: Published, study: Study) -> tuple[str, list[str]]:
    """A table of all rows, the paper's figures and ours, and what came out of each comparison."""
    columns = [column for column in table.columns if _is_shown(table, study, column)]
    judged = [column for column in columns if column.judged]
    above = f"above {table.baseline}{', %' if table.relative else ''}"
    rows, outcomes = [], []
    for row in table.rows:
        is_there = table.is_there(study, row)
        if not is_there and not row.paper:
            continue
        verdicts = [Verdict(ABSENT, "") for _ in judged]
        if row is table.base:
            verdicts = [Verdict("", "") for _ in judged]
        elif is_there:
            verdicts = [verdict(table, study, row, column) for column in judged]
        outcomes += [one.outcome for one in verdicts if one.outcome] if is_there else [ABSENT]
        cells = [_cell(table, study, row, column) for column in columns]
        rows.append([row.name, *cells, *(one.cell for one in verdicts)])
    return markdown_table(["", *(c.title for c in columns), *(f"{c.title}, {above}" for c in judged)], rows), outcomes


def _is_shown(table: Published, study: Study, column: Column) -> bool:
    return any(row.values(study, column) or column.title in row.paper for row in table.rows)


def _cell(table: Published, study: Study, row: Row, column: Column) -> str:
    """Such as `19.4 / 14.2 ±0.3`; ours alone where the paper has no such column."""
    in_paper = any(column.title in one.paper for one in table.rows)
    ours = shown(row.values(study, column), isinstance(study, TimingStudy))
    return f"{table.reported(row, column) or NONE} / {ours}" if in_paper else ours


def shown(values: Values, are_times: bool = False) -> str:
    """A mean with its standard error, or a median of seconds; a dash if there is none."""
    known = [value for value in values.values() if not math.isnan(value)]
    if not known:
        return NONE
    if are_times:
        return f"{sorted(known)[len(known) // 2]:.2f}"
    never = f" (never in {len(values) - len(known)} of {len(values)})" if len(known) < len(values) else ""
    found = spread(known)
    return with_error(found.mean, found.standard_error, 1) + never


def summary(outcomes: Sequence[str]) -> str:
    """Such as `1 agrees, 2 no difference shown`."""
    counts = {one: outcomes.count(one) for one in OUTCOMES}
    return ", ".join(f"{count} {one}" for one, count in counts.items() if count) or "nothing that could be reproduced"
