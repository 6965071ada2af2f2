"""What the process of one part does."""

from __future__ import annotations

import dataclasses
import importlib
import json
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


def run_part(module: str, setting: Setting, file: Path) -> None:
    """Write the rows of a part to a file, after each check. Tracebacks go to standard error."""
    rows: list[Row] = []
    for check in importlib.import_module(module).checks(setting):
        rows += rows_of(check)
        content = [dataclasses.asdict(row) for row in rows]
        file.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
