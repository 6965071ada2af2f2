"""Commands without the seconds in which Python imports torch and fairseq: each is forked from a server that has them.

The command's own script is imported by the forked process, and so is the plugin, at `--user-dir`. The server ends with
the process that started it.
"""

import gc
import importlib.metadata
import json
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Self

# What scripts of fairseq and nearly all commands of mtmoe import, and torch for the first optimizer.
IMPORTED = ("fairseq.trainer", "fairseq.options", "fairseq.quantization_utils", "sacrebleu", "scipy.stats",
            "torch._dynamo")  # fmt: skip


def run_forked(
    command: str, arguments: list[str], stdin: str | None, folder: Path, environment: dict[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` of an installed command returns; one that takes longer is ended, and raises as there."""
    with Forked(command, arguments, folder, environment, stdin or "") as forked:
        code = forked.wait(seconds)
        return subprocess.CompletedProcess([command, *arguments], code, forked.out(), forked.err())


class Forked:
    """An installed command in a process group of its own, `pid`, which is ended with this context.

    before: Python code that the process executes before the command.
    """

    def __init__(
        self, command: str, arguments: list[str], folder: Path, environment: dict[str, str], stdin: str = "",
        before: str = "",
    ) -> None:  # fmt: skip
        self._arguments = [command, *arguments]
        self._place = tempfile.TemporaryDirectory()
        self._files = {name: Path(self._place.name, name) for name in ("in", "out", "err", "code")}
        for name in ("in", "out", "err"):
            self._files[name].write_text(stdin if name == "in" else "", encoding="utf-8")
        *streams, code = map(str, self._files.values())
        process = dict(arguments=self._arguments, streams=streams, folder=str(folder), environment=environment)
        server = _server()
        print(json.dumps(dict(process=process, before=before, code=code)), file=server.stdin, flush=True)
        answer = server.stdout.readline()
        assert answer, "the server of commands is gone"
        self.pid = int(answer)

    def out(self) -> str:
        return self._files["out"].read_text(encoding="utf-8", errors="replace")

    def err(self) -> str:
        return self._files["err"].read_text(encoding="utf-8", errors="replace")

    def wait(self, seconds: float) -> int:
        """Its exit code, as `subprocess` has it; raises `subprocess.TimeoutExpired`."""
        deadline = time.monotonic() + seconds
        while not self._files["code"].exists():
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self._arguments, seconds, self.out(), self.err())
            time.sleep(0.01)
        return int(self._files["code"].read_text())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if not self._files["code"].exists():
            with suppress(ProcessLookupError):  # it has just ended
                os.killpg(self.pid, signal.SIGKILL)
            self.wait(10)
        self._place.cleanup()


@cache
def _server() -> Any:
    return subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def serve() -> None:
    """Fork a process for each request, answered by its number, until nobody asks any more."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever an import prints is no answer
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # else each command searches all of that for garbage, and takes it down at its end: half of its time
    codes: dict[int, str] = {}  # of each process that runs: the file for its exit code
    while True:
        if select.select([sys.stdin], [], [], 0.01 if codes else None)[0]:
            line = sys.stdin.readline()
            if not line:
                break
            request = json.loads(line)
            child = os.fork()
            os.setpgid(child, child)  # in both, whoever is first
            if not child:
                become(**request["process"])
                main = load(sys.argv[0])
                exec(request["before"], {})
                sys.exit(main())
            codes[child] = request["code"]
            print(child, file=answers, flush=True)
        _write_codes(codes)
    for child in codes:
        os.killpg(child, signal.SIGKILL)


def load(command: str) -> Callable[[], object]:
    """Import an installed command's script; what it calls."""
    if command in ("mtmoe", "fairseq-train"):  # which set up logging before they import fairseq, which does so too
        logging.root.handlers.clear()  # an import's
        logging.root.setLevel(logging.WARNING)
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name=command)
    main: Callable[[], object] = entry.load()
    return main


def _write_codes(codes: dict[int, str]) -> None:
    """Write and forget those of the processes that have ended; a file is complete or absent."""
    for child in list(codes):
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            path = Path(codes.pop(child))
            path.with_suffix(".new").write_text(str(os.waitstatus_to_exitcode(status)))
            path.with_suffix(".new").replace(path)


def become(arguments: list[str], streams: list[str], folder: str, environment: dict[str, str]) -> None:
    """Take a command's folder, environment, arguments and streams."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    for number, path in enumerate(streams):
        opened = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = arguments


if __name__ == "__main__":
    serve()
