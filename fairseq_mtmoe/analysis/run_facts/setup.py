"""What was run, and how far it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairseq_mtmoe.analysis.event_fields import is_plain
from fairseq_mtmoe.analysis.run_facts.fields import Best, Progress, Setup, Sparsified
from fairseq_mtmoe.analysis.run_facts.reading import exact, last_known, of_kind
from fairseq_mtmoe.analysis.run_log import Event

NOT_OPTIONS = {
    *("event", "sizes", "tiers", "task_names", "task_ids", "seed", "options"),
    *("versions", "commit", "hardware", "command", "started", "data", "folder", "parameters", "multiplications"),
}
UNITS = {"target": "language", "source": "language", "pair": "pair"}


def setup_of(events: Sequence[Event]) -> Setup:
    """What the run's last start said of it; until 0.1.9 a log had its sampling alone for options."""
    run: Event = of_kind(events, "run")[-1] if of_kind(events, "run") else {"event": "run"}
    sampling = {
        name: value for name, value in run.items() if name not in NOT_OPTIONS and value is not None and is_plain(value)
    }
    seed = run.get("seed")
    # The last word on the model's size is that of the moment at which it became sparse.
    size = [event for event in events if event["event"] in ("run", "sparsified") and "parameters" in event]
    is_benchmark = any("tasks" in event for event in of_kind(events, "valid"))
    return {
        "options": {**sampling, **run.get("options", {})},
        "versions": run.get("versions", {}),
        "commit": run.get("commit"),
        "hardware": run.get("hardware"),
        "command": run.get("command"),
        "seed": None if seed is None else int(seed),
        "started": run.get("started"),
        "data": run.get("data"),
        "folder": run.get("folder"),
        "parameters": _count(last_known(size, "parameters")),
        "multiplications": _count(last_known(size, "multiplications")),
        "sizes": {name: int(size) for name, size in run.get("sizes", {}).items()},
        "tiers": run.get("tiers", {}),
        "unit": "task" if is_benchmark else UNITS.get(run.get("task_ids", "target"), "language"),
    }


def progress_of(events: Sequence[Event], options: dict[str, Any], best: Best | None) -> Progress:
    """How far the run is; it is over when it has made the updates that `--max-update` says."""
    measured = [event for event in events if event["event"] in ("train", "valid")]
    updates = max((int(event["update"]) for event in events if "update" in event), default=0)
    most, tokens = options.get("max_update"), last_known(measured, "tokens")
    skipped = last_known(of_kind(events, "train"), "skipped")
    epoch = max((int(event["epoch"]) for event in of_kind(events, "sampling")), default=None)
    return {
        "updates": updates,
        "minutes": exact(last_known(measured, "minutes")),
        "tokens": None if tokens is None else int(tokens),
        "epoch": epoch,
        "skipped": int(skipped or 0) if of_kind(events, "train") else None,
        "best": best,
        "finished": updates >= most if isinstance(most, int) and not isinstance(most, bool) and most > 0 else None,
    }


def sparsified_of(events: Sequence[Event]) -> list[Sparsified]:
    """When the model became sparse, if it began dense."""
    return [
        {"update": int(event["update"]), "num_experts": _count(event.get("num_experts"))}
        for event in of_kind(events, "sparsified")
    ]


def _count(value: Any) -> int | None:
    return None if value is None else int(value)
