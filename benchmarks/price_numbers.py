"""The numbers of `bench_prices.py`'s runs: of one, of several seeds, and differences seed by seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from price_runs import GREEDY, PRICES, PriceRun

from fairseq_mtmoe.analysis.scores import ALL, TIERS

GROUPS = (*TIERS, ALL)
Numbers = dict[str, Any]


@dataclass(frozen=True)
class Spread:
    """Values of several seeds, at least one."""

    values: Sequence[float]

    def shown(self, digits: int, sign: str = "", unit: str = "") -> str:
        """`mean (lowest to highest)`; of one seed, its value."""
        three = (fmean(self.values), min(self.values), max(self.values))
        mean, low, high = (f"{value:{sign}z.{digits}f}{unit}" for value in three)
        return f"{mean} ({low} to {high})" if len(self.values) > 1 else mean


def change(new: Sequence[float], old: Sequence[float]) -> Spread:
    """By how many percent each seed's new value differs from its old one."""
    return Spread([100 * (a / b - 1) for a, b in zip(new, old, strict=True)])


def difference(new: Sequence[float], old: Sequence[float]) -> Spread:
    """By how much each seed's new value differs from its old one."""
    return Spread([a - b for a, b in zip(new, old, strict=True)])


def signs(new: Sequence[float], old: Sequence[float]) -> str:
    """In how many seeds the new value is the lower one: `2 of 3`."""
    return f"{sum(a < b for a, b in zip(new, old, strict=True))} of {len(new)}"


def numbers_of(run: PriceRun, content: Numbers) -> Numbers:
    """What the report needs of one run: all perplexities, loads, scores, and how it was trained."""
    evaluation = content.pop("evaluation")
    tiers, updates = evaluation["tiers"], evaluation["updates"]
    return {
        "data_set": run.data_set.name, "kind": run.kind, "seed": run.seed,
        "ways": {update: {way: of_way(sums, tiers) for way, sums in found["ways"].items()}
                 for update, found in updates.items()},
        "memories": {update: {memory: perplexities(sums, tiers)[ALL] for memory, sums in found["memories"].items()}
                     for update, found in updates.items() if "memories" in found},
        **content,
    }  # fmt: skip


def of_way(sums: Numbers, tiers: dict[str, str]) -> Numbers:
    """Perplexities; of each layer, the least and the most used expert's load in even shares, and who went elsewhere."""
    layers = list(zip(sums["loads"], sums["changed"], strict=True))
    return {
        "perplexity": perplexities(sums, tiers),
        "least": [round(min(load) * len(load) / sum(load), 4) for load, _ in layers],
        "most": [round(max(load) * len(load) / sum(load), 4) for load, _ in layers],
        "changed": [round(changed / sum(load), 4) for load, changed in layers],
    }


def perplexities(sums: Numbers, tiers: dict[str, str]) -> dict[str, float]:
    """Of each tier that there is, and over all pairs: every token counts the same."""
    groups = {tier: [pair for pair in sums["nll"] if tiers.get(pair) == tier] for tier in TIERS}
    groups[ALL] = list(sums["nll"])
    return {
        group: round(math.exp(sum(sums["nll"][p] for p in pairs) / sum(sums["tokens"][p] for p in pairs)), 4)
        for group, pairs in groups.items()
        if pairs
    }


class Runs:
    """The runs of one data set and one way of training, in the order of their seeds."""

    def __init__(self, runs: Iterable[Numbers]) -> None:
        self.runs = sorted(runs, key=lambda run: int(run["seed"]))

    @classmethod
    def of(cls, numbers: Sequence[Numbers], data_set: str, kind: str) -> Runs:
        """Those among the numbers of all runs."""
        return cls(run for run in numbers if run["data_set"] == data_set and run["kind"] == kind)

    def __bool__(self) -> bool:
        return bool(self.runs)

    @property
    def seeds(self) -> list[int]:
        """Of the runs."""
        return [run["seed"] for run in self.runs]

    def with_seeds(self, seeds: Sequence[int]) -> Runs:
        """The runs of these seeds alone."""
        return Runs(run for run in self.runs if run["seed"] in seeds)

    def updates(self, way: str = PRICES) -> list[int]:
        """At which checkpoints all runs were evaluated in a way."""
        common = set.intersection(*({int(u) for u, ways in run["ways"].items() if way in ways} for run in self.runs))
        return sorted(common)

    def last(self, way: str, what: Callable[[Numbers], float]) -> list[float]:
        """A value of each run's last checkpoint."""
        return self.at(max(self.updates(way)), way, what)

    def at(self, update: int, way: str, what: Callable[[Numbers], float]) -> list[float]:
        """A value of each run at an update."""
        return [what(run["ways"][str(update)][way]) for run in self.runs]

    def perplexity(self, way: str, group: str = ALL, update: int | None = None) -> list[float]:
        """Of each run's last checkpoint, or of that at an update."""
        return self.at(max(self.updates(way)) if update is None else update, way, lambda n: n["perplexity"][group])

    @property
    def groups(self) -> list[str]:
        """The tiers that there are, and all pairs."""
        ways = next(iter(self.runs[0]["ways"].values()))
        return [group for group in GROUPS if group in next(iter(ways.values()))["perplexity"]]

    def against_greedy(self, update: int) -> list[float]:
        """By how many percent each run's perplexity over all pairs at prices differs from greedy's."""
        return list(change(self.perplexity(PRICES, ALL, update), self.perplexity(GREEDY, ALL, update)).values)

    def at_memory(self, memory: str, place: int) -> list[float]:
        """By how many percent each run's perplexity at prices with this memory differs from greedy's.

        Args:
            place: 0, 1, 2 for the first, the middle and the last of the run's own checkpoints.
        """
        updates = [sorted(run["memories"], key=int)[place] for run in self.runs]
        ours = [run["memories"][update][memory] for run, update in zip(self.runs, updates, strict=True)]
        greedy = [
            run["ways"][update][GREEDY]["perplexity"][ALL] for run, update in zip(self.runs, updates, strict=True)
        ]
        return list(change(ours, greedy).values)

    def scores(self, way: str, group: str, metric: str) -> list[float]:
        """`bleu` or `chrf` of each run's test sets: the mean over the pairs of a tier, or over all."""
        return [run["scores"][way][group][metric] for run in self.runs]
