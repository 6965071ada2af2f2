"""The run log: one JSON line per training event in `<save_dir>/mtmoe.jsonl`.

Reading it needs neither fairseq nor torch. docs/reference/run_log.md lists the events.
"""

import json
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, Required

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import open_in_place, read_bytes
from fairseq_mtmoe.core.typed import Rule, Text, fault, mapping

FILE_NAME = "mtmoe.jsonl"
ROOT = Path(__file__).parents[2]
LARGEST_COUNT = 2**53  # a float holds every whole number up to it
LARGEST_AMOUNT = 1e30
TRAINED_AMOUNTS = (
    "lr",
    "gnorm",
    "wps",
    "ups",
    "wpb",
    "bsz",
    "clip",
    "loss_scale",
    "gb_free",
    "padding",
    "skipped",
    "expert_comm_ms",
)
"""Fields of the event `train` other than losses, as far as fairseq knows them."""

Event = dict[str, Any]


def is_count(value: Any) -> bool:
    """Return whether it is a whole number from 0 to 2^53, such as `10` or `10.0`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= LARGEST_COUNT and value == int(value)


def _from(least: float) -> Rule:
    rule = f"null or a number from {least:g} to {LARGEST_AMOUNT:g}"
    return Rule(rule, lambda value: value is None or least <= value <= LARGEST_AMOUNT)


Count = Annotated[float, Rule("a whole number from 0", is_count)]
Amount = Annotated[float | None, _from(0)]
Figure = Annotated[float | None, _from(-LARGEST_AMOUNT)]
_Scalar = Text | float | bool | None
Plain = _Scalar | list[_Scalar]
"""An option's value."""
Figures = dict[Text, Figure]
Perplexity = Annotated[
    Figures,
    Rule("figures with `ppl` from 0", lambda value: fault(value.get("ppl"), Amount) is None),
]
_SIZE = {"parameters": Count, "multiplications": Count}
_TOLD = dict.fromkeys(
    ("sampling_method", "commit", "command", "folder", "hardware", "started", "data"), Text | None
)

_TIMES = {"update": Required[Count], "epoch": Count, "minutes": Amount}

FIELDS: dict[str, dict[str, Any]] = {
    "run": {
        "sizes": dict[Text, Count],
        "task_ids": Text,
        "task_names": list[Text],
        "tiers": dict[Text, Text],
        "synthetic": dict[Text, Amount],
        "options": dict[Text, Plain],
        "versions": dict[Text, Text],
        "seed": Count | None,
        **_SIZE,
        **_TOLD,
    },
    "sampling": {
        **_TIMES,
        "update": Count,
        "epoch": Required[Count],
        "temperature": Amount,
        "part": Count,
        "updates_before": Count,
        "probabilities": dict[Text, Amount],
        "of_candidates": bool,
    },
    "train": {
        **_TIMES,
        "loss": Figure,
        "nll_loss": Figure,
        **dict.fromkeys(("tokens", *TRAINED_AMOUNTS), Amount),
    },
    "valid": {
        **_TIMES,
        "tokens": Amount,
        "subset": Text,
        "pairs": dict[Text, Perplexity],
        "tiers": dict[Text, Perplexity],
        "all": Perplexity,
        "tasks": dict[Text, Figures],
        "groups": dict[Text, Figures],
    },
    "experts": {
        **_TIMES,
        "subset": Text,
        "task_names": list[Text],
        "layers": dict[Text, list[list[Count]]],
    },
    "gates": {**_TIMES, "subset": Text, "layers": dict[Text, Figures]},
    "expert_comm": {
        **_TIMES,
        "updates": Count,
        "layers": dict[Text, dict[Text, Amount]],
    },
    "sparsified": {**_TIMES, "num_experts": Count, **_SIZE},
    "selection": {
        **_TIMES,
        "trained": dict[Text, Count],
        "relative_entropy": dict[Text, Amount],
        "share_of_data": Amount,
    },
    "sources": {
        **_TIMES,
        "subset": Text,
        "target": Text,
        "sources": list[Text],
        "layers": dict[Text, list[Amount]],
    },
}
"""Types of the fields that charts use; other fields and kinds of events are free."""
_EVENTS = {kind: mapping(fields) for kind, fields in FIELDS.items()}


class RunLog:
    """Appends events to one file; a resumed run continues the interrupted run's file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def write(self, event: str, **fields: Any) -> None:
        """Append one event as a line; numbers that are not finite become null.

        Raises `UserError` if the file cannot be written.
        """
        line = json.dumps(plain({"event": event, **fields}), ensure_ascii=False, allow_nan=False)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered, a single write: an interruption leaves at most one incomplete last line.
            with open_in_place(self.path, "ab+", buffering=0) as file:
                file.seek(max(0, file.seek(0, 2) - 1))
                start = b"" if file.read(1) in (b"", b"\n") else b"\n"
                file.write(start + line.encode("utf-8", "replace") + b"\n")
        except OSError as error:
            raise UserError(
                f"The run log {self.path} cannot be written: {error.strerror or error}."
            ) from error


def read(path: str | Path) -> list[Event]:
    """Return the events of a run log or a run's folder, oldest first.

    A run that is interrupted and resumed repeats the events since its last checkpoint. So an event
    removes earlier lines of its kind (and validation subset) about the same or a later update.
    Events without `update` are ordered by `epoch`, then `part`; one with neither replaces the
    earlier one. The first `started` of a run is kept. Lines that an interruption cut off are
    skipped. Raises `UserError` if no event is left, or one is invalid.
    """
    file = Path(path) / FILE_NAME if os.path.isdir(path) else Path(path)
    if not os.path.lexists(file):
        raise _without_log(Path(path), file)
    content = read_bytes(file, "a run log")
    events: list[Event] = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        event = _parse(line)
        if event is None:
            continue
        wrong = fault(event, _EVENTS.get(event["event"], Any))
        if wrong is not None:
            raise UserError(
                f"Line {number} of the run log `{file}` {wrong}; remove this line to read the "
                "others."
            )
        events.append(event)
    if content and not any(event["event"] in FIELDS for event in events):
        raise UserError(
            f"`{file}` holds no events, so it is not a run log or is damaged; give RUN, the "
            "`--save-dir` of a run."
        )
    starts = [
        event["started"] for event in events if event["event"] == "run" and event.get("started")
    ]
    kept: list[Event] = []
    earliest: dict[tuple[str, str], tuple[float, float]] = {}
    for event in reversed(events):
        kind = (event["event"], str(event.get("subset", "")))
        moment = _moment(event)
        if moment < earliest.get(kind, (math.inf, 0.0)):
            earliest[kind] = moment
            if event["event"] == "run" and starts:
                event = {**event, "started": starts[0]}
            kept.append(event)
    return kept[::-1]


def _without_log(path: Path, file: Path) -> UserError:
    """Return the error of a path without a run log."""
    if not os.path.lexists(path):
        return UserError(f"`{path}` does not exist; it must be the `--save-dir` of a run.")
    logs = sorted(path.glob(f"*/{FILE_NAME}"))
    if logs:
        named = f"give one or several, such as `{logs[0].parent}`"
        return UserError(f"`{path}` is a folder of runs; {named}.")
    return UserError(
        f"There is no run log `{file}`: give the `--save-dir` of a run with `--task` "
        "translation_heated, glue or text_to_text, after its first update."
    )


def _moment(event: Event) -> tuple[float, float]:
    """Return the key that orders events of a kind; 0 where fields are unknown."""
    moment: Any = event.get("update", event.get("epoch"))
    part: Any = event.get("part")
    if not is_count(moment):
        moment = 0
    if not is_count(part):
        part = 0
    return float(moment), float(part)


def _parse(line: bytes) -> Event | None:
    try:
        # Other writers spell out NaN and Infinity, which JSON does not have.
        event = json.loads(line.decode("utf-8"), parse_constant=lambda constant: None)
    except (ValueError, RecursionError):  # also a line that was cut inside a UTF-8 character
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None


def plain(value: Any) -> Any:
    """Convert numpy values, tensors and dataclasses; NaN and infinity become None."""
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [*map(plain, value)]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_json(content: object) -> str:
    """Return indented JSON, with null for numbers that are not finite."""
    return json.dumps(plain(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def provenance() -> dict[str, str | None]:
    """Return the package's `version` and `commit`, and the `command`.

    `commit` is None if the package is no clone, or git is missing.
    """
    from fairseq_mtmoe import __version__

    describe = ["git", "-C", str(ROOT), "describe", "--always", "--exclude=*"]
    commit = ""
    # A parent folder may be another project's clone, and this machine may have no git.
    with suppress(FileNotFoundError):
        if (ROOT / ".git").exists():
            changed = "--dirty= with uncommitted changes"
            commit = subprocess.run([*describe, changed], capture_output=True, text=True).stdout
    return {
        "version": __version__,
        "commit": commit.strip() or None,
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }
