"""The one form of a figure: a row, with a value at each of its moments, and the reader that makes rows of a run log.

A run's log becomes rows of these groups, whose metrics are

| group | metrics | task, layer |
|---|---|---|
| `all`, `tier`, `pair` | `ppl`, `loss`, `bleu`, `chrf` of a validation | the tier or pair |
| `task`, `group` | a benchmark's metrics and `loss`; `mean` | the task's set, or the group |
| `train` | what training says of itself (`TRAINED`) | |
| `sampling` | `probability`, `temperature` | the pair or task |
| `selection` | `share` of what was trained on, `entropy` of the candidates, `share_of_data` | the task |
| `experts` | `tokens` of each of N experts in validation: a value is (N,) | the task and the layer |
| `gates` | `blend`, `moved`, `changed` | the layer |
| `sources` | `weight`, `mean weight` at the last validation | the source and the layer |
| `exchange` | `seconds`, `megabytes` of one update | the layer |

Scores of test sets are rows of one moment (`score_files.py`). Where a log speaks of several validation subsets, the
first one counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.analysis import run_log
from fairseq_mtmoe.analysis.run_log import FIELDS, Event
from fairseq_mtmoe.data.translation.tiers import FROM_LOW
from fairseq_mtmoe.errors import UserError

Values = NDArray[np.float64]
Fields = dict[str, Any]
TIERS = FROM_LOW
ALL = "all"
VALIDATION = ("all", "tier", "group", "pair", "task")
FALLING = ("loss", "nll_loss", "ppl")
OF_TEXT = ("ppl", "loss", "bleu", "chrf")  # its `nll_loss` is the logarithm of its perplexity
OF_GATES = ("blend", "moved", "changed")
TRAINED = ("loss", "nll_loss", "lr", "gnorm", "clip", "wps", "ups", "wpb", "bsz", "padding", "skipped", "loss_scale",
           "gb_free", "expert_comm_ms")  # fmt: skip
EVERYBODY = "all tokens"
"""The task of a layer that is not told whose tokens it has."""
UNITS = {"target": "language", "source": "language", "pair": "pair"}


@dataclass(frozen=True)
class Moments:
    """When M figures were measured, each (M,); NaN where nobody knows."""

    update: Values
    minutes: Values
    tokens: Values
    epoch: Values

    def at(self, places: Sequence[int]) -> Moments:
        """Some of them."""
        return Moments(*(values[list(places)] for values in vars(self).values()))


@dataclass(frozen=True)
class Row:
    """A figure over its moments.

    Attributes:
        value: (M,), or (M, N) of N experts; NaN where it is not known.
        subset: of a validation, or a task's set.
        n: examples of a test set; of a mean, the sets.
        stderr: of a score, its standard error; on a page, half of its 95% confidence interval. NaN: not known.
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
    def place_of_best(self) -> int | None:
        """The first place of the best value; None where none is known."""
        known = self.value if self.metric in FALLING else -self.value
        return None if np.isnan(known).all() else int(np.nanargmin(known))

    def at(self, places: Sequence[int]) -> Row:
        """The row at some of its moments."""
        return Row(**{**vars(self), "moments": self.moments.at(places), "value": self.value[list(places)]})


def chosen_rows(rows: Iterable[Row], *groups: str, **wanted: str) -> list[Row]:
    """The rows of these groups with these values of other fields."""
    chosen = (row for row in rows if row.group in groups)
    return [row for row in chosen if all(getattr(row, name) == value for name, value in wanted.items())]


@dataclass
class Run:
    """A run log, read.

    Attributes:
        data: see `data_shares`.
        unit: what a task is, whose experts are counted: "language", "pair" or "task".
        sparsified: the updates at which a dense model became sparse, with the number of experts.
        had_candidates: whether epochs of candidates, of which uncertainty sampling trains on some, are left out.
    """

    name: str
    events: list[Event]
    rows: list[Row]
    data: dict[str, float] = field(default_factory=dict)
    unit: str = "language"
    sparsified: list[tuple[int, int | None]] = field(default_factory=list)
    had_candidates: bool = False

    def of(self, *groups: str, **wanted: str) -> list[Row]:
        """The rows of these groups with these values of other fields."""
        return chosen_rows(self.rows, *groups, **wanted)


def read_run(path: str | Path, name: str | None = None) -> Run:
    """Read a run's folder, or its log, as `run_log.read` does; its name is by default its folder's."""
    return run_of(run_log.read(path), name if name is not None else Path(os.path.realpath(path)).name)


def run_of(events: list[Event], name: str) -> Run:
    """The run that logged these events."""
    readers = (_validation, _training, _sampling, _selection, _experts, _gates, _sources, _exchange)
    rows = [Row(name, **fields) for reader in readers for fields in reader(events)]
    runs, sizes = of_kind(events, "run"), of_kind(events, "sparsified")
    is_benchmark = any(row.group == "task" for row in rows)
    unit = "task" if is_benchmark else UNITS.get(runs[-1].get("task_ids", "target") if runs else "target", "language")
    sparsified = [(int(of["update"]), int(of["num_experts"]) if "num_experts" in of else None) for of in sizes]
    had_candidates = len(_drawn(events)) < len(of_kind(events, "sampling"))
    return Run(name, events, rows, data_shares(events), unit, sparsified, had_candidates)


def run_names(paths: Sequence[str | Path]) -> list[str]:
    """A short name for each run: its folder's, with as many parents as it takes to tell the runs apart."""
    parts = [Path(os.path.realpath(path)).parts for path in paths]
    for depth in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{part[-1]} ({number})" for number, part in enumerate(parts, start=1)]


def of_kind(events: Iterable[Event], kind: str) -> list[Event]:
    """The events of one kind."""
    return [event for event in events if event["event"] == kind]


def of_first_subset(events: Iterable[Event], kind: str) -> list[Event]:
    """Those of the validation subset that the log speaks of first."""
    found = of_kind(events, kind)
    return [event for event in found if event.get("subset") == found[0].get("subset")]


def data_shares(events: Iterable[Event]) -> dict[str, float]:
    """Each task's share of the training sentences, as the run said at its start; empty if it did not.

    Where what was drawn from are not the tasks, these are the target language, or what the run's `task_ids` say.
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


def _common(events: Sequence[Event], group: str, update: str = "update") -> Fields:
    """What rows of one kind of events share: when these happened, as far as such events say it, and the subset."""
    told = FIELDS[events[0]["event"]] if events else {}
    keys = (update, "minutes", "tokens", "epoch")
    found = Moments(*(_column(events, key) if key in told else np.full(len(events), np.nan) for key in keys))
    return {"group": group, "moments": found, "subset": str(events[0].get("subset", "")) if events else ""}


def _column(events: Sequence[Event], *path: str) -> Values:
    """(M,) what stands in each event under one name within another; NaN for None, and where nothing stands there."""
    found: list[Any] = []
    for event in events:
        value: Any = event
        for name in path:
            value = None if value is None else value.get(name)
        found.append(np.nan if value is None else value)
    return np.array(found, np.float64)


def _names(events: Iterable[Event], key: str) -> list[str]:
    return list(dict.fromkeys(name for event in events for name in event.get(key, {})))


def _known(fields: Fields) -> list[Fields]:
    """The row, if it has a value."""
    return [] if np.isnan(fields["value"]).all() else [fields]


def _validation(events: Sequence[Event]) -> Iterable[Fields]:
    """All, then tiers or groups, then pairs or tasks."""
    chosen = of_first_subset(events, "valid")
    common = _common(chosen, ALL)
    for metric in OF_TEXT:
        yield from _known({**common, "metric": metric, "task": ALL, "value": _column(chosen, "all", metric)})
    for key, group in (("tiers", "tier"), ("pairs", "pair"), ("groups", "group"), ("tasks", "task")):
        names = _names(chosen, key)
        for name in [tier for tier in TIERS if tier in names] if key == "tiers" else names:
            figures: list[Event] = [event.get(key, {}).get(name, {}) for event in chosen]
            for metric in _metrics(figures):
                fields = {"group": group, "metric": metric, "task": name, "value": _column(figures, metric)}
                yield from _known({**common, **fields})


def _metrics(figures: Sequence[Mapping[str, Any]]) -> list[str]:
    """Those of a name: perplexity and loss of text; of a benchmark's task its metrics, and then its loss."""
    found = list(dict.fromkeys(metric for one in figures for metric in one))
    if "ppl" in found:
        return [metric for metric in OF_TEXT if metric in found]
    return [metric for metric in found if metric not in FALLING] + [metric for metric in found if metric == "loss"]


def _training(events: Sequence[Event]) -> Iterable[Fields]:
    chosen = of_kind(events, "train")
    common = _common(chosen, "train")
    for metric in TRAINED:
        if any(metric in event for event in chosen):
            yield {**common, "metric": metric, "value": _column(chosen, metric)}


def _drawn(events: Sequence[Event]) -> list[Event]:
    """Epochs, or parts of one, without those of uncertainty sampling's candidates."""
    # Until 0.1.8 the options alone said what was drawn.
    methods = {event.get("sampling_method") for event in of_kind(events, "run")}
    known = of_kind(events, "sampling")
    return [event for event in known if not event.get("of_candidates", "uncertainty" in methods)]


def _sampling(events: Sequence[Event]) -> Iterable[Fields]:
    """The temperature, and each pair's probability, the most frequent at the start first."""
    chosen = _drawn(events)
    common = _common(chosen, "sampling", "updates_before")
    if chosen:
        yield {**common, "metric": "temperature", "value": _column(chosen, "temperature")}
    drawn: list[Event] = [event.get("probabilities", {}) for event in chosen]
    first = {pair: share for probabilities in reversed(drawn) for pair, share in probabilities.items()}
    for pair in sorted(first, key=lambda pair: (-(first[pair] or 0.0), pair)):
        yield {**common, "metric": "probability", "task": pair, "value": _column(drawn, pair)}


def _selection(events: Sequence[Event]) -> Iterable[Fields]:
    """A task that some events do not know was trained on 0 examples there."""
    chosen = of_kind(events, "selection")
    common = _common(chosen, "selection")
    totals = np.array([max(1, sum(event.get("trained", {}).values())) for event in chosen], np.float64)
    for task in _names(chosen, "trained"):
        trained = np.nan_to_num(_column(chosen, "trained", task))
        yield {**common, "metric": "share", "task": task, "value": trained / totals}
        yield {**common, "metric": "entropy", "task": task, "value": _column(chosen, "relative_entropy", task)}
    if chosen:
        yield {**common, "metric": "share_of_data", "value": _column(chosen, "share_of_data")}


def _experts(events: Sequence[Event]) -> Iterable[Fields]:
    """Layers in the model's order, tasks in theirs; without tasks and layers that had no token."""
    chosen = of_first_subset(events, "experts")
    common = {**_common(chosen, "experts"), "metric": "tokens"}
    tasks = list(dict.fromkeys(task for event in chosen for task in event.get("task_names", ())))
    for layer in _names(chosen, "layers"):
        counts = [_counts(event, layer) for event in chosen]
        sizes = {len(row) for of in counts for row in of.values()}
        if len(sizes) > 1:
            raise UserError(
                f"The run log must have the same number of experts in {layer} at all updates, but has not: it is of "
                "several runs, and each needs a folder of its own."
            )
        for task in [*tasks, EVERYBODY]:
            if any(task in of for of in counts):
                values = np.array([of.get(task, [np.nan] * max(sizes)) for of in counts], np.float64)
                yield {**common, "task": task, "layer": layer, "value": values}


def _counts(event: Event, layer: str) -> dict[str, list[float]]:
    """By task the tokens of a layer's experts, of those that had some."""
    rows, names = event.get("layers", {}).get(layer, []), event.get("task_names", [])
    whose = [EVERYBODY] if len(rows) == 1 != len(names) else names
    return {name: row for name, row in zip(whose, rows, strict=True) if sum(row) > 0} if len(rows) == len(whose) else {}


def _gates(events: Sequence[Event]) -> Iterable[Fields]:
    chosen = of_first_subset(events, "gates")
    common = _common(chosen, "gates")
    for metric in OF_GATES:
        for layer in _names(chosen, "layers"):
            values = _column(chosen, "layers", layer, metric)
            yield from _known({**common, "metric": metric, "layer": layer, "value": values})


def _sources(events: Sequence[Event]) -> Iterable[Fields]:
    """What the last validation says."""
    chosen = of_first_subset(events, "sources")[-1:]
    if not chosen:
        return
    names = list(chosen[0].get("sources", ()))
    common = {**_common(chosen, "sources"), "subset": str(chosen[0].get("target", ""))}
    weights = {layer: np.array(found, np.float64) for layer, found in chosen[0].get("layers", {}).items()}
    for layer, found in weights.items():
        if len(found) != len(names):
            raise UserError(
                f"The run log must have a weight for each of the {len(names)} sources in {layer}, but has "
                f"{len(found)}: it is of several runs, and each needs a folder of its own."
            )
    known = [values for values in weights.values() if not np.isnan(values).any()]
    means = {"": np.mean(known, axis=0)} if known and names else {}
    for layer, values in {**means, **weights}.items():
        metric = "weight" if layer else "mean weight"
        for name, value in zip(names, values, strict=True):
            yield {**common, "metric": metric, "task": name, "layer": layer, "value": np.array([value])}


def _exchange(events: Sequence[Event]) -> Iterable[Fields]:
    """What one update sends to other processes, in the mean of a stretch."""
    chosen = [event for event in of_kind(events, "expert_comm") if event.get("updates") and event.get("layers")]
    common = _common(chosen, "exchange")
    updates = _column(chosen, "updates")
    for layer in _names(chosen, "layers"):
        for metric, key, scale in (("seconds", "seconds", 1.0), ("megabytes", "bytes", 1e-6)):
            values = scale * _column(chosen, "layers", layer, key) / updates
            yield from _known({**common, "metric": metric, "layer": layer, "value": values})
