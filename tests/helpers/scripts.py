"""Running a shell's script whose commands are forked, as those of `commands.py` are, from a process that has imported
everything: each would otherwise begin with the seconds that this takes.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from socketserver import StreamRequestHandler, UnixStreamServer
from typing import Any

from tests.helpers.commands import BIN, ENVIRONMENT, REPOSITORY
from tests.helpers.warm_start import run_forked

FORKED = ("fairseq-train", "fairseq-validate", "mtmoe")
SECONDS = 600
# Stands in the script's path for a command, and asks the test for it, with the text of a file that the shell redirects
# to it. Without `site`, which is as long as all the rest.
COMMAND = """#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect({address!r})
    given = os.path.realpath("/dev/stdin")
    text = open(given, encoding="utf-8").read() if os.path.isfile(given) else ""
    request = os.path.basename(sys.argv[0]), sys.argv[1:], os.getcwd(), dict(os.environ), text
    asked.sendall(json.dumps(request).encode() + b"\\n")
    code, out, err = json.load(asked.makefile(encoding="utf-8"))
for stream, text in (sys.stdout, out), (sys.stderr, err):
    stream.reconfigure(encoding="utf-8")
    stream.write(text)
sys.exit(code)
"""


def write_commands(folder: Path, **texts: str) -> str:
    """Write scripts by these names into a folder; a path for them in front of the environment's."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        file = folder / name
        file.write_text(text, encoding="utf-8")
        file.chmod(0o755)
    return f"{folder}:{BIN}:{os.environ['PATH']}"


def run_script(path: Path, *arguments: object, **variables: object) -> str:
    """Run a script of the repository in bash with these variables; what it printed. A failure is shown."""
    return _run(path, arguments, variables, REPOSITORY, FORKED, _forked)[0]


def run_text(text: str, folder: Path, change: Callable[[str, list[str]], list[str]], **variables: object) -> str:
    """Run a script's text in a folder, which stands for the repository; what it printed. A failure is shown.

    change: the arguments that a command gets, from its name and those that the text gives it.
    """

    def changed(command: str, arguments: list[str], *where: Any) -> tuple[int, str, str]:
        return _forked(command, change(command, arguments), *where)

    script = folder / "script.sh"
    script.write_text(text, encoding="utf-8")
    names = (*FORKED, "fairseq-generate", "ct2-transformers-converter")
    return _run(script, (), {"PYTHONPATH": folder, **variables}, folder, names, changed)[0]


def called_by(path: Path, *arguments: object, **variables: object) -> list[list[str]]:
    """The commands that a script calls in its order, none of which is run."""
    with tempfile.TemporaryDirectory() as folder:
        return _run(path, arguments, variables, Path(folder), (*FORKED, "python"), _passed_over)[1]


def _run(
    path: Path, arguments: Iterable[object], variables: dict[str, object], cwd: Path, names: Iterable[str],
    answer: Callable[..., tuple[int, str, str]],
) -> tuple[str, list[list[str]]]:  # fmt: skip
    called: list[list[str]] = []

    class Answering(StreamRequestHandler):
        def handle(self) -> None:
            command, arguments, *where = json.loads(self.rfile.readline())
            if arguments != ["user-dir"]:
                called.append([command, *arguments])
            self.wfile.write(json.dumps(answer(command, arguments, *where)).encode())

    with tempfile.TemporaryDirectory() as folder, UnixStreamServer(f"{folder}/asked", Answering) as commands:
        text = COMMAND.format(python=sys.executable, address=f"{folder}/asked")
        own = {"PATH": write_commands(Path(folder), **dict.fromkeys(names, text)), "PYTHONPATH": REPOSITORY}
        environment = {name: str(value) for name, value in {**ENVIRONMENT, **own, **variables}.items()}
        threading.Thread(target=commands.serve_forever, args=(0.02,), daemon=True).start()
        try:
            done = subprocess.run(
                ["bash", path, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, check=False,
                timeout=2 * SECONDS, env=environment,
            )  # fmt: skip
        finally:
            commands.shutdown()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert called, f"{path} asked for none of {', '.join(names)}"
    return done.stdout, called


def _forked(
    command: str, arguments: list[str], folder: str, environment: dict[str, str], stdin: str
) -> tuple[int, str, str]:
    done = run_forked(command, arguments, stdin, Path(folder), environment, SECONDS)
    return done.returncode, done.stdout, done.stderr


def _passed_over(command: str, arguments: list[str], folder: str, *given: object) -> tuple[int, str, str]:
    """What trains makes its folder, after which scripts look."""
    if command == "fairseq-train":
        Path(folder, arguments[arguments.index("--save-dir") + 1]).mkdir(parents=True, exist_ok=True)
    return 0, str(REPOSITORY / "fairseq_mtmoe") if arguments == ["user-dir"] else "", ""
