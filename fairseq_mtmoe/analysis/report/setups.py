"""What was run and how far it is, of several runs beside each other: where they differ, what they have in common."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairseq_mtmoe.analysis.rows import Run, of_kind
from fairseq_mtmoe.analysis.run_log import Event, is_plain

FIRST = ("data", "commit", "hardware", "started", "seed")
NOT_OPTIONS = {
    *("event", "sizes", "tiers", "task_names", "task_ids", "options", "versions", "command", "folder"),
    *("parameters", "multiplications", *FIRST),
}
SIZES = {"parameters": "parameters", "multiplications": "multiplications per token"}


@dataclass(frozen=True)
class Progress:
    """How far a run is; None where nobody knows.

    Attributes:
        best: the update, metric and value of the validation with the lowest perplexity, or of a benchmark with the
            highest mean over its tasks.
        finished: whether it has made the updates that `--max-update` says.
    """

    updates: int
    minutes: float | None
    tokens: int | None
    epoch: int | None
    skipped: int | None
    best: tuple[int, str, float] | None
    finished: bool | None


def progress_of(run: Run) -> Progress:
    """How far it is, by the last events that say so."""
    events, trained = run.events, of_kind(run.events, "train")
    measured = [event for event in events if event["event"] in ("train", "valid")]
    updates = max((int(event["update"]) for event in events if "update" in event), default=0)
    most, tokens = setup_of(run)["options"].get("max_update"), _last(measured, "tokens")
    is_limited = isinstance(most, int) and not isinstance(most, bool) and most > 0
    return Progress(
        updates, _last(measured, "minutes"), None if tokens is None else int(tokens),
        max((int(event["epoch"]) for event in of_kind(events, "sampling")), default=None),
        int(_last(trained, "skipped") or 0) if trained else None, _best(run), updates >= most if is_limited else None,
    )  # fmt: skip


def _best(run: Run) -> tuple[int, str, float] | None:
    means = run.of("group", metric="mean")
    chosen = [row for row in means if row.task == "all"] or means[-1:] or run.of("all", "tier", "pair", "task")[:1]
    if not chosen or (place := chosen[0].place_of_best) is None:
        return None
    return int(chosen[0].moments.update[place]), chosen[0].metric, float(chosen[0].value[place])


def _last(events: Sequence[Event], name: str) -> Any:
    """The last value of a field that is not None; None where there is none."""
    return next((event[name] for event in reversed(events) if event.get(name) is not None), None)


def setup_of(run: Run) -> dict[str, Any]:
    """What the run's last start said of it; until 0.1.9 a log had its sampling alone for options."""
    start: Event = next(reversed(of_kind(run.events, "run")), {})
    sampling = {name: value for name, value in start.items()
                if name not in NOT_OPTIONS and value is not None and is_plain(value)}  # fmt: skip
    # The last word on the model's size is that of the moment at which it became sparse.
    sized = [event for event in run.events if event["event"] in ("run", "sparsified") and "parameters" in event]
    return {
        **{name: start.get(name) for name in ("command", "folder", *FIRST)},
        **{name: _last(sized, name) for name in SIZES},
        "sizes": start.get("sizes", {}),
        "options": {**sampling, **start.get("options", {})},
        "versions": start.get("versions", {}),
    }


@dataclass
class Setups:
    """Settings by name; a value that a run does not have, or that is a default, is empty.

    Attributes:
        runs: their names.
        differing: what is not the same in all runs, but for commands: a value for each run.
        common: what is.
        commands: by run, of those whose command is known.
    """

    runs: list[str]
    differing: list[tuple[str, list[str]]] = field(default_factory=list)
    common: list[tuple[str, str]] = field(default_factory=list)
    commands: list[tuple[str, str]] = field(default_factory=list)


def setups_of(setups: Mapping[str, Mapping[str, Any]]) -> Setups:
    """Compare setups, as `setup_of` returns them, by the runs' names; of one run everything is in common."""
    found, settings = Setups(list(setups)), [_settings(setup) for setup in setups.values()]
    folders = [setup.get("folder") or "" for setup in setups.values()]
    for name in dict.fromkeys(name for one in settings for name in one):
        values = [one.get(name, "") for one in settings]
        if len({_meant(name, value, folder) for value, folder in zip(values, folders, strict=True)}) > 1:
            found.differing.append((name, values))
        elif values[0]:
            found.common.append((name, values[0]))
    found.commands = [(name, one["command"]) for name, one in setups.items() if one.get("command")]
    return found


def _settings(setup: Mapping[str, Any]) -> dict[str, str]:
    """Everything of a setup that has one value, what was asked for first, then options, then versions."""
    found = {name: setup.get(name) for name in FIRST}
    found |= {title: None if (size := setup.get(name)) is None else f"{int(size):,}" for name, title in SIZES.items()}
    sizes = setup.get("sizes") or {}
    found["training sentences"] = f"{int(sum(sizes.values())):,} in {len(sizes)} sets" if sizes else None
    found |= {f"--{name.replace('_', '-')}": value for name, value in sorted((setup.get("options") or {}).items())}
    found |= {f"{name} (version)": value for name, value in sorted((setup.get("versions") or {}).items())}
    return {name: _text(value) for name, value in found.items()}


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _meant(name: str, value: str, folder: str) -> str:
    """A value in which spellings of one path are alike, as far as the folder is known in which it begins."""
    if not value or (name != "data" and os.sep not in value):
        return value
    return ":".join(os.path.normpath(os.path.join(folder, part)) for part in value.split(":"))
