"""The one table: Markdown for people, JSON with every number."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from timing import where_and_how

from fairseq_mtmoe.io.files import write_text
from gpu_check.parts import PARTS
from gpu_check.record import Record
from gpu_check.rows import FLOORS_ARE_FOR, OUTCOMES, Row

COLUMNS = ("check", "outcome", "value", "floor", "note")


def summary(rows: list[Row]) -> str:
    count = Counter(row.outcome for row in rows)
    return ", ".join(f"{count[outcome]} {outcome}" for outcome in OUTCOMES)


def markdown(records: Mapping[str, Record], missing: Mapping[str, str]) -> str:
    """The report: where it ran, how it ended, and a table for each part.

    Args:
        records: by part.
        missing: why parts, or what is left of them, did not run.
    """
    text = ["# What only a GPU can show"]
    text.append(_where(records))
    floors = f"Floors are those of an {FLOORS_ARE_FOR} in bfloat16; on other cards they are shown, and decide nothing."
    text.append(f"{summary([row for record in records.values() for row in record.rows])}. {floors}")
    for name, part in PARTS.items():
        rows = [[row.what, row.outcome, row.value, row.floor, row.note] for row in records[name].rows]
        if name in missing:
            rows.append(["the rest of the part" if rows else part.title, "skipped", "", "", missing[name]])
        if rows:
            text.append(f"## {name}: {part.title}\n\n{_table(rows)}")
    return "\n\n".join(text) + "\n"


def _where(records: Mapping[str, Record]) -> str:
    """All parts are of one card and one source; they may have been started by different commands."""
    found = [record.surroundings for record in records.values() if record.surroundings]
    return where_and_how(found[0]) if found else "Nothing ran."


def _table(rows: list[list[str]]) -> str:
    # By hand, because tabulate may be missing where torch is all there is.
    cells = [list(COLUMNS), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(COLUMNS) - 1)]
    lines = [" | ".join([*map(str.ljust, row, widths), row[-1]]).rstrip() for row in cells]
    return "\n".join([f"| {lines[0]} |", "|" + "---|" * len(COLUMNS), *(f"| {line} |" for line in lines[1:])])


def write(folder: Path, records: Mapping[str, Record], missing: Mapping[str, str]) -> Path:
    path = folder / "gpu.md"
    write_text(path, markdown(records, missing))
    data = {
        name: {"surroundings": record.surroundings, "complete": record.complete, "checks": record.checks}
        for name, record in records.items()
    }
    write_text(folder / "gpu.json", json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    return path
