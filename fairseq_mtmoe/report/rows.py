"""Rows, the one form of a figure over moments, and their reader for run logs.

docs/reference/run_log.md lists the groups of rows and their metrics. With several validation
subsets, the first counts.
"""

from __future__ import annotations

import os
from collections import ChainMap, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.tiers import FROM_LOW
from fairseq_mtmoe.report import run_log
from fairseq_mtmoe.report.run_log import TRAINED_AMOUNTS, Event

Values = NDArray[np.float64]
ARRAYS = ("value", "update", "minutes", "epoch")
TIERS = FROM_LOW
ALL = "all"
FALLING = ("loss", "nll_loss", "ppl")
# `nll_loss` is not here, because it is the logarithm of perplexity.
OF_TEXT = ("ppl", "loss", "bleu", "chrf")
ALL_TOKENS = "all tokens"
"""The task of a layer that does not know its tokens' tasks."""
SEVERAL_RUNS = "it is of several runs; each run needs its own folder."


@dataclass(frozen=True)
class Row:
    """A figure over M moments.

    Attributes:
        value: (M,), or (M, N) for N experts; NaN if unknown.
        update, minutes, epoch: (M,), the times of the moments; NaN if unknown.
        subset: the validation subset, or a task's set.
        n: examples of a test set; number of sets of a mean.
        stderr: standard error of a score; NaN if unknown.
    """

    group: str
    metric: str
    value: Values
    update: Values
    minutes: Values
    epoch: Values
    task: str = ""
    layer: str = ""
    subset: str = ""
    run: str = ""
    n: int = 0
    stderr: float = np.nan

    @property
    def figure(self) -> float:
        """The last value."""
        return float(self.value[-1])

    @property
    def best_index(self) -> int:
        """The first index of the best value."""
        return int(np.nanargmin(self.value if self.metric in FALLING else -self.value))


def chosen_rows(rows: Iterable[Row], *groups: str, **wanted: str) -> list[Row]:
    """Return the rows of these groups whose other fields have these values."""
    chosen = []
    for row in rows:
        if row.group not in groups:
            continue
        if all(getattr(row, name) == value for name, value in wanted.items()):
            chosen.append(row)
    return chosen


def first_by_task(rows: Iterable[Row]) -> dict[str, Row]:
    """Return the first row of each task."""
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(row.task, row)
    return first


@dataclass(frozen=True)
class Run:
    """A run log, read.

    Attributes:
        data: see `data_shares`.
        unit: the kind of task: "language", "pair" or "task".
        sparsified: the updates at which a dense model became sparse.
    """

    name: str
    events: list[Event]
    rows: list[Row]
    data: dict[str, float]
    unit: str
    sparsified: Values

    def of(self, *groups: str, **wanted: str) -> list[Row]:
        """Return the rows of these groups whose other fields have these values."""
        return chosen_rows(self.rows, *groups, **wanted)

    def thinned(self, most: int) -> Run:
        """Return the run with at most `most` moments of each row, evenly spread."""
        rows = []
        for row in self.rows:
            indices = evenly(len(row.value), most)
            arrays = {name: getattr(row, name)[indices] for name in ARRAYS}
            rows.append(replace(row, **arrays))
        return replace(self, rows=rows)


def evenly(count: int, most: int) -> list[int]:
    """Return at most `most` indices of `count`, evenly from the first to the last."""
    indices: list[int] = np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()
    return indices


def read_run(path: str | Path, name: str | None = None) -> Run:
    """Read a run's folder or log (`run_log.read`); its default name is the folder's."""
    return run_of(run_log.read(path), name or Path(os.path.realpath(path)).name)


def run_of(events: list[Event], name: str) -> Run:
    """Return the run of these events; rows without any value are dropped.

    Rows of sources and selection are kept.
    """
    rows = []
    for reader in READERS:
        for row in reader(events):
            has_value = row.group in ("sources", "selection") or not np.isnan(row.value).all()
            if len(row.value) and has_value:
                rows.append(row)
    unit = "language"
    if chosen_rows(rows, "task"):
        unit = "task"
    elif last_of(of_kind(events, "run"), "task_ids") == "pair":
        unit = "pair"
    sparsified = column_of(of_kind(events, "sparsified"), "update")
    return Run(name, events, rows, data_shares(events), unit, sparsified)


def run_names(paths: Sequence[str | Path]) -> list[str]:
    """Return a short name per run: its folder's, with parents as needed to be unique."""
    parts = [Path(os.path.realpath(path)).parts for path in paths]
    depth = 1
    while len({part[-depth:] for part in parts}) < len(set(parts)):
        depth += 1
    return ["/".join(part[-depth:]) for part in parts]


def of_kind(events: Iterable[Event], *kinds: str) -> list[Event]:
    """Return the events of some kinds."""
    return [event for event in events if event["event"] in kinds]


def last_of(events: Sequence[Event], name: str) -> Any:
    """Return a field's last value that is not None; None if there is none."""
    for event in reversed(events):
        if event.get(name) is not None:
            return event[name]
    return None


def of_first_subset(events: Iterable[Event], kind: str) -> list[Event]:
    """Return the events of one kind with the validation subset of the first of them."""
    same_kind = of_kind(events, kind)
    return [event for event in same_kind if event.get("subset") == same_kind[0].get("subset")]


def data_shares(events: Iterable[Event]) -> dict[str, float]:
    """Return each task's share of training sentences; empty if the log has no sizes.

    If sizes are of language pairs, a pair's task is its target language, or as the run's `task_ids`
    says.
    """
    sized = [event for event in of_kind(events, "run") if event.get("sizes")]
    shares: dict[str, float] = defaultdict(float)
    for event in sized[:1]:
        sizes = event["sizes"]
        total = max(1, sum(sizes.values()))
        task_ids = event.get("task_ids", "target")
        if {*sizes} == {*event.get("task_names", ())}:
            task_ids = "pair"
        for name, size in sizes.items():
            source, _, target = name.partition("-")
            task = {"source": source, "target": target}.get(task_ids, name)
            shares[task] += size / total
    return dict(shares)


def _maker(events: Sequence[Event], update: str = "update") -> Callable[..., Row]:
    """Return a function that makes rows of these events."""
    return partial(
        Row,
        update=column_of(events, update),
        minutes=column_of(events, "minutes"),
        epoch=column_of(events, "epoch"),
        subset=next(iter(events), {}).get("subset", ""),
    )


def column_of(events: Iterable[Mapping[str, Any]], *path: str) -> Values:
    """Return the values at a path of names, (M,); NaN where one is None or missing."""
    *parents, last = path
    column = []
    for event in events:
        for name in parents:
            event = event.get(name) or {}
        column.append(event.get(last))
    return np.array(column, np.float64)


def distinct(names: Iterable[Iterable[str]]) -> list[str]:
    """Return the names of all collections, in order of appearance."""
    return list(dict.fromkeys(chain.from_iterable(names)))


def _names(events: Iterable[Event], key: str) -> list[str]:
    return distinct(event.get(key, ()) for event in events)


def _validation(events: Sequence[Event]) -> Iterator[Row]:
    """Yield rows of all, then tiers or groups, then pairs or tasks."""
    chosen = of_first_subset(events, "valid")
    row_of = _maker(chosen)
    for metric in OF_TEXT:
        yield row_of(ALL, metric, column_of(chosen, "all", metric), task=ALL)
    for group in ("tier", "pair", "group", "task"):
        key = f"{group}s"
        names = _names(chosen, key)
        if group == "tier":
            names = sorted({*names} & {*TIERS}, key=TIERS.index)
        for name in names:
            figures: list[Event] = [event.get(key, {}).get(name, {}) for event in chosen]
            for metric in _metrics(figures):
                yield row_of(group, metric, column_of(figures, metric), task=name)


def _metrics(figures: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return perplexity or a task's metrics, then the loss."""
    metrics = [name for name in distinct(figures) if name not in ("loss", "nll_loss", "tokens")]
    return [*metrics, "loss"]


def _training(events: Sequence[Event]) -> Iterator[Row]:
    chosen = of_kind(events, "train")
    row_of = _maker(chosen)
    for metric in ("loss", "nll_loss", *TRAINED_AMOUNTS):
        yield row_of("train", metric, column_of(chosen, metric))


def _sampling(events: Sequence[Event]) -> Iterator[Row]:
    """Yield the temperature, and pairs' probabilities, the highest at the start first.

    A pair's back-translated part follows it. Uncertainty sampling's candidates are left out.
    """
    chosen = [event for event in of_kind(events, "sampling") if not event.get("of_candidates")]
    row_of = _maker(chosen, "updates_before")
    yield row_of("sampling", "temperature", column_of(chosen, "temperature"))
    first = _joined(chosen, "probabilities")
    synthetic = _joined(of_kind(events, "run"), "synthetic")
    for pair in sorted(first, key=lambda pair: (-(first[pair] or 0.0), pair)):
        column = column_of(chosen, "probabilities", pair)
        yield row_of("sampling", "probability", column, task=pair)
        if synthetic.get(pair):
            part = synthetic[pair] * column
            yield row_of("sampling", "probability", part, task=f"{pair}, back-translated")


def _joined(events: Iterable[Event], key: str) -> ChainMap[str, Any]:
    """Return the mappings of events as one, in which the first value of a name counts."""
    return ChainMap(*[event.get(key, {}) for event in events])


def _selection(events: Sequence[Event]) -> Iterator[Row]:
    """Yield tasks' shares and entropies; a task missing in an event has share 0."""
    chosen = of_kind(events, "selection")
    row_of = _maker(chosen)
    totals = np.array([max(1, sum(event.get("trained", {}).values())) for event in chosen])
    for task in _names(chosen, "trained"):
        trained = np.nan_to_num(column_of(chosen, "trained", task))
        yield row_of("selection", "share", trained / totals, task=task)
        yield row_of("selection", "entropy", column_of(chosen, "relative_entropy", task), task=task)
    yield row_of("selection", "share_of_data", column_of(chosen, "share_of_data"))


def _experts(events: Sequence[Event]) -> Iterator[Row]:
    """Yield experts' tokens by layer and task, in order, where there are tokens."""
    chosen = of_first_subset(events, "experts")
    row_of = _maker(chosen)
    tasks = [*_names(chosen, "task_names"), ALL_TOKENS]
    for layer in _names(chosen, "layers"):
        counts = [_counts(event, layer) for event in chosen]
        sizes = {len(tokens) for counts_by_task in counts for tokens in counts_by_task.values()}
        if len(sizes) > 1:
            raise UserError(
                f"The run log must have one number of experts in {layer}, but has several: "
                f"{SEVERAL_RUNS}"
            )
        for task in sorted(distinct(counts), key=tasks.index):
            unknown = [np.nan] * max(sizes)
            rows = [counts_by_task.get(task, unknown) for counts_by_task in counts]
            yield row_of("experts", "tokens", np.array(rows, np.float64), task=task, layer=layer)


def _counts(event: Event, layer: str) -> dict[str, list[float]]:
    """Return the tokens of a layer's experts, by each task that has some."""
    rows = event.get("layers", {}).get(layer, [])
    names = event.get("task_names", [])
    if len(rows) == 1 != len(names):
        names = [ALL_TOKENS]
    if len(rows) != len(names):
        return {}
    return {name: row for name, row in zip(names, rows, strict=True) if sum(row) > 0}


def _gates(events: Sequence[Event]) -> Iterator[Row]:
    chosen = of_first_subset(events, "gates")
    row_of = _maker(chosen)
    for metric in ("blend", "moved", "changed"):
        for layer in _names(chosen, "layers"):
            yield row_of("gates", metric, column_of(chosen, "layers", layer, metric), layer=layer)


def _sources(events: Sequence[Event]) -> Iterator[Row]:
    """Yield the last validation's weights; these rows' subset is the target task."""
    for event in of_first_subset(events, "sources")[-1:]:
        row_of = _maker([{**event, "subset": event.get("target", "")}])
        names = event.get("sources", ())
        layers = event.get("layers", {})
        for layer, weights in layers.items():
            if len(weights) != len(names):
                rule = f"a weight for each of the {len(names)} sources in {layer}"
                raise UserError(
                    f"The run log must have {rule}, but has {len(weights)}: {SEVERAL_RUNS}"
                )
        complete = [weights for weights in layers.values() if None not in weights]
        if complete:
            for name, mean in zip(names, np.mean(complete, axis=0), strict=True):
                yield row_of("sources", "mean weight", np.array([mean]), task=name)
        for layer, weights in layers.items():
            for name, weight in zip(names, weights, strict=True):
                yield row_of(
                    "sources", "weight", np.array([weight], np.float64), task=name, layer=layer
                )


READERS = (_validation, _training, _sampling, _selection, _experts, _gates, _sources)
