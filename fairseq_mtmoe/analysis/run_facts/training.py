"""What training said of itself between validations, and how examples were drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fairseq_mtmoe.analysis.run_facts.curves import moments_of
from fairseq_mtmoe.analysis.run_facts.fields import Exchange, Moments, Sampling, Selection, Train, TrainRow
from fairseq_mtmoe.analysis.run_facts.reading import number, of_kind
from fairseq_mtmoe.analysis.run_log import Event
from fairseq_mtmoe.analysis.series import sampling_series, selection_series

MOST_POINTS = 2000
MOST_EPOCHS = 300

BITS = "bits"
FIGURES = {
    "loss": ("training loss", BITS),
    "nll_loss": ("training loss without smoothing", BITS),
    "lr": ("learning rate", ""),
    "gnorm": ("norm of gradients", ""),
    "clip": ("clipped updates", "%"),
    "wps": ("speed", "tokens per second"),
    "ups": ("updates", "updates per second"),
    "wpb": ("batch", "tokens per update"),
    "bsz": ("batch", "examples per update"),
    "padding": ("padding", "share of positions"),
    "skipped": ("left out updates", "so far"),
    "loss_scale": ("loss scale", ""),
    "gb_free": ("free memory", "GB"),
    "expert_comm_ms": ("exchange of tokens", "ms per update"),
}
"""What is shown of the event `train`, with a name and a unit for people."""


def train_of(events: Iterable[Event]) -> Train:
    """At most `MOST_POINTS` moments, among which the highest and lowest values of each figure are."""
    events = list(events)
    chosen, is_of_text = of_kind(events, "train"), _is_of_text(events)
    moments = moments_of(chosen)
    rows: dict[str, list[float | None]] = {
        key: [number(event.get(key)) for event in chosen] for key in FIGURES if any(key in event for event in chosen)
    }
    found: list[TrainRow] = [
        {"key": key, "label": label, "unit": unit if is_of_text or unit != BITS else "", "values": values}
        for key, values in rows.items()
        for label, unit in [FIGURES[key]]
    ]
    return thin_training({"moments": moments, "rows": found}, MOST_POINTS)


def _is_of_text(events: Sequence[Event]) -> bool:
    """Whether the loss is of words, in bits, and not of the heads of several tasks, each in units of its own."""
    runs = of_kind(events, "run")
    task = runs[-1].get("options", {}).get("task") if runs else None
    if task is None:  # until 0.1.9 logs did not say
        return not any("tasks" in event for event in of_kind(events, "valid"))
    return bool(task != "glue")


def thin_training(train: Train, most: int) -> Train:
    """At most so many moments: two for each stretch of them, its first and its last, with its lowest and highest value.

    These two come in the order in which they were.
    """
    moments = train["moments"]
    if len(moments["update"]) <= most:
        return train
    stretches = np.array_split(np.arange(len(moments["update"])), most // 2)
    ends = [int(place) for stretch in stretches for place in (stretch[0], stretch[-1])]
    kept: Moments = {
        "update": [moments["update"][place] for place in ends],
        "minutes": [moments["minutes"][place] for place in ends],
        "tokens": [moments["tokens"][place] for place in ends],
    }
    rows: list[TrainRow] = [
        {**row, "values": [one for of in stretches for one in _extremes(row["values"], of)]} for row in train["rows"]
    ]
    return {"moments": kept, "rows": rows}


def _extremes(values: Sequence[float | None], places: Any) -> list[float | None]:
    known = [(value, int(place)) for place in places if (value := values[int(place)]) is not None]
    if not known:
        return [None, None]
    ends = sorted((min(known), max(known)), key=lambda one: one[1])
    return [value for value, _ in ends]


def sampling_of(events: Iterable[Event]) -> Sampling:
    """Of each epoch, or part of one; of very many of them some, evenly between the first and the last."""
    events = list(events)
    series = sampling_series(events)
    places = evenly(len(series.epochs), MOST_EPOCHS)
    return {
        "epochs": [series.epochs[place] for place in places],
        "updates": [series.updates[place] for place in places],
        "temperature": [number(series.temperatures[place]) for place in places],
        "probabilities": {
            name: [number(values[place], 4) for place in places] for name, values in series.probabilities.items()
        },
        "candidates": series.had_candidates,
    }


def selection_of(events: Iterable[Event]) -> Selection | None:
    """What uncertainty sampling trained on; None without it."""
    series = selection_series(events)
    if not series.updates:
        return None
    places, shares = evenly(len(series.updates), MOST_EPOCHS), series.shares
    return {
        "updates": [series.updates[place] for place in places],
        "shares": {task: [number(values[place], 4) for place in places] for task, values in shares.items()},
        "entropies": {
            task: [number(values[place], 4) for place in places] for task, values in series.entropies.items()
        },
        "share_of_data": [number(series.share_of_data[place], 4) for place in places],
    }


def exchange_of(events: Iterable[Event]) -> Exchange | None:
    """What one update sends to other processes, in the mean of a stretch; None where nothing was measured."""
    chosen = [event for event in of_kind(events, "expert_comm") if event.get("updates") and event.get("layers")]
    if not chosen:
        return None
    chosen = [chosen[place] for place in evenly(len(chosen), MOST_EPOCHS)]
    layers = dict.fromkeys(layer for event in chosen for layer in event["layers"])

    def means(layer: str, name: str, scale: float) -> list[float | None]:
        values = [event["layers"].get(layer, {}).get(name) for event in chosen]
        return [
            None if value is None else number(value * scale / event["updates"])
            for value, event in zip(values, chosen, strict=True)
        ]

    found = {layer: (means(layer, "seconds", 1), means(layer, "bytes", 1e-6)) for layer in layers}
    return {
        "updates": [int(event["update"]) for event in chosen],
        "seconds": _sums([seconds for seconds, _ in found.values()]),
        "megabytes": _sums([sent for _, sent in found.values()]),
        "layers": {layer: {"seconds": seconds, "megabytes": sent} for layer, (seconds, sent) in found.items()},
    }


def evenly(count: int, most: int) -> list[int]:
    """Places of at most so many of `count` things, the first and the last among them, evenly between."""
    if count <= most:
        return list(range(count))
    return sorted({round(place) for place in np.linspace(0, count - 1, most).tolist()})


def _sums(columns: Sequence[Sequence[float | None]]) -> list[float | None]:
    return [number(sum(value or 0.0 for value in row)) for row in zip(*columns, strict=True)]
