"""The numbers behind the pictures: series over epochs or updates, read from a run log.

Sampling probabilities and temperature (equations 1 and 2), who uses which expert (figures 1, 3, 4) and validation
perplexity (figure 2) of "Tricks for Training Sparse Translation Models"; a benchmark's metrics; what uncertainty
sampling chose; what is borrowed from which source. Nothing is drawn here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq_mtmoe.analysis import run_log
from fairseq_mtmoe.analysis.gates import GateSeries, gate_series
from fairseq_mtmoe.analysis.scores import ALL, TIERS
from fairseq_mtmoe.analysis.sources import SourceWeights, source_weights
from fairseq_mtmoe.analysis.task_scores import SMALL
from fairseq_mtmoe.errors import UserError

Event = run_log.Event


@dataclass(frozen=True)
class SamplingSeries:
    """How often each language pair was drawn. All lists are as long as `epochs`; a missing value is NaN.

    An epoch within which the temperature rose has several values. Epochs of candidates, of which uncertainty sampling
    trains on some, are not among them.
    """

    epochs: list[int]
    temperatures: list[float]
    probabilities: dict[str, list[float]]  # by pair, most frequent at the start first
    had_candidates: bool = False  # whether there were such epochs
    updates: list[int | None] = field(default_factory=list)  # made before; None where the log does not say

    @property
    def moments(self) -> tuple[str, list[int]]:
        """What values are drawn over, and each one's place: updates where epochs have several values, else epochs."""
        known = [update for update in self.updates if update is not None]
        is_within = len(set(self.epochs)) < len(self.epochs) == len(known)
        return ("update", known) if is_within else ("epoch", self.epochs)


@dataclass(frozen=True)
class ExpertSeries:
    """Which share of a task's tokens each expert received, at several moments of one run."""

    updates: list[int]
    tasks: list[str]  # languages, or pairs, in the model's order; only those that had tokens
    layers: list[str]  # dotted paths, encoder first; only those that know the tasks of their tokens
    shares: dict[str, dict[str, list[list[float]]]]  # by layer, by task: one list over experts for each update
    subset: str = ""  # of the validation data, whose tokens were counted


@dataclass(frozen=True)
class PerplexitySeries:
    """Validation perplexity. All lists are as long as `updates`; a missing value is NaN."""

    updates: list[int]
    minutes: list[float]
    groups: dict[str, list[float]]  # "low", "mid", "high" as far as known, and "all"


@dataclass(frozen=True)
class MetricSeries:
    """A benchmark's metrics in validation. All lists are as long as `updates`; a missing value is NaN."""

    updates: list[int] = field(default_factory=list)
    minutes: list[float] = field(default_factory=list)
    sets: dict[str, list[float]] = field(default_factory=dict)  # by the name of a task's set
    metrics: dict[str, str] = field(default_factory=dict)  # what is measured on each set
    averages: dict[str, list[float]] = field(default_factory=dict)  # "small" and "all"


@dataclass(frozen=True)
class SelectionSeries:
    """What uncertainty sampling trained on (CA-MTL, figures 5 and 8). All lists are as long as `updates`.

    Attributes:
        updates: at which a stretch of updates ends.
        trained: of each task, the examples that the stretch was trained on.
        entropies: of each task, the mean entropy of its candidates, in shares of the most that it can be.
        share_of_data: that was trained on at least once since the run began.
    """

    updates: list[int] = field(default_factory=list)
    trained: dict[str, list[int]] = field(default_factory=dict)
    entropies: dict[str, list[float]] = field(default_factory=dict)
    share_of_data: list[float] = field(default_factory=list)

    @property
    def shares(self) -> dict[str, list[float]]:
        """Each task's share of what a stretch was trained on."""
        totals = [max(1, sum(counts)) for counts in zip(*self.trained.values(), strict=True)]
        return {
            task: [count / total for count, total in zip(counts, totals, strict=True)]
            for task, counts in self.trained.items()
        }


@dataclass(frozen=True)
class Run:
    """What the pictures need to know of one training run. A series without a value means: nothing was logged."""

    name: str
    sampling: SamplingSeries
    experts: ExpertSeries
    perplexity: PerplexitySeries
    sparsified_at: int | None = None  # the update after which a dense model became sparse
    data: dict[str, float] = field(default_factory=dict)  # each task's share of the training sentences
    metrics: MetricSeries = field(default_factory=MetricSeries)
    selection: SelectionSeries = field(default_factory=SelectionSeries)
    sources: SourceWeights = field(default_factory=SourceWeights)
    gates: GateSeries = field(default_factory=GateSeries)

    @property
    def unit(self) -> str:
        """What the tasks are: those of a benchmark, or languages."""
        return "task" if self.metrics.sets else "language"


def read_run(path: str | Path, name: str | None = None) -> Run:
    """The series of the run in the folder `path`, or of a run log.

    Raises:
        UserError: there is no run log, or it holds nothing, or what no run logs.
    """
    events = run_log.read(path)
    sparsified = [int(event["update"]) for event in _of_kind(events, "sparsified")]
    return Run(
        name=name if name is not None else Path(os.path.realpath(path)).name,
        sampling=sampling_series(events),
        experts=expert_series(events),
        perplexity=perplexity_series(events),
        sparsified_at=sparsified[-1] if sparsified else None,
        data=data_shares(events),
        metrics=metric_series(events),
        selection=selection_series(events),
        sources=source_weights(_of_first_subset(events, "sources")),
        gates=gate_series(_of_first_subset(events, "gates")),
    )


def data_shares(events: Iterable[Event]) -> dict[str, float]:
    """Each task's share of the training sentences, as the run said at its start; empty if it did not.

    A task is what the run's `task_ids` say: a target language (also if they say nothing), a source language or a pair.
    Where what was drawn from are the tasks, nothing needs to be said.
    """
    run: Event = next((event for event in _of_kind(events, "run") if event.get("sizes")), {"sizes": {}})
    total = max(1, sum(run["sizes"].values()))
    if set(run["sizes"]) == set(run.get("task_names", ())):
        return {task: size / total for task, size in run["sizes"].items()}
    shares: dict[str, float] = {}
    for pair, size in run["sizes"].items():
        source, _, target = pair.partition("-")
        task = {"source": source, "pair": pair}.get(run.get("task_ids", "target"), target)
        shares[task] = shares.get(task, 0.0) + size / total
    return shares


def sampling_series(events: Iterable[Event]) -> SamplingSeries:
    """Probabilities per pair and the temperature, by epoch (virtual epochs count as epochs), or part of one."""
    events = list(events)
    # Until 0.1.8 the options alone said what was drawn.
    methods = {event.get("sampling_method") for event in _of_kind(events, "run")}
    known = _of_kind(events, "sampling")
    chosen = [event for event in known if not event.get("of_candidates", "uncertainty" in methods)]
    drawn = [event.get("probabilities", {}) for event in chosen]
    pairs = {pair: probability for probabilities in reversed(drawn) for pair, probability in probabilities.items()}
    return SamplingSeries(
        epochs=[int(event["epoch"]) for event in chosen],
        temperatures=[_number(event.get("temperature")) for event in chosen],
        probabilities={
            pair: [_number(probabilities.get(pair)) for probabilities in drawn]
            for pair in sorted(pairs, key=lambda pair: (-_number(pairs[pair]), pair))
        },
        had_candidates=len(chosen) < len(known),
        updates=[None if event.get("updates_before") is None else int(event["updates_before"]) for event in chosen],
    )


def selection_series(events: Iterable[Event]) -> SelectionSeries:
    """What was trained on by update; a task that some events do not know was trained on 0 examples there."""
    chosen = _of_kind(events, "selection")
    tasks = dict.fromkeys(task for event in chosen for task in event.get("trained", {}))
    return SelectionSeries(
        updates=[int(event["update"]) for event in chosen],
        trained={task: [int(event.get("trained", {}).get(task, 0)) for event in chosen] for task in tasks},
        entropies={task: [_number(event.get("relative_entropy", {}).get(task)) for event in chosen] for task in tasks},
        share_of_data=[_number(event.get("share_of_data")) for event in chosen],
    )


def perplexity_series(events: Iterable[Event]) -> PerplexitySeries:
    """Perplexity by update, of the first validation subset that the log speaks of."""
    chosen = _of_first_subset(events, "valid")
    groups = {tier: [_number(event.get("tiers", {}).get(tier, {}).get("ppl")) for event in chosen] for tier in TIERS}
    groups[ALL] = [_number(event.get("all", {}).get("ppl")) for event in chosen]
    return PerplexitySeries(
        updates=[int(event["update"]) for event in chosen],
        minutes=[_number(event.get("minutes")) for event in chosen],
        groups={name: values for name, values in groups.items() if not all(map(math.isnan, values))},
    )


def metric_series(events: Iterable[Event]) -> MetricSeries:
    """A benchmark's metrics by update, of the first validation subset that the log speaks of."""
    chosen = _of_first_subset(events, "valid")
    kinds = {
        name: metric
        for event in chosen
        for name, figures in event.get("tasks", {}).items()
        for metric in reversed(figures)  # the first one's are the averages
        if metric != "loss"
    }
    groups = dict.fromkeys(name for event in chosen for name in event.get("groups", {}))
    return MetricSeries(
        updates=[int(event["update"]) for event in chosen],
        minutes=[_number(event.get("minutes")) for event in chosen],
        sets={
            name: [_number(event.get("tasks", {}).get(name, {}).get(metric)) for event in chosen]
            for name, metric in kinds.items()
        },
        metrics=kinds,
        averages={
            name: [_number(event.get("groups", {}).get(name, {}).get("mean")) for event in chosen]
            for name in groups
            if name in (SMALL, ALL)
        },
    )


def expert_series(events: Iterable[Event]) -> ExpertSeries:
    """Shares of the experts by layer, task and update; what was not logged at an update is an empty list.

    Counted on the first validation subset that the log speaks of.

    Raises:
        UserError: a layer has another number of experts at one update than at another.
    """
    chosen = _of_first_subset(events, "experts")
    tasks = list(dict.fromkeys(task for event in chosen for task in event.get("task_names", ())))
    layers = list(dict.fromkeys(layer for event in chosen for layer in event.get("layers", ())))
    shares = {layer: _over_time(chosen, layer, tasks) for layer in layers}
    seen = [task for task in tasks if any(any(shares[layer][task]) for layer in layers)]
    known = [layer for layer in layers if any(any(over_time) for over_time in shares[layer].values())]
    subset = str(chosen[0].get("subset", "")) if chosen else ""
    return ExpertSeries([int(event["update"]) for event in chosen], seen, known, shares, subset)


def nearest(values: Sequence[float], wanted: float) -> int:
    """The index of the first of the values that are closest to `wanted`."""
    return min(range(len(values)), key=lambda index: abs(values[index] - wanted))


def moments(updates: Sequence[int], wanted: Sequence[int] = ()) -> list[int]:
    """Indices of the updates to show: those nearest to the wanted ones, else an early, a middle and a late one."""
    if not updates:
        return []
    targets = wanted or (updates[0], (updates[0] + updates[-1]) / 2, updates[-1])
    return sorted({nearest(updates, target) for target in targets})


def by_resource(tasks: Sequence[str], data: Mapping[str, float]) -> list[str]:
    """The tasks with the most training data first; tasks of which nothing is known keep their order, last."""
    return sorted(tasks, key=lambda task: -data.get(task, 0.0))


def shift(before: Sequence[float], after: Sequence[float]) -> float:
    """The least share of tokens that went to other experts between two moments: the total variation distance."""
    return sum(abs(x - y) for x, y in zip(before, after, strict=True)) / 2


def _over_time(events: Sequence[Event], layer: str, tasks: Sequence[str]) -> dict[str, list[list[float]]]:
    """By task, a layer's shares at every event."""
    at_events = [_shares(event, layer) for event in events]
    if len({len(row) for shares in at_events for row in shares.values() if row}) > 1:
        raise UserError(
            f"The run log must have the same number of experts in {layer} at all updates, but has not: it is of "
            "several runs, and each needs a folder of its own."
        )
    return {task: [shares.get(task, []) for shares in at_events] for task in tasks}


def _shares(event: Event, layer: str) -> dict[str, list[float]]:
    """By task, each expert's share of its tokens; an empty list for a task without tokens."""
    rows: Sequence[Sequence[float]] = event.get("layers", {}).get(layer, [])
    names: Sequence[str] = event.get("task_names", [])
    # A layer that is not told tasks counts in a single row.
    if len(rows) != len(names):
        return {}
    totals = [sum(row) for row in rows]
    return {
        name: [count / total for count in row] if total else []
        for name, row, total in zip(names, rows, totals, strict=True)
    }


def _of_kind(events: Iterable[Event], kind: str) -> list[Event]:
    return [event for event in events if event["event"] == kind]


def _of_first_subset(events: Iterable[Event], kind: str) -> list[Event]:
    chosen = _of_kind(events, kind)
    return [event for event in chosen if event.get("subset") == chosen[0].get("subset")]


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def run_names(paths: Sequence[str | Path]) -> list[str]:
    """A short name for each run: its folder's, with as many parents as it takes to tell the runs apart."""
    parts = [Path(os.path.realpath(path)).parts for path in paths]
    for depth in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{part[-1]} ({number})" for number, part in enumerate(parts, start=1)]
