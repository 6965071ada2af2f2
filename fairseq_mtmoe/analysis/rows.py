"""Rows, the one form of a figure over moments, and their reader for run logs.

docs/reference/run_log.md lists the groups of rows and their metrics. With several validation subsets, the first counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.analysis import run_log
from fairseq_mtmoe.analysis.run_log import FIELDS, Event
from fairseq_mtmoe.data.translation.tiers import FROM_LOW
from fairseq_mtmoe.errors import UserError

Values = NDArray[np.float64]
TIERS = FROM_LOW
ALL = "all"
VALIDATION = ("all", "tier", "group", "pair", "task")
FALLING = ("loss", "nll_loss", "ppl")
OF_TEXT = ("ppl", "loss", "bleu", "chrf")  # without `nll_loss`, which is the logarithm of perplexity
OF_GATES = ("blend", "moved", "changed")
TRAINED = ("loss", "nll_loss", "lr", "gnorm", "clip", "wps", "ups", "wpb", "bsz", "padding", "skipped", "loss_scale",
           "gb_free", "expert_comm_ms")  # fmt: skip
EVERYBODY = "all tokens"
"""The task of a layer that does not know its tokens' tasks."""
UNITS = {"target": "language", "source": "language", "pair": "pair"}
SEVERAL_RUNS = "it is of several runs; each run needs its own folder."


@dataclass(frozen=True)
class Moments:
    """Times of M measurements, each (M,); NaN if unknown."""

    update: Values
    minutes: Values
    tokens: Values
    epoch: Values

    def at(self, indices: Sequence[int]) -> Moments:
        """Return the moments at some indices."""
        return Moments(*(values[list(indices)] for values in vars(self).values()))


@dataclass(frozen=True)
class Row:
    """A figure over its moments.

    Attributes:
        value: (M,), or (M, N) for N experts; NaN if unknown.
        subset: the validation subset, or a task's set.
        n: examples of a test set; number of sets of a mean.
        stderr: standard error of a score; on a page, half of its 95% confidence interval. NaN: unknown.
    """

    run: str
    group: str
    metric: str
    moments: Moments
    value: Values
    task: str = ""
    layer: str = ""
    subset: str = ""
    n: int = 0
    stderr: float = np.nan

    @property
    def figure(self) -> float:
        """The last value."""
        return float(self.value[-1])

    @property
    def best_index(self) -> int | None:
        """The first index of the best value; None if no value is known."""
        known = self.value if self.metric in FALLING else -self.value
        return None if np.isnan(known).all() else int(np.nanargmin(known))

    def at(self, indices: Sequence[int]) -> Row:
        """Return the row at some of its moments."""
        return replace(self, moments=self.moments.at(indices), value=self.value[list(indices)])


def chosen_rows(rows: Iterable[Row], *groups: str, **wanted: str) -> list[Row]:
    """Return the rows of these groups whose other fields have these values."""
    chosen = (row for row in rows if row.group in groups)
    return [row for row in chosen if all(getattr(row, name) == value for name, value in wanted.items())]


@dataclass
class Run:
    """A run log, read."""

    name: str
    events: list[Event]
    rows: list[Row]
    data: dict[str, float]  # see `data_shares`
    unit: str  # the kind of task: "language", "pair" or "task"
    sparsified: list[tuple[int, int | None]]  # updates at which a dense model became sparse, number of experts
    had_candidates: bool  # whether sampling of candidates, for uncertainty sampling, is left out

    def of(self, *groups: str, **wanted: str) -> list[Row]:
        """Return the rows of these groups whose other fields have these values."""
        return chosen_rows(self.rows, *groups, **wanted)


def read_run(path: str | Path, name: str | None = None) -> Run:
    """Read a run's folder or log (`run_log.read`); its default name is the folder's."""
    return run_of(run_log.read(path), name if name is not None else Path(os.path.realpath(path)).name)


def run_of(events: list[Event], name: str) -> Run:
    """Return the run of these events; rows without any value are dropped.

    Rows of sources and selection are kept.
    """
    readers = (_validation, _training, _sampling, _selection, _experts, _gates, _sources, _exchange)
    every = [replace(row, run=name) for reader in readers for row in reader(events) if len(row.value)]
    rows = [row for row in every if row.group in ("sources", "selection") or not np.isnan(row.value).all()]
    runs, sizes = of_kind(events, "run"), of_kind(events, "sparsified")
    is_benchmark = any(row.group == "task" for row in rows)
    unit = "task" if is_benchmark else UNITS.get(runs[-1].get("task_ids", "target") if runs else "target", "language")
    sparsified = [(int(of["update"]), int(of["num_experts"]) if "num_experts" in of else None) for of in sizes]
    had_candidates = len(_drawn(events)) < len(of_kind(events, "sampling"))
    return Run(name, events, rows, data_shares(events), unit, sparsified, had_candidates)


def run_names(paths: Sequence[str | Path]) -> list[str]:
    """Return a short name per run: its folder's, with parents as needed to be unique."""
    parts = [Path(os.path.realpath(path)).parts for path in paths]
    for depth in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{part[-1]} ({number})" for number, part in enumerate(parts, start=1)]


def of_kind(events: Iterable[Event], kind: str) -> list[Event]:
    """Return the events of one kind."""
    return [event for event in events if event["event"] == kind]


def of_first_subset(events: Iterable[Event], kind: str) -> list[Event]:
    """Return the events of one kind with the validation subset of the first of them."""
    found = of_kind(events, kind)
    return [event for event in found if event.get("subset") == found[0].get("subset")]


def data_shares(events: Iterable[Event]) -> dict[str, float]:
    """Return each task's share of training sentences; empty if the log has no sizes.

    If sizes are of language pairs, a pair's task is its target language, or as the run's `task_ids` says.
    """
    run: Event = next((event for event in of_kind(events, "run") if event.get("sizes")), {"sizes": {}})
    total = max(1, sum(run["sizes"].values()))
    are_tasks = set(run["sizes"]) == set(run.get("task_names", ()))
    shares: dict[str, float] = {}
    for name, size in run["sizes"].items():
        source, _, target = name.partition("-")
        task = name if are_tasks else {"source": source, "pair": name}.get(run.get("task_ids", "target"), target)
        shares[task] = shares.get(task, 0.0) + size / total
    return shares


def _rows_of(events: Sequence[Event], group: str, update: str = "update") -> Callable[..., Row]:
    """Return a function that makes rows of these events; unlogged moments are NaN."""
    told = FIELDS[events[0]["event"]] if events else {}
    keys = (update, "minutes", "tokens", "epoch")
    moments = Moments(*(_column(events, key) if key in told else np.full(len(events), np.nan) for key in keys))
    subset = str(events[0].get("subset", "")) if events else ""

    def row(metric: str, value: Values, task: str = "", layer: str = "", group: str = group) -> Row:
        return Row("", group, metric, moments, value, task, layer, subset)

    return row


def _column(events: Sequence[Event], *path: str) -> Values:
    """(M,) Return the values at a path of names; NaN where one is None or missing."""
    found: list[Any] = []
    for event in events:
        value: Any = event
        for name in path:
            value = None if value is None else value.get(name)
        found.append(np.nan if value is None else value)
    return np.array(found, np.float64)


def _names(events: Iterable[Event], key: str) -> list[str]:
    return list(dict.fromkeys(name for event in events for name in event.get(key, {})))


def _validation(events: Sequence[Event]) -> Iterator[Row]:
    """Yield rows of all, then tiers or groups, then pairs or tasks."""
    chosen = of_first_subset(events, "valid")
    row = _rows_of(chosen, ALL)
    for metric in OF_TEXT:
        yield row(metric, _column(chosen, "all", metric), ALL)
    for key, group in (("tiers", "tier"), ("pairs", "pair"), ("groups", "group"), ("tasks", "task")):
        names = _names(chosen, key)
        for name in [tier for tier in TIERS if tier in names] if key == "tiers" else names:
            figures: list[Event] = [event.get(key, {}).get(name, {}) for event in chosen]
            for metric in _metrics(figures):
                yield row(metric, _column(figures, metric), name, group=group)


def _metrics(figures: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return metrics: perplexity and loss of text; a task's metrics, then its loss."""
    found = list(dict.fromkeys(metric for one in figures for metric in one))
    if "ppl" in found:
        return [metric for metric in OF_TEXT if metric in found]
    return [metric for metric in found if metric not in FALLING] + [metric for metric in found if metric == "loss"]


def _training(events: Sequence[Event]) -> Iterator[Row]:
    chosen = of_kind(events, "train")
    row = _rows_of(chosen, "train")
    yield from (row(metric, _column(chosen, metric)) for metric in TRAINED)


def _drawn(events: Sequence[Event]) -> list[Event]:
    """Return sampling events without those of uncertainty sampling's candidates."""
    # Until 0.1.8 only the run's options told candidates apart.
    methods = {event.get("sampling_method") for event in of_kind(events, "run")}
    known = of_kind(events, "sampling")
    return [event for event in known if not event.get("of_candidates", "uncertainty" in methods)]


def _sampling(events: Sequence[Event]) -> Iterator[Row]:
    """Yield the temperature, and pairs' probabilities, the highest at the start first.

    A pair's back-translated part follows it.
    """
    chosen = _drawn(events)
    row = _rows_of(chosen, "sampling", "updates_before")
    yield row("temperature", _column(chosen, "temperature"))
    drawn: list[Event] = [event.get("probabilities", {}) for event in chosen]
    synthetic: Event = next((event["synthetic"] for event in of_kind(events, "run") if event.get("synthetic")), {})
    first = {pair: share for probabilities in reversed(drawn) for pair, share in probabilities.items()}
    for pair in sorted(first, key=lambda pair: (-(first[pair] or 0.0), pair)):
        yield row("probability", _column(drawn, pair), pair)
        if share := synthetic.get(pair):
            yield row("probability", share * _column(drawn, pair), f"{pair}, back-translated")


def _selection(events: Sequence[Event]) -> Iterator[Row]:
    """Yield tasks' shares and entropies; a task missing in an event has share 0."""
    chosen = of_kind(events, "selection")
    row = _rows_of(chosen, "selection")
    totals = np.array([max(1, sum(event.get("trained", {}).values())) for event in chosen], np.float64)
    for task in _names(chosen, "trained"):
        yield row("share", np.nan_to_num(_column(chosen, "trained", task)) / totals, task)
        yield row("entropy", _column(chosen, "relative_entropy", task), task)
    yield row("share_of_data", _column(chosen, "share_of_data"))


def _experts(events: Sequence[Event]) -> Iterator[Row]:
    """Yield experts' tokens by layer and task, in order, where there are tokens."""
    chosen = of_first_subset(events, "experts")
    row = _rows_of(chosen, "experts")
    tasks = list(dict.fromkeys(task for event in chosen for task in event.get("task_names", ())))
    for layer in _names(chosen, "layers"):
        counts = [_counts(event, layer) for event in chosen]
        sizes = {len(found) for of in counts for found in of.values()}
        if len(sizes) > 1:
            rule = f"the same number of experts in {layer} at all updates"
            raise UserError(f"The run log must have {rule}, but has not: {SEVERAL_RUNS}")
        for task in [*tasks, EVERYBODY]:
            if any(task in of for of in counts):
                values = np.array([of.get(task, [np.nan] * max(sizes)) for of in counts], np.float64)
                yield row("tokens", values, task, layer)


def _counts(event: Event, layer: str) -> dict[str, list[float]]:
    """Return the tokens of a layer's experts, by each task that has some."""
    rows, names = event.get("layers", {}).get(layer, []), event.get("task_names", [])
    whose = [EVERYBODY] if len(rows) == 1 != len(names) else names
    return {name: row for name, row in zip(whose, rows, strict=True) if sum(row) > 0} if len(rows) == len(whose) else {}


def _gates(events: Sequence[Event]) -> Iterator[Row]:
    chosen = of_first_subset(events, "gates")
    row = _rows_of(chosen, "gates")
    for metric in OF_GATES:
        for layer in _names(chosen, "layers"):
            yield row(metric, _column(chosen, "layers", layer, metric), layer=layer)


def _sources(events: Sequence[Event]) -> Iterator[Row]:
    """Yield the last validation's weights; these rows' subset is the target task."""
    for event in of_first_subset(events, "sources")[-1:]:
        row, names = _rows_of([{**event, "subset": event.get("target", "")}], "sources"), event.get("sources", ())
        weights = {layer: np.array(found, np.float64) for layer, found in event.get("layers", {}).items()}
        for layer, found in weights.items():
            if len(found) != len(names):
                rule = f"a weight for each of the {len(names)} sources in {layer}"
                raise UserError(f"The run log must have {rule}, but has {len(found)}: {SEVERAL_RUNS}")
        known = [values for values in weights.values() if not np.isnan(values).any()]
        means = {"": np.mean(known, axis=0)} if known and names else {}
        for layer, values in {**means, **weights}.items():
            for name, value in zip(names, values, strict=True):
                yield row("weight" if layer else "mean weight", np.array([value]), name, layer)


def _exchange(events: Sequence[Event]) -> Iterator[Row]:
    """Yield seconds and megabytes per update that each layer's all-to-all takes."""
    chosen = [event for event in of_kind(events, "expert_comm") if event.get("updates") and event.get("layers")]
    row, updates = _rows_of(chosen, "exchange"), _column(chosen, "updates")
    for layer in _names(chosen, "layers"):
        for metric, key, scale in (("seconds", "seconds", 1.0), ("megabytes", "bytes", 1e-6)):
            yield row(metric, scale * _column(chosen, "layers", layer, key) / updates, layer=layer)
