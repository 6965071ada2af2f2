"""README's tables of sparse models beside dense ones, of whatever runs of `compare_sparse.py` are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from equal_cost import MINUTES, UPDATES, Equal, systems_at_equal_cost
from readme_tables import Cell, Row, Table, difference_cell
from routing_tables import GREEDY, ROUTED
from sparse_systems import BY_NAME, DENSE
from training_report import RunResult, to_base
from training_systems import BASE

from fairseq_mtmoe.analysis.scores import ALL
from fairseq_mtmoe.data.translation.tiers import FROM_LOW

SHOWN_TIERS = (FROM_LOW[0], FROM_LOW[-1])  # the two ends: what heating moves from one to the other
AT_EQUAL = {UPDATES: "at equal updates", MINUTES: "at equal minutes"}


def results_of(content: Sequence[Mapping[str, Any]]) -> list[RunResult]:
    """The runs that `compare_sparse.py` wrote down, of systems that there are, in the order of these."""
    rows = [row for name in BY_NAME for row in content if row["system"] == name]
    return [RunResult.of_numbers(BY_NAME[row["system"]], dict(row)) for row in rows]


def beside_dense(name: str, results: Sequence[RunResult]) -> Table:
    """All systems at equal updates and at equal minutes."""
    rows = []
    for found in systems_at_equal_cost(results, DENSE):
        cells = {"step": Cell(found.step, digits=2)}
        for unit, title in AT_EQUAL.items():
            cells[f"perplexity {title}"] = Cell(found.perplexity[unit])
            if found.name != DENSE:
                cells[f"{title}, % above dense"] = difference_cell(found.percent[unit])
        rows.append(Row(found.title, found.seeds, cells | _greedily(results, found.name)))
    return Table(name, "", rows)


def beside_base(name: str, results: Sequence[RunResult]) -> Table:
    """One change at a time to BASE: what it does to perplexity, and to perplexity where routing is greedy."""
    rows = []
    for found in systems_at_equal_cost(results, BASE):
        rows.append(Row(found.title, found.seeds, _above_base(found) | _greedily(results, found.name)))
    return Table(name, "", rows)


def of_the_paper(name: str, results: Sequence[RunResult]) -> Table:
    """A paper's systems beside BASE: perplexity, BLEU of the test sets, and how soon they come to BASE's best."""
    rows = []
    for found in systems_at_equal_cost(results, BASE):
        cells = _above_base(found)
        beside = _beside(results, found.name, BASE)
        scored = [pair for pair in beside if all(run.scores for run in pair)]
        if found.name != BASE:
            for tier in SHOWN_TIERS:
                above = [100 * (_last(run, tier) / _last(other, tier) - 1) for run, other in beside]
                cells[f"{tier} tier, % above BASE"] = difference_cell(above)
        if scored:
            cells["BLEU"] = Cell(fmean(run.score("bleu", ALL) for run, _ in scored))
        if scored and found.name != BASE:
            for group in (ALL, *SHOWN_TIERS):
                title = "BLEU above BASE" if group == ALL else f"{group} tier, BLEU above BASE"
                cells[title] = difference_cell([run.score("bleu", group) - b.score("bleu", group) for run, b in scored])
        arrivals = to_base(_runs(results, found.name), results)
        if all(arrivals):
            cells["updates to BASE's best"] = Cell(fmean(arrival[0] for arrival in arrivals if arrival), digits=0)
        rows.append(Row(found.title, found.seeds, cells))
    return Table(name, "", rows)


def _above_base(found: Equal) -> dict[str, Cell]:
    """Perplexity after as many updates."""
    above = {} if found.name == BASE else {"% above BASE": difference_cell(found.percent[UPDATES])}
    return {"perplexity": Cell(found.perplexity[UPDATES]), **above}


def _greedily(results: Sequence[RunResult], name: str) -> dict[str, Cell]:
    """The last weights' perplexity where they are routed as BASE was published, if that is known."""
    routed = [run.finished[ROUTED] for run in _runs(results, name) if run.finished.get(ROUTED)]
    return {"routed greedily": Cell(fmean(one[GREEDY] for one in routed))} if routed else {}


def _runs(results: Sequence[RunResult], name: str) -> list[RunResult]:
    return [run for run in results if run.system.name == name]


def _beside(results: Sequence[RunResult], name: str, other: str) -> list[tuple[RunResult, RunResult]]:
    """One system's runs, each with another's of the same seed."""
    by_seed = {run.seed: run for run in _runs(results, other)}
    return [(run, by_seed[run.seed]) for run in _runs(results, name) if run.seed in by_seed]


def _last(run: RunResult, group: str) -> float:
    return run.log.perplexity.groups[group][-1]
