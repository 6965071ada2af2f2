"""Rows of a run log as lists over updates, as the benchmarks' tables take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairseq_mtmoe.analysis import rows
from fairseq_mtmoe.analysis.questions import expert_layers, expert_tasks, shares
from fairseq_mtmoe.analysis.rows import Row
from fairseq_mtmoe.analysis.run_log import Event


@dataclass(frozen=True)
class SamplingSeries:
    """How often each language pair was drawn. All lists are as long as `epochs`; a missing value is NaN."""

    epochs: list[int]
    temperatures: list[float]
    probabilities: dict[str, list[float]]


@dataclass(frozen=True)
class ExpertSeries:
    """Which share of a task's tokens each expert received: by layer and task, a list over experts for each update."""

    updates: list[int]
    tasks: list[str]
    layers: list[str]
    shares: dict[str, dict[str, list[list[float]]]]


@dataclass(frozen=True)
class PerplexitySeries:
    """Validation perplexity of tiers and `all`. All lists are as long as `updates`; a missing value is NaN."""

    updates: list[int]
    minutes: list[float]
    groups: dict[str, list[float]]


@dataclass(frozen=True)
class SelectionSeries:
    """What uncertainty sampling trained on, by update: tasks' examples and entropies, the share of the data seen."""

    updates: list[int] = field(default_factory=list)
    trained: dict[str, list[int]] = field(default_factory=dict)
    entropies: dict[str, list[float]] = field(default_factory=dict)
    share_of_data: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Run:
    """One training run. A series without a value means: nothing was logged."""

    name: str
    sampling: SamplingSeries
    experts: ExpertSeries
    perplexity: PerplexitySeries
    sparsified_at: int | None = None
    selection: SelectionSeries = field(default_factory=SelectionSeries)


def read_run(path: str | Path, name: str | None = None) -> Run:
    """Read a run's folder, or its log; raises `UserError` as `rows.read_run`."""
    run = rows.read_run(path, name)
    sampled, ppl, of_experts = run.of("sampling"), run.of("tier", "all", metric="ppl"), run.of("experts")
    epochs = sampled[0].moments.epoch.tolist() if sampled else []
    temperature = [value for row in sampled if row.metric == "temperature" for value in row.value.tolist()]
    probabilities = _by_task([row for row in sampled if row.metric == "probability"])
    found = {
        layer: {row.task: shares(row).tolist() for row in of_experts if row.layer == layer}
        for layer in expert_layers(run)
    }
    minutes = ppl[0].moments.minutes.tolist() if ppl else []
    return Run(
        run.name, SamplingSeries([int(epoch) for epoch in epochs], temperature, probabilities),
        ExpertSeries(_updates(of_experts), expert_tasks(run), expert_layers(run), found),
        PerplexitySeries(_updates(ppl), minutes, _by_task(ppl)),
        run.sparsified[-1][0] if run.sparsified else None, selection_series(run.events),
    )  # fmt: skip


def selection_series(events: Sequence[Event]) -> SelectionSeries:
    """What was trained on by update."""
    found = rows.run_of(list(events), "").of("selection")
    seen = [value for row in found if row.metric == "share_of_data" for value in row.value.tolist()]
    entropies = _by_task([row for row in found if row.metric == "entropy"])
    told = [event.get("trained", {}) for event in rows.of_kind(events, "selection")]
    trained = {task: [int(of.get(task, 0)) for of in told] for task in entropies}
    return SelectionSeries(_updates(found), trained, entropies, seen)


def _updates(found: Sequence[Row]) -> list[int]:
    return [int(update) for update in found[0].moments.update] if found else []


def _by_task(found: Sequence[Row]) -> dict[str, list[float]]:
    return {row.task: row.value.tolist() for row in found}
