"""Settings and progress of runs, from the events of their logs."""

import json
from collections.abc import Sequence
from typing import Any

from fairseq_mtmoe.core.errors import flag
from fairseq_mtmoe.core.typed import fault
from fairseq_mtmoe.report.rows import Row, Run, distinct, last_of, of_kind
from fairseq_mtmoe.report.run_log import FIELDS, Event, Plain, is_count

FIRST = ("data", "commit", "hardware", "started", "seed")
SIZES = {"parameters": "parameters", "multiplications": "multiplications per token"}
METRICS = {"bleu": "BLEU", "chrf": "chrF++"}
NOT_OPTIONS = {"event", *FIELDS["run"]} - {"sampling_method"}


def start_of(run: Run) -> Event:
    """Return the event of the run's last start; empty without one."""
    return next(reversed(of_kind(run.events, "run")), {})


def settings_of(run: Run) -> dict[str, str]:
    """Return a run's settings: `FIRST`, sizes, options, then versions."""
    start = start_of(run)
    settings = {name: start.get(name) for name in FIRST}
    # A model that became sparse logged its new size then.
    sized = of_kind(run.events, "run", "sparsified")
    for name, title in SIZES.items():
        settings[title] = _counted(last_of(sized, name))
    sizes = start.get("sizes") or {}
    if sizes:
        settings["training sentences"] = f"{int(sum(sizes.values())):,} in {len(sizes)} sets"
    # Options of sampling are beside the others.
    options = dict(start.get("options", {}))
    for name, value in start.items():
        if name not in NOT_OPTIONS and fault(value, Plain) is None:
            options[name] = value
    for name, value in sorted(options.items()):
        settings[flag(name)] = value
    for name, value in sorted(start.get("versions", {}).items()):
        settings[f"{name} (version)"] = value
    return {name: _text(value) for name, value in settings.items()}


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if is_count(value):
        value = int(value)
    return json.dumps(value, ensure_ascii=False)


def compared_settings(
    runs: Sequence[Run],
) -> tuple[list[list[str]], list[list[str]]]:
    """Return rows of settings that differ, with a value per run, and of common ones.

    With one run, all its settings are common. A value that a run does not have is empty.
    """
    settings = [*map(settings_of, runs)]
    differing = []
    common = []
    for name in distinct(settings):
        values = [run_settings.get(name, "") for run_settings in settings]
        if len(set(values)) > 1:
            differing.append([name, *values])
        elif values[0]:
            common.append([name, values[0]])
    return differing, common


def progress_of(run: Run) -> dict[str, str]:
    """Return how far a run is, and its best validation, in words."""
    measured = of_kind(run.events, "train", "valid")
    updates = last_of(measured, "update") or 0
    most = start_of(run).get("options", {}).get("max_update")
    state = "unknown"
    if isinstance(most, int | float) and most > 0:
        state = "finished" if updates >= most else "not finished"
    best = ""
    best_update = ""
    for row in _judging(run)[:1]:
        best = f"{row.value[row.best_index]:,.2f} {METRICS.get(row.metric, row.metric)}"
        best_update = f"{row.update[row.best_index]:,.0f}"
    return {
        "best validation": best,
        "at update": best_update,
        "updates": _counted(updates),
        "epoch": _counted(last_of(of_kind(run.events, "sampling"), "epoch")),
        "minutes": _minutes(last_of(measured, "minutes")),
        "tokens": _counted(last_of(measured, "tokens")),
        "skipped updates": _counted(last_of(of_kind(run.events, "train"), "skipped")),
        "state": state,
    }


def _judging(run: Run) -> list[Row]:
    """Return rows that judge validations: the run's choice, means, perplexities."""
    chosen = start_of(run).get("options", {}).get("best_checkpoint_metric")
    overall = run.of("group", metric="mean", task="all")
    means = run.of("group", metric="mean")[-1:]
    judging = [*overall, *means, *run.of("all", "tier", "pair", "task")]
    return [*run.of("all", metric=str(chosen)), *judging]


def _minutes(value: float | None) -> str:
    return f"{value:.1f}" if value is not None and value < 9.95 else _counted(value)


def _counted(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"
