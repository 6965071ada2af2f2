"""Commands without the seconds in which Python imports torch and fairseq: each is forked from a server that has them.

There is a server for each command, which has imported what the command's script imports before it begins: a forked
command is where a fresh one is then. The plugin is loaded by the command itself, at `--user-dir`. A server ends with
the process that started it.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

# What torch imports when it makes the first optimizer, in seconds.
OF_OPTIMIZERS = "torch._dynamo"
# mtmoe's commands import what they need when they run: nearly all need these.
OF_MTMOE = ("torch", "fairseq.trainer", "fairseq.options", "sacrebleu", "scipy.stats")


def run_forked(
    command: str, arguments: list[str], stdin: str | None, folder: Path, environment: dict[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` of an installed command returns, text captured.

    Raises:
        subprocess.TimeoutExpired: it took longer; it is ended.
    """
    with tempfile.TemporaryDirectory() as place:
        paths = {name: Path(place, name) for name in ("in", "out", "err")}
        paths["in"].write_text(stdin or "", encoding="utf-8")
        request = dict(
            arguments=[command, *arguments],
            streams=[str(path) for path in paths.values()],
            folder=str(folder),
            environment=environment,
            seconds=seconds,
        )
        server = _server(command)
        print(json.dumps(request), file=server.stdin, flush=True)
        answer = server.stdout.readline()
        out, err = (paths[name].read_text(encoding="utf-8", errors="replace") for name in ("out", "err"))
    assert answer, "the server of commands is gone"
    if (code := json.loads(answer)) is None:
        raise subprocess.TimeoutExpired([command, *arguments], seconds, out, err)
    return subprocess.CompletedProcess([command, *arguments], code, out, err)


@cache
def _server(command: str) -> Any:
    return subprocess.Popen(
        [sys.executable, __file__, command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def serve(command: str) -> None:
    """Fork a process for each request, one after the other, until nobody asks any more."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever an import prints is no answer
    if command == "mtmoe":
        for name in OF_MTMOE:
            importlib.import_module(name)
        logging.root.handlers.clear()  # an import's
        logging.root.setLevel(logging.WARNING)
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name=command)
    main = entry.load()
    importlib.import_module(OF_OPTIMIZERS)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        os.setpgid(child, child)  # in both, whoever is first
        if not child:
            become(**request)
            sys.exit(main())
        print(json.dumps(_wait(child, request["seconds"])), file=answers, flush=True)


def _wait(child: int, seconds: float) -> int | None:
    """The exit code as `subprocess` has it, or None where the child was ended after so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def become(arguments: list[str], streams: list[str], folder: str, environment: dict[str, str], seconds: float) -> None:
    """Take a command's folder, environment, arguments and streams."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(streams):
        opened = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = arguments


if __name__ == "__main__":
    serve(sys.argv[1])
