"""README's tables of where sparse pays, of whatever runs of `compare_sparse.py` are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from equal_cost import systems_at_equal_cost
from readme_tables import Cell, Row, Table, difference_cell
from routing_tables import GREEDY, ROUTED
from sparse_systems import BY_NAME, DENSE
from training_report import RunResult
from training_systems import BASE

AT_EQUAL = {"updates": "at equal updates", "minutes": "at equal minutes"}


def results_of(content: Sequence[Mapping[str, Any]]) -> list[RunResult]:
    """The runs that `compare_sparse.py` wrote down, of systems that there are."""
    return [RunResult.of_numbers(BY_NAME[row["system"]], dict(row)) for row in content if row["system"] in BY_NAME]


def beside_dense(name: str, results: Sequence[RunResult]) -> Table:
    """All systems at equal updates and at equal minutes."""
    rows = []
    for found in systems_at_equal_cost(results, DENSE):
        cells: dict[str, Cell] = {"step": Cell(found.step, digits=2)} if found.name != DENSE else {}
        for unit, title in AT_EQUAL.items():
            cells[f"perplexity {title}"] = Cell(found.perplexity[unit])
            if found.name != DENSE:
                cells[f"{title}, % above dense"] = difference_cell(found.percent[unit])
        rows.append(Row(found.title, found.seeds, cells))
    return Table(name, "", rows)


def beside_base(name: str, results: Sequence[RunResult]) -> Table:
    """One change at a time to BASE: what it does to perplexity, and to perplexity where routing is greedy."""
    rows = []
    for found in systems_at_equal_cost(results, BASE):
        cells = {"perplexity": Cell(found.perplexity["updates"])}
        if found.name != BASE:
            cells["% above BASE"] = difference_cell(found.percent["updates"])
        routed = [run.finished[ROUTED] for run in results if run.system.name == found.name and run.finished.get(ROUTED)]
        if routed:
            cells["routed greedily"] = Cell(fmean(one[GREEDY] for one in routed))
        rows.append(Row(found.title, found.seeds, cells))
    return Table(name, "", rows)
