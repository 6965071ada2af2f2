"""What there is room for on a page of several runs: where there is more of something, less of each run is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fairseq_mtmoe.analysis.run_facts.training import MOST_POINTS, thin_training

CELLS = 500_000
"""Shares of experts on a page, of all runs together: 1.3 MB. Where there are more, moments are left out."""

NUMBERS = 250_000
"""Of curves of validation and training, of all runs together: 1.5 MB. Where there are more, moments are left out."""

TEXTS = 900_000
"""Bytes of translations on a page, of all runs together. Where there are more, fewer of each pair are shown."""


def every(number: int, step: int) -> list[int]:
    """Places of each step-th of so many things, and of the last."""
    return sorted({*range(0, number, step), *([number - 1] if number else [])})


def step_of_experts(runs: Sequence[Mapping[str, Any]]) -> int:
    """Every which moment of experts' shares there is room for."""
    all_experts = [run["experts"] for run in runs]
    of_one = [sum(experts["num_experts"].values()) * len(experts["tasks"]) for experts in all_experts]
    step, most = 1, max((len(experts["updates"]) for experts in all_experts), default=0)

    def cells() -> int:
        return sum(
            cells * len(every(len(experts["updates"]), step))
            for cells, experts in zip(of_one, all_experts, strict=True)
        )

    while step < most and cells() > CELLS:
        step += 1
    return step


def thin_curves(runs: Sequence[dict[str, Any]]) -> None:
    """Leaves moments of validation and training out. The best of every curve stays, and the peaks of training."""
    step, before = 1, [(run["curves"], run["train"]) for run in runs]
    most = max((len(curves["moments"]["update"]) for curves, _ in before), default=0)
    while step < max(most, MOST_POINTS // 2) and sum(map(_numbers, runs)) > NUMBERS:
        step += max(1, step // 4)  # of thousands of moments soon few
        for run, (curves, train) in zip(runs, before, strict=True):
            run["curves"] = _each_of(curves, step)
            run["train"] = thin_training(train, max(2, MOST_POINTS // step))


def thin_texts(runs: Sequence[dict[str, Any]]) -> int:
    """Keeps as many translations of each pair as there is room for; returns how many were left out."""
    before = sum(len(samples) for run in runs for samples in run["samples"].values())
    while (most := _most(runs)) > 1 and sum(map(_bytes_of, _texts(runs))) > TEXTS:
        for run in runs:
            run["samples"] = {pair: samples[: most - 1] for pair, samples in run["samples"].items()}
    return before - sum(len(samples) for run in runs for samples in run["samples"].values())


def _numbers(run: Mapping[str, Any]) -> int:
    return sum(len(row["values"]) for part in ("curves", "train") for row in run[part]["rows"])


def _each_of(curves: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Each step-th moment, the last, and those at which a row is at its best."""
    places = every(len(curves["moments"]["update"]), step)
    kept = sorted({*places, *(best for row in curves["rows"] if (best := _place_of_best(row)) is not None)})
    return {
        **curves,
        "moments": {name: [values[place] for place in kept] for name, values in curves["moments"].items()},
        "rows": [{**row, "values": [row["values"][place] for place in kept]} for row in curves["rows"]],
        "thinned": True,
    }


def _place_of_best(row: Mapping[str, Any]) -> int | None:
    """The first place of the best value."""
    known = [(value, place) for place, value in enumerate(row["values"]) if value is not None]
    sign = -1 if row["better"] == "higher" else 1
    return min(known, key=lambda one: sign * one[0])[1] if known else None


def _most(runs: Sequence[Mapping[str, Any]]) -> int:
    return max((len(samples) for run in runs for samples in run["samples"].values()), default=0)


def _texts(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for run in runs:
        for samples in run["samples"].values():
            for one in samples:
                yield from (one["source"] or "", *one["references"], one["hypothesis"])


def _bytes_of(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))
