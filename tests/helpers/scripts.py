"""Running a shell's script whose commands are forked, as those of `commands.py` are, from a process that has imported
everything: each would otherwise begin with the seconds that this takes.
"""

import json
import os
import socketserver
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from tests.helpers.commands import BIN, ENVIRONMENT, REPOSITORY
from tests.helpers.warm_start import run_forked

FORKED = ("fairseq-train", "fairseq-validate", "mtmoe")
SECONDS = 600
# Stands in the script's path for a command, and asks the test for it. Without `site`, which is as long as all the rest.
COMMAND = """#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect({address!r})
    request = os.path.basename(sys.argv[0]), sys.argv[1:], os.getcwd(), dict(os.environ)
    asked.sendall(json.dumps(request).encode() + b"\\n")
    code, out, err = json.load(asked.makefile(encoding="utf-8"))
for stream, text in (sys.stdout, out), (sys.stderr, err):
    stream.reconfigure(encoding="utf-8")
    stream.write(text)
sys.exit(code)
"""


def run_script(path: Path, *arguments: object, **variables: object) -> str:
    """Run a script of the repository in bash with these variables; what it printed. A failure is shown."""
    with tempfile.TemporaryDirectory() as folder, _Commands(f"{folder}/asked", _Forking) as commands:
        for name in FORKED:
            file = Path(folder, name)
            file.write_text(COMMAND.format(python=sys.executable, address=f"{folder}/asked"), encoding="utf-8")
            file.chmod(0o755)
        threading.Thread(target=commands.serve_forever, args=(0.02,), daemon=True).start()
        try:
            done = subprocess.run(
                ["bash", path, *map(str, arguments)], cwd=REPOSITORY, capture_output=True, text=True, check=False,
                timeout=2 * SECONDS, env=_environment(folder, variables),
            )  # fmt: skip
        finally:
            commands.shutdown()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert commands.answered, f"{path} asked for none of {', '.join(FORKED)}"
    return done.stdout


def _environment(folder: str, variables: dict[str, object]) -> dict[str, str]:
    own = {"PATH": f"{folder}:{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY)}
    return {**ENVIRONMENT, **own, **{name: str(value) for name, value in variables.items()}}


class _Commands(socketserver.UnixStreamServer):
    answered = 0


class _Forking(socketserver.StreamRequestHandler):
    server: _Commands

    def handle(self) -> None:
        command, arguments, folder, environment = json.loads(self.rfile.readline())
        done = run_forked(command, arguments, None, Path(folder), environment, SECONDS)
        self.server.answered += 1
        self.wfile.write(json.dumps([done.returncode, done.stdout, done.stderr]).encode())
