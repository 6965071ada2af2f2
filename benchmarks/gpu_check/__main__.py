"""The command behind `make gpu-check`: runs the parts, one process each, and writes the table.

Python and torch are all it needs. Status 0: nothing failed; 1: something did, or there is no GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections import Counter
from dataclasses import astuple
from multiprocessing import get_context
from pathlib import Path

import torch
from timing import surroundings, where_and_how

from gpu_check.rows import FAILED, FLOORS_ARE_FOR, SKIPPED, Row, Setting
from gpu_check.run_part import run_part

PACKAGE = "gpu_check"
ROOT = Path(__file__).resolve().parents[2]
# Each part's minutes, after which it is ended, and the packages that it needs beside torch.
PARTS: dict[str, tuple[int, tuple[str, ...]]] = {
    "layer": (5, ()),
    "assignment": (4, ()),
    "processes": (4, ()),
    "step": (7, ("fairseq",)),
    "decode": (6, ("fairseq",)),
}
COLUMNS = ("check", "outcome", "value", "floor", "note")


def main(arguments: list[str] | None = None) -> int:
    """Run the parts, and return the status of the command."""
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__)
    parser.add_argument("part", nargs="*", choices=[[], *PARTS], help="all by default")
    parser.add_argument("--toy", action="store_true", help="toy sizes on a CPU: a few seconds")
    parser.add_argument("--folder", default="runs/gpu_check", help="for the parts' rows")
    options = parser.parse_args(arguments)
    if not options.toy and not torch.cuda.is_available():
        problem = f"needs a GPU, but torch {torch.__version__} of {sys.executable} finds none"
        print(f"`make gpu-check` {problem}; GPU_PYTHON=… names another Python.", file=sys.stderr)
        return 1
    sys.path.insert(0, str(ROOT))  # the parts' processes inherit it
    setting = Setting("cpu", toy=True) if options.toy else Setting("cuda", toy=False)
    folder = Path(options.folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    rows = {part: run(part, setting, folder / f"{part}.json") for part in options.part or PARTS}
    page = (folder if options.toy else ROOT / "benchmarks" / "results") / "gpu.md"
    page.write_text(markdown(rows), encoding="utf-8")
    print(f"{summary(rows)}; the table is in {page}.")
    return int(any(row.outcome == FAILED for part in rows.values() for row in part))


def run(part: str, setting: Setting, file: Path) -> list[Row]:
    """Run a part in a process; a process that dies or does not end in time costs the rest of its checks."""
    minutes, needs = PARTS[part]
    lacking = [package for package in needs if importlib.util.find_spec(package) is None]
    if lacking:
        return [Row(part, SKIPPED, note=f"because {' and '.join(lacking)} cannot be imported here")]
    file.unlink(missing_ok=True)
    process = get_context("spawn").Process(target=run_part, args=(f"{PACKAGE}.{part}", setting, file))
    process.start()
    process.join(60 * minutes)
    problem = f"its process ended with status {process.exitcode}" if process.exitcode else None
    if process.is_alive():
        process.kill()
        problem = f"it did not end within {minutes} minutes"
    rows = [Row(**row) for row in json.loads(file.read_text(encoding="utf-8"))] if file.exists() else []
    if problem:
        rows.append(Row(f"the rest of {part}", FAILED, note=problem))
    return rows


def summary(rows: dict[str, list[Row]]) -> str:
    count = Counter(row.outcome for part in rows.values() for row in part)
    return ", ".join(f"{number} {outcome}" for outcome, number in sorted(count.items()))


def markdown(rows: dict[str, list[Row]]) -> str:
    """Return the report: the machine, how it ended, and a table for each part."""
    text = ["# What only a GPU can show", where_and_how(surroundings())]
    text.append(f"{summary(rows)}. Floors are those of an {FLOORS_ARE_FOR} in bfloat16; elsewhere they decide nothing.")
    for part, checks in rows.items():
        lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
        lines += [f"| {' | '.join(value.replace('|', '/') for value in astuple(row))} |" for row in checks]
        text.append(f"## {part}\n\n" + "\n".join(lines))
    return "\n\n".join(text) + "\n"


if __name__ == "__main__":
    sys.exit(main())
