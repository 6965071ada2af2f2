"""What lies in `results/`: a line for each result, with the commit and the version that it is of.

Which version a commit has is asked of git once, and kept in `commits.json`: who has the files and not the history sees
the same.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from published_tables import known_results
from studies import Study, open_study

from fairseq_mtmoe.io.files import read_json, read_text
from fairseq_mtmoe.io.markdown import markdown_table

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
COMMITS = ROOT / "benchmarks" / "commits.json"
VERSION = re.compile(r'^__version__ = "(.+)"$', re.M)
LIST = "README.md"


@dataclass(frozen=True)
class Result:
    """The files of one name: the JSON, its tables, its pictures.

    Attributes:
        name: of the files, without endings.
        files: their names.
        about: what `reproducing.yaml` says of it: `what`, `commands`, `changed`.
        folder: where they lie.
    """

    name: str
    files: tuple[str, ...]
    about: Mapping[str, Any]
    folder: Path

    @cached_property
    def study(self) -> Study | None:
        """What the JSON holds, if it is a study or a benchmark's."""
        return open_study(self.folder / f"{self.name}.json") if f"{self.name}.json" in self.files else None

    @property
    def page(self) -> str:
        """The file to read."""
        return next((name for name in (f"{self.name}.md", f"{self.name}.json") if name in self.files), self.files[0])

    @cached_property
    def _report(self) -> str:
        return read_text(self.folder / f"{self.name}.md") if f"{self.name}.md" in self.files else ""

    @cached_property
    def _json(self) -> Any:
        return read_json(self.folder / f"{self.name}.json") if f"{self.name}.json" in self.files else {}

    @property
    def what(self) -> str:
        """What it is: by `reproducing.yaml`, else by its own heading."""
        heading = re.search(r"^# (.+)$", self._report, re.M)
        return str(self.about.get("what") or (heading[1] if heading else ""))

    @property
    def commits(self) -> list[str]:
        """Of the code that made it, each once; none of what says none."""
        runs = self._json.get("runs") if isinstance(self._json, dict) else self._json
        if isinstance(runs, list):  # of this file alone, whatever was added to the study
            found = [run.get("commit", "") for run in runs if isinstance(run, dict)]
        elif self.study:
            found = self.study.commits
        elif isinstance(self._json, dict) and "commit" in self._json:
            found = [self._json["commit"]]
        else:
            found = re.findall(r"\bcommit ([0-9a-f]{7,})", self._report.split("\n## ")[0])[:1]
        return [commit.split()[0] for commit in dict.fromkeys(found) if commit]

    @property
    def commands(self) -> list[str]:
        """What makes it; where nobody says it, nothing."""
        stated = self._json.get("command") if isinstance(self._json, dict) else None
        return list(self.about.get("commands", [stated] if isinstance(stated, str) else []))

    def old(self, versions: Mapping[str, str]) -> str:
        """What has changed since in what it is about; empty if nothing is known to have."""
        changed = self.about.get("changed")
        if not changed or not self.commits:
            return ""
        is_old = any(_key(versions.get(commit, "0")) < _key(str(changed["version"])) for commit in self.commits)
        return f"{changed['what']} (since {changed['version']})" if is_old else ""


def results(folder: Path = RESULTS) -> list[Result]:
    """All of the folder, by name. A picture belongs to the result whose name its own begins with."""
    about = known_results()
    files = sorted(path.name for path in folder.iterdir() if path.is_file() and path.name != LIST)
    names = {Path(name).stem for name in files if not name.endswith(".png")}
    grouped: dict[str, list[str]] = {}
    for name in files:
        stem = Path(name).stem
        owners = [other for other in names if stem == other or stem.startswith(f"{other}_")]
        owner = max(owners, key=len, default=stem) if name.endswith(".png") else stem
        grouped.setdefault(owner, []).append(name)
    return [Result(name, tuple(grouped[name]), about.get(name, {}), folder) for name in sorted(grouped)]


@dataclass
class Versions:
    """Of the package, by commit.

    Attributes:
        known: what is known, by the first seven digits or as many as a result has.
    """

    known: dict[str, str] = field(default_factory=dict)

    @classmethod
    def stored(cls) -> Versions:
        """Those of `commits.json`."""
        return cls(dict(read_json(COMMITS)) if COMMITS.exists() else {})

    def find(self, commits: Iterable[str]) -> None:
        """Ask git for those that are not known; what it does not know stays unknown."""
        for commit in commits:
            if commit not in self.known:
                command = ["git", "-C", str(ROOT), "show", f"{commit}:fairseq_mtmoe/__init__.py"]
                shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
                found = VERSION.search(shown)
                if found:
                    self.known[commit] = found[1]

    def of(self, commits: Iterable[str]) -> str:
        """Such as `10b1795 (0.1.0), 4697bf3 (0.1.7)`."""
        return ", ".join(f"{one} ({self.known[one]})" if one in self.known else one for one in commits)

    def text(self) -> str:
        """The content of `commits.json`."""
        return json.dumps(dict(sorted(self.known.items())), indent=1) + "\n"


def list_of(found: Iterable[Result], versions: Versions) -> str:
    """The table of `results/README.md`: a row for each result."""
    rows = []
    for one in found:
        others = [f"[{Path(name).suffix[1:]}]({name})" for name in one.files if name != one.page]
        old = one.old(versions.known)
        rows.append([
            " · ".join([f"[{one.page}]({one.page})", *others]),
            one.what + (f". **Old**: {old}" if old else ""),
            versions.of(one.commits),
            "; ".join(map(as_code, one.commands)) or f"see {one.page}",
        ])  # fmt: skip
    return markdown_table(["files", "what", "commit (version)", "command"], rows, 4)


def as_code(command: str) -> str:
    """A command as code; what is none, as it is."""
    return f"`{command}`" if command.startswith(("python ", "make ")) else command


def _key(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
