"""The process that runs one part: `python -m gpu_check.run_part MODULE SIZES FILE`.

It writes the rows to the file after each check. Tracebacks go to standard error.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import traceback
from pathlib import Path

from gpu_check.rows import FAILED, SKIPPED, Check, Row, Setting, Skipped


def rows_of(check: Check) -> list[Row]:
    print(f"{check.name} …", flush=True)
    try:
        return check.run()
    except Skipped as reason:
        return [Row(check.name, SKIPPED, note=f"because {reason}")]
    except Exception as error:
        traceback.print_exc()
        message = " ".join(str(error).split()) or "no message"
        return [Row(check.name, FAILED, note=f"{type(error).__name__}: {message[:300]}")]


def main(module: str, sizes: str, file: str) -> None:
    setting = Setting("cpu", toy=True) if sizes == "toy" else Setting("cuda", toy=False)
    checks = importlib.import_module(module).checks(setting)
    rows: list[Row] = []
    for check in checks:
        rows += rows_of(check)
        content = [dataclasses.asdict(row) for row in rows]
        Path(file).write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
