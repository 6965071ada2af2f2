"""Folders of runs with every kind of event, and of runs full of hostile texts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.helpers.corpus_reports import HOSTILE as LINES
from tests.helpers.evaluations import write_evaluation
from tests.helpers.figure_logs import translation
from tests.helpers.run_logs import events_of_a_run, write_run

HOSTILE = [
    *(line.replace("\ud800", "").replace("\x00", "") for line in LINES),
    "</script><script>window.owned = 1</script>",
    "<img src='https://example.org/x' onerror='window.owned = 1'>",
    "<!--<script>window.owned = 1",
    "{a|b} {b} {@[1]} ${window.owned = 1} `;window.owned = 1//",
    "__proto__",
    "line\u2028line\u2029line\nline",
]
ADDED = ("gates", "sources", "selection", "expert_comm", "sparsified")


def write_runs(folder: Path, hostile: bool = False) -> list[Path]:
    """Two runs with every event and an evaluation; `hostile`: each name and text is an attack."""
    paths = []
    for number in range(2):
        events = events_of_a_run(pairs=4, updates=4000, validations=8)
        events += [event for event in translation() if event["event"] in ADDED]
        logged = [_attack(event) for event in events] if hostile else events
        path = write_run(folder / f"run-{number}", logged)
        write_evaluation(path / "scores", 0.2 + 0.2 * number, number, sentences=20)
        paths.append(path)
    return paths


def _attack(value: Any, name: str = "") -> Any:
    """The same text always becomes the same attack, so that names still agree."""
    match value:
        case str() if name not in ("event", "subset", "started", "task_ids", "sampling_method"):
            return f"{value}{random.Random(value).choice(HOSTILE)}"
        case dict() if name == "layers":
            return {_attack(key): child for key, child in value.items()}
        case dict() if name in ("pairs", "sizes", "probabilities", "options", "trained", "relative_entropy"):
            return {_attack(key): _attack(child) for key, child in value.items()}
        case dict() if name not in ("all", "tiers"):
            return {key: _attack(child, key) for key, child in value.items()}
        case list():
            return [_attack(child, name) for child in value]
    return value
