"""The run log: what a training run tells the pictures, as one JSON line per event in `<save_dir>/mtmoe.jsonl`.

Nothing here needs fairseq or torch, so that a log can be read on any machine. The events and their fields are
listed in `fairseq_mtmoe/analysis/README.md`.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from fairseq_mtmoe.analysis.event_fields import FIELDS, is_count, what_is_wrong
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import read_bytes, regular_file

FILE_NAME = "mtmoe.jsonl"

Event = dict[str, Any]


class RunLog:
    """Appends events to one file; a resumed run goes on in the file of the interrupted one."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def write(self, event: str, **fields: Any) -> None:
        """Append one event as a line.

        Numbers may be Python's, numpy's or one-element tensors; those that are not finite become null, because
        JSON has no spelling for them.

        Raises:
            UserError: the file cannot be written (a full disk, a folder without write permission), or is none.
        """
        if self.path.exists():
            regular_file(self.path, "a run log")
        line = json.dumps(_plain({"event": event, **fields}), ensure_ascii=False, allow_nan=False)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered, and a single write: what an interruption leaves is at most one incomplete last line.
            with open(self.path, "ab", buffering=0) as file:
                start = b"" if _ends_with_newline(self.path) else b"\n"
                file.write(start + line.encode("utf-8", "replace") + b"\n")
        except OSError as error:
            raise UserError(f"The run log {self.path} cannot be written: {error.strerror or error}.") from error


def read(path: str | Path) -> list[Event]:
    """The events of a run log, oldest first, as the run that was carried on in the end saw them.

    A run that is interrupted and resumed repeats the events since its last checkpoint. So an event takes back
    earlier lines of its kind (and validation subset) about the same or a later update; an event without
    `update` is ordered by its `epoch`, then its `part`, and one with neither replaces the earlier one; but a run
    `started` when it first did. Lines that an interruption cut off are skipped. What `event_fields` lists is as it says
    there.

    Args:
        path: the log, or the run's folder with the log in it.

    Raises:
        UserError: there is no such log, the file holds no event at all, or an event's field is not what it must be.
    """
    file = Path(path) / FILE_NAME if os.path.isdir(path) else Path(path)
    if not os.path.lexists(file):
        raise UserError(
            f"There is no run log {file}: give the --save-dir of a run of --task translation_heated, glue or "
            "text_to_text."
        )
    content = read_bytes(file, "a run log")
    lines = {number: event for number, line in enumerate(content.split(b"\n"), start=1) if (event := _parse(line))}
    if content and not any(event["event"] in FIELDS for event in lines.values()):
        raise UserError(f"{file} holds no events: it is not a run log, or it is damaged.")
    for number, event in lines.items():
        wrong = what_is_wrong(event)
        if wrong is not None:
            raise UserError(f"Line {number} of the run log `{file}` {wrong}; remove the line to read the others.")
    return _started_first(_without_taken_back(list(lines.values())), list(lines.values()))


def _without_taken_back(events: list[Event]) -> list[Event]:
    kept: list[Event] = []
    earliest: dict[tuple[str, str], tuple[float, float]] = {}
    for event in reversed(events):
        kind = (event["event"], str(event.get("subset", "")))
        moment = _moment(event)
        if moment < earliest.get(kind, (math.inf, 0.0)):
            earliest[kind] = moment
            kept.append(event)
    return kept[::-1]


def _started_first(kept: list[Event], events: list[Event]) -> list[Event]:
    started = next((event["started"] for event in events if event["event"] == "run" and event.get("started")), None)
    return [{**event, "started": started} if event["event"] == "run" and started else event for event in kept]


def _moment(event: Event) -> tuple[float, float]:
    moment: Any = event["update"] if "update" in event else event.get("epoch", 0)
    part = event.get("part", 0)
    return float(moment) if is_count(moment) else 0.0, float(part) if is_count(part) else 0.0  # 0: of an unknown kind


def _parse(line: bytes) -> Event | None:
    try:
        # Other writers spell numbers that are not finite, which JSON has not.
        event = json.loads(line.decode("utf-8"), parse_constant=lambda constant: None)
    except (ValueError, RecursionError):  # also a line that was cut inside a UTF-8 character
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None


def _ends_with_newline(path: Path) -> bool:
    with open(path, "rb") as file:
        if file.seek(0, 2) == 0:
            return True
        file.seek(-1, 2)
        return file.read(1) == b"\n"


def _plain(value: Any) -> Any:
    """`value` with numpy numbers, arrays and tensors as Python numbers and lists, and NaN and infinities as None."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
