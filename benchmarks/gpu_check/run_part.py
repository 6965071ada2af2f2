"""The process that runs one part: `python -m gpu_check.run_part NAME --device … --sizes … --folder …`.

What it prints is for the screen; what went wrong, with its traceback, goes to standard error, which is the log.
"""

from __future__ import annotations

import importlib
import sys
import time
import traceback
from collections.abc import Iterable
from pathlib import Path

from gpu_check.parts import PARTS
from gpu_check.record import Record, identity_of
from gpu_check.rows import FAILED, SKIPPED, Check, Row, Setting, Skipped

GOES_ON = 75  # the status of a process whose GPU has failed: the next one does the rest


def run_checks(checks: Iterable[Check], record: Record, title: str) -> bool:
    """Run what the record does not have; False when a failure of the GPU leaves this process unable to go on."""
    checks = list(checks)
    for number, check in enumerate(checks, 1):
        if check.name in record.checks:
            continue
        print(f"[{title} {number}/{len(checks)}] {check.name} …", flush=True)
        record.begin(check.name)
        start = time.perf_counter()
        rows, is_spoiled = attempt(check)
        record.end(check.name, rows, time.perf_counter() - start)
        for row in rows:
            print("   " + in_words(row), flush=True)
        if is_spoiled:
            return False
    record.finish()
    return True


def attempt(check: Check) -> tuple[list[Row], bool]:
    try:
        return check.run(), False
    except Skipped as reason:
        return [Row(check.name, SKIPPED, note=f"because {reason}")], False
    except Exception as error:
        traceback.print_exc()
        said = " ".join(str(error).split()) or "no message"
        is_spoiled = "CUDA error" in said
        return [Row(check.name, FAILED, note=f"{type(error).__name__}: {said[:300]}")], is_spoiled


def in_words(row: Row) -> str:
    floor = f" (floor {row.floor})" if row.floor else ""
    note = f": {row.note}" if row.note else ""
    return f"{row.outcome:8}  {row.what}{' = ' + row.value if row.value else ''}{floor}{note}"


def main(name: str, device: str, sizes: str, folder: str) -> int:
    setting = Setting(device, sizes == "toy", Path(folder).resolve())
    record = Record(setting.folder / f"{name}.json", identity_of(setting))
    part = importlib.import_module(f"gpu_check.{PARTS[name].module}")
    return 0 if run_checks(part.checks(setting), record, name) else GOES_ON


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
