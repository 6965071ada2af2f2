"""What validations found, over updates, minutes and tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from fairseq_mtmoe.analysis.run_facts.fields import Best, CurveRow, Curves, Group, Moments
from fairseq_mtmoe.analysis.run_facts.reading import exact, number, of_first_subset
from fairseq_mtmoe.analysis.run_log import Event
from fairseq_mtmoe.analysis.scores import TIERS

FALLING = ("loss", "nll_loss", "ppl")
SHOWN = ("ppl", "loss", "bleu", "chrf")  # of text, whose `nll_loss` is the logarithm of its perplexity


def moments_of(events: Sequence[Event]) -> Moments:
    """When events happened; what an older log does not say is None."""
    return {
        "update": [int(event["update"]) for event in events],
        "minutes": [exact(event.get("minutes")) for event in events],
        "tokens": [exact(event.get("tokens")) for event in events],
    }


def curves_of(events: Iterable[Event]) -> Curves:
    """Of the first validation subset that the log speaks of: all, then tiers or groups, then pairs or tasks."""
    chosen = of_first_subset(events, "valid")
    rows = [_row("all", "all", "all", name, [event.get("all", {}).get(name) for event in chosen]) for name in SHOWN]
    tiers = _names(chosen, "tiers")
    sets: list[tuple[str, Group, list[str]]] = [
        ("tiers", "tier", [tier for tier in TIERS if tier in tiers]),
        ("pairs", "pair", _names(chosen, "pairs")),
        ("groups", "group", _names(chosen, "groups")),
        ("tasks", "task", _names(chosen, "tasks")),
    ]
    for key, group, names in sets:
        for name in names:
            of_name = [event.get(key, {}).get(name, {}) for event in chosen]
            rows += [
                _row(f"{group}:{name}", name, group, metric, [figures.get(metric) for figures in of_name])
                for metric in _metrics(of_name)
            ]
    known = [row for row in rows if any(value is not None for value in row["values"])]
    subset = str(chosen[0].get("subset", "")) if chosen else ""
    return {"subset": subset, "moments": moments_of(chosen), "rows": known}


def best_of(curves: Curves) -> Best | None:
    """The validation with the lowest perplexity, or of a benchmark with the highest mean over its tasks."""
    means = [row for row in curves["rows"] if row["group"] == "group" and row["metric"] == "mean"]
    chosen = [row for row in means if row["label"] == "all"] or means[-1:] or curves["rows"][:1]
    if not chosen:
        return None
    row, updates = chosen[0], curves["moments"]["update"]
    known = [(value, update) for value, update in zip(row["values"], updates, strict=True) if value is not None]
    choose = min if row["better"] == "lower" else max
    value, update = choose(known, key=lambda one: one[0])
    return {"update": update, "metric": row["metric"], "value": value}


def _row(key: str, label: str, group: Group, metric: str, values: list[Any]) -> CurveRow:
    better: Literal["lower", "higher"] = "lower" if metric in FALLING else "higher"
    found = [number(value) for value in values]
    return {"key": key, "label": label, "group": group, "metric": metric, "better": better, "values": found}


def _names(events: Sequence[Event], key: str) -> list[str]:
    return list(dict.fromkeys(name for event in events for name in event.get(key, {})))


def _metrics(figures: Sequence[Any]) -> list[str]:
    """Those of a name: perplexity and loss of text; of a benchmark's task its metrics, and then its loss."""
    found = list(dict.fromkeys(metric for one in figures for metric in one))
    if "ppl" in found:
        return [metric for metric in SHOWN if metric in found]
    return [metric for metric in found if metric not in FALLING] + [metric for metric in found if metric == "loss"]
