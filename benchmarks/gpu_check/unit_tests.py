"""Part `tests`: `tests/unit/moe` by pytest on the device, in the types and sizes that they have on a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from timing import ROOT

from gpu_check.rows import FAILED, Check, Row, Setting, passed

FOLDER = "tests/unit/moe"
TOY = ("test_losses.py",)
MOST_FAILURES = 20  # that are named; more of them have one cause


def checks(setting: Setting) -> Iterator[Check]:
    """A process of pytest for each file, so that an error of the GPU costs no other file's tests."""
    for path in sorted((ROOT / FOLDER).rglob("test_*.py")):
        if not setting.toy or path.name in TOY:
            name = str(path.relative_to(ROOT / FOLDER))
            yield Check(name, partial(run_file, setting, name))


def run_file(setting: Setting, name: str) -> list[Row]:
    report = setting.folder / "pytest.xml"
    report.unlink(missing_ok=True)
    # Toy sizes are for machines without a GPU.
    device = "pretended" if setting.toy else setting.device
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "--device", device]
    done = subprocess.run(
        [*command, f"--junitxml={report}", f"{FOLDER}/{name}"], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    if done.returncode:
        print(done.stdout, done.stderr, file=sys.stderr)
    if not report.exists():
        raise RuntimeError(f"pytest ended with {done.returncode}: {(done.stdout + done.stderr).strip()[-300:]}")
    return rows_of(name, report)


def rows_of(name: str, report: Path) -> list[Row]:
    cases = list(ElementTree.parse(report).iter("testcase"))
    wrong = {case.get("name", ""): bad for case in cases for bad in (*case.findall("failure"), *case.findall("error"))}
    skipped = sum(case.find("skipped") is not None for case in cases)
    note = f"{len(cases) - skipped - len(wrong)} tests passed, {len(wrong)} failed, {skipped} are not for this device"
    if not wrong:
        return [passed(name, note)]
    rows = [Row(name, FAILED, note=note)]
    for test, bad in list(wrong.items())[:MOST_FAILURES]:
        said = " ".join((bad.get("message") or bad.text or "").split())
        rows.append(Row(f"{name}: {test}", FAILED, note=said[:200]))
    return rows
