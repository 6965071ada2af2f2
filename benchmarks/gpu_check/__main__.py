"""The command behind `make gpu-check`: runs the parts, one process each, and writes the table.

Python and torch are all it needs. Status 0: nothing failed; 1: something did, or there is nothing to run it on.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_check.parts import ALL_MINUTES, PARTS

if TYPE_CHECKING:
    from gpu_check.driver import Driver
    from gpu_check.record import Record

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for; the status of the command."""
    options = parsed(arguments)
    problem = unknown_parts(options.part) or what_is_missing(options.device)
    if problem:
        print(problem, file=sys.stderr)
        return 1
    from fairseq_mtmoe.errors import UserError

    try:
        return run(options)
    except UserError as error:
        print(error, file=sys.stderr)
    except KeyboardInterrupt:
        print("Interrupted: what was found is kept, and `make gpu-check` goes on from there.", file=sys.stderr)
    return 1


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """The options; argparse's own sentence for what it does not know."""
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__)
    parser.add_argument("part", nargs="*", help=f"one of {', '.join(PARTS)}; all of them by default")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--sizes", default="full", choices=("full", "toy"), help="toy: a few seconds on a CPU")
    parser.add_argument("--folder", default="runs/gpu_check", help="for records, to go on from, and the log")
    parser.add_argument("--results", help="for the table [on a GPU at full sizes benchmarks/results, else the folder]")
    parser.add_argument("--minutes", type=float, default=ALL_MINUTES, help="after which no part begins [%(default)s]")
    return parser.parse_args(arguments)


def unknown_parts(names: list[str]) -> str | None:
    """The sentence about parts that do not exist, if some are asked for."""
    wrong = [name for name in names if name not in PARTS]
    return f"`PART` must be one of {', '.join(PARTS)}, but is {' '.join(wrong)} instead." if wrong else None


def what_is_missing(device: str) -> str | None:
    """The sentence about a machine on which nothing can be checked."""
    if importlib.util.find_spec("torch") is None:
        return f"`make gpu-check` needs torch, which {sys.executable} does not have; GPU_PYTHON=… names another Python."
    import torch

    if device == "cpu" or torch.cuda.is_available():
        return None
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    return (
        f"`make gpu-check` needs a GPU, but torch {torch.__version__} of {sys.executable}, {built}, finds none; "
        "GPU_PYTHON=… names another Python, and `make test` runs the same checks on a CPU at toy sizes."
    )


def run(options: argparse.Namespace) -> int:
    from gpu_check import table
    from gpu_check.driver import Driver, log_in
    from gpu_check.record import Record, identity_of
    from gpu_check.rows import FAILED, Setting

    setting = Setting(options.device, options.sizes == "toy", Path(options.folder).resolve())
    identity = identity_of(setting)
    records = {name: Record(setting.folder / f"{name}.json", identity) for name in PARTS}
    missing = {name: "because it was not asked for" for name in PARTS if not records[name].complete}
    end = time.monotonic() + 60 * options.minutes
    is_real = options.device == "cuda" and not setting.toy
    results = Path(options.results or (RESULTS if is_real else setting.folder))
    with log_in(setting.folder) as log:
        driver = Driver(setting, log, lambda line: print(line, flush=True))
        for name in options.part or PARTS:
            late = f"because {options.minutes:g} minutes were over; `make gpu-check` goes on here"
            why = late if time.monotonic() >= end else run_one(driver, name, records[name], bool(options.part))
            missing.pop(name, None)
            if why:
                missing[name] = why
                driver.say(f"[{name}] skipped, {why}")
            path = table.write(results, records, missing)  # after every part: what is interrupted has a table too
        rows = [row for record in records.values() for row in record.rows]
        driver.say(f"{table.summary(rows)}; the table is in {path}, all that was said in {log.name}.")
    return int(any(row.outcome == FAILED for row in rows))


def run_one(driver: Driver, name: str, record: Record, is_named: bool) -> str | None:
    """Run what a part's record lacks; who names a part whose record is complete wants it again."""
    if is_named and record.complete:
        record.forget_all()
    record.forget_unmet()
    if record.complete:
        driver.say(f"[{name}] is there already, of this code and this card; `PART={name}` runs it again.")
        return None
    return driver.run(name, record)


if __name__ == "__main__":
    sys.exit(main())
