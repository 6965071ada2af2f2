"""Starts the process of a part, again if it died, and ends it in time; what it prints goes to screen and log."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from timing import ROOT

from fairseq_mtmoe.errors import UserError
from gpu_check.parts import PARTS
from gpu_check.record import Record
from gpu_check.rows import FAILED, Row, Setting

MODULE = "gpu_check.run_part"
LAST_LINES = 3  # of the log, that say why a process died


class Driver:
    """Runs parts, each within its minutes.

    Args:
        log: open for appending; gets what the screen gets, and what goes wrong at length.
        say: shows a line on the screen.
    """

    def __init__(self, setting: Setting, log: IO[str], say: Callable[[str], None]) -> None:
        self.setting = setting
        self.log = log
        self._say = say

    def say(self, line: str) -> None:
        self._say(line)
        self.log.write(line + "\n")
        self.log.flush()

    def run(self, name: str, record: Record) -> str | None:
        """Run what is left of a part; returns why some of it did not run, if so."""
        part = PARTS[name]
        lacking = [package for package in part.needs if importlib.util.find_spec(package) is None]
        if lacking:
            return f"because {' and '.join(lacking)} cannot be imported here"
        end = time.monotonic() + 60 * part.minutes
        while not record.complete:
            before = len(record.checks)
            status, last = self._one_process(name, end - time.monotonic())
            record.read()
            if record.complete:
                break
            if time.monotonic() >= end:
                self._fail(record, f"did not end within the {part.minutes:g} minutes of its part")
                return f"because its {part.minutes:g} minutes were over; `make gpu-check` goes on here"
            if record.under_way is None and len(record.checks) == before:  # it would only die again
                return f"because its process ended with status {status} before it began: {last}"
            self._fail(record, f"its process ended with status {status}: {last}")
        return None

    def _fail(self, record: Record, why: str) -> None:
        if record.under_way is not None:
            self.say(f"   failed    {record.under_way}: {why}")
            record.end(record.under_way, [Row(record.under_way, FAILED, note=why)], 0.0)

    def _one_process(self, name: str, seconds: float) -> tuple[int, str]:
        """Status and last words of a process that runs the part, at most so long."""
        sizes = "toy" if self.setting.toy else "full"
        arguments = [name, self.setting.device, sizes, str(self.setting.folder)]
        path = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")])
        errors = self.setting.folder / f"{name}.errors.txt"
        with errors.open("w+", encoding="utf-8", errors="replace") as file:
            process = subprocess.Popen(
                [sys.executable, "-u", "-m", MODULE, *arguments], cwd=ROOT, stdout=subprocess.PIPE,
                stderr=file, text=True, errors="replace", start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip
            watchdog = threading.Timer(max(seconds, 0), _end, [process])
            watchdog.start()
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    self.say(line.rstrip("\n"))
                status = process.wait()
            finally:  # Ctrl-C too
                watchdog.cancel()
                _end(process)
            file.seek(0)
            said = file.read()
        errors.unlink()
        self.log.write(said)
        self.log.flush()
        return status, " / ".join(line.strip() for line in said.splitlines()[-LAST_LINES:])[-300:]


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def log_in(folder: Path) -> IO[str]:
    """The log, which grows from one start to the next; raises UserError where there cannot be one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log = (folder / "log.txt").open("a", encoding="utf-8")
    except OSError as error:
        raise UserError(f"`--folder` must be a folder to write to, but {folder} is not: {error.strerror}.") from error
    log.write(f"\n==== {time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(sys.argv[1:])}\n")
    return log
