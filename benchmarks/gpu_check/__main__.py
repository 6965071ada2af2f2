"""The command behind `make gpu-check`: runs the parts, one process each, and writes the table.

Python and torch are all it needs. Status 0: nothing failed; 1: something did, or there is no GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

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
    options = parsed(arguments)
    problem = missing(options.device)
    if problem:
        print(problem, file=sys.stderr)
        return 1
    from gpu_check.rows import FAILED

    folder = Path(options.folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    rows = {part: run(part, options, folder / f"{part}.json") for part in options.part or PARTS}
    is_real = options.device == "cuda" and options.sizes == "full"
    page = (ROOT / "benchmarks" / "results" if is_real else folder) / "gpu.md"
    page.write_text(markdown(rows), encoding="utf-8")
    print(f"{summary(rows)}; the table is in {page}.")
    outcomes = {row["outcome"] for part in rows.values() for row in part}
    return int(FAILED in outcomes)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__)
    parser.add_argument("part", nargs="*", choices=[[], *PARTS], help="all by default")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--sizes", default="full", choices=("full", "toy"), help="toy: a few seconds on a CPU")
    parser.add_argument("--folder", default="runs/gpu_check", help="for the parts' rows")
    return parser.parse_args(arguments)


def missing(device: str) -> str | None:
    """Return the sentence about a machine on which nothing can be checked."""
    if importlib.util.find_spec("torch") is None:
        return f"`make gpu-check` needs torch, which {sys.executable} lacks; GPU_PYTHON=… names another Python."
    import torch

    if device == "cpu" or torch.cuda.is_available():
        return None
    return (
        f"`make gpu-check` needs a GPU, but torch {torch.__version__} of {sys.executable} finds none; GPU_PYTHON=… "
        "names another Python."
    )


def run(part: str, options: argparse.Namespace, file: Path) -> list[dict[str, str]]:
    """Run a part in a process; a process that dies or does not end in time costs the rest of its checks."""
    minutes, needs = PARTS[part]
    lacking = [package for package in needs if importlib.util.find_spec(package) is None]
    if lacking:
        return [unfinished(part, "skipped", f"because {' and '.join(lacking)} cannot be imported here")]
    file.unlink(missing_ok=True)
    path = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")])
    command = [
        sys.executable,
        "-m",
        "gpu_check.run_part",
        f"{PACKAGE}.{part}",
        options.device,
        options.sizes,
        str(file),
    ]
    try:
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, timeout=60 * minutes)
        problem = f"its process ended with status {done.returncode}" if done.returncode else None
    except subprocess.TimeoutExpired:
        problem = f"it did not end within {minutes} minutes"
    rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    if problem:
        rows.append(unfinished(f"the rest of {part}", "failed", problem))
    return rows


def unfinished(what: str, outcome: str, note: str) -> dict[str, str]:
    return {"what": what, "outcome": outcome, "value": "", "floor": "", "note": note}


def summary(rows: dict[str, list[dict[str, str]]]) -> str:
    count = Counter(row["outcome"] for part in rows.values() for row in part)
    return ", ".join(f"{number} {outcome}" for outcome, number in sorted(count.items()))


def markdown(rows: dict[str, list[dict[str, str]]]) -> str:
    """Return the report: the machine, how it ended, and a table for each part."""
    from timing import surroundings, where_and_how

    from gpu_check.rows import FLOORS_ARE_FOR

    text = ["# What only a GPU can show", where_and_how(surroundings())]
    text.append(f"{summary(rows)}. Floors are those of an {FLOORS_ARE_FOR} in bfloat16; elsewhere they decide nothing.")
    for part, checks in rows.items():
        lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
        lines += [f"| {' | '.join(value.replace('|', '/') for value in row.values())} |" for row in checks]
        text.append(f"## {part}\n\n" + "\n".join(lines))
    return "\n\n".join(text) + "\n"


if __name__ == "__main__":
    sys.exit(main())
