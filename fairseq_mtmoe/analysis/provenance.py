"""What made a result: the package's version, the commit where it is a clone, and the command."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def provenance() -> dict[str, str | None]:
    """`version`, `commit` (None where the package is no clone, or git is not there) and `command`."""
    from fairseq_mtmoe import __version__

    return {"version": __version__, "commit": _commit(ROOT), "command": _command(sys.argv)}


def _commit(root: Path) -> str | None:
    if not (root / ".git").exists():  # a folder above it may be a clone of something else
        return None
    found = _git(root, "rev-parse", "--short", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return found and found + (" with uncommitted changes" if changed else "")


def _git(root: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(root), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None
    except FileNotFoundError:  # no git on this machine
        return None


def _command(arguments: list[str]) -> str:
    return shlex.join([Path(arguments[0]).name, *arguments[1:]])
