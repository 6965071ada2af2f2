"""Before corpora are read: what is packed, or a member of an archive, is unpacked into the work folder.

Then all workers read it at once, and an archive is gone through once, however many corpora have a member of it. When
the last corpus that needs it is clean, it is removed.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_mtmoe.data.corpora.blocks import Content
from fairseq_mtmoe.data.corpora.engine.progress import Shown
from fairseq_mtmoe.data.corpora.engine.store import Stage, WorkFolder
from fairseq_mtmoe.data.corpora.engine.workers import Workers
from fairseq_mtmoe.data.corpora.readers.unpacking import is_packed, split_member, unpack


@dataclass(frozen=True)
class _Job:
    stages: Mapping[Path, Stage]  # of files or members of one file
    megabytes: float


class Unpacked:
    """What was unpacked for some corpora.

    Args:
        files: of each corpus, by path the hash of its content.
    """

    def __init__(self, work: WorkFolder, files: Sequence[Mapping[Path, str]]) -> None:
        contents = {path: content for of_corpus in files for path, content in of_corpus.items()}
        self._stages: dict[Path, Stage] = {
            path: work.stage("unpacked", content=content) for path, content in contents.items() if is_packed(path)
        }
        # files of the same content have one folder, which stays until none of them is needed
        self._uses = Counter(self._stages[path] for of_corpus in files for path in of_corpus if path in self._stages)

    def make(self, workers: Workers, shown: Shown) -> None:
        """Unpack what is not there from an earlier run."""
        by_file: dict[Path, dict[Path, Stage]] = {}
        for stage, path in {stage: path for path, stage in self._stages.items()}.items():
            if stage.result() is None:
                by_file.setdefault(split_member(path)[0], {})[path] = stage
        jobs = [_Job(stages, file.stat().st_size / 1e6) for file, stages in by_file.items()]
        if jobs:
            with shown.step("Unpacking", sum(round(job.megabytes) for job in jobs), "MB") as step:
                for megabytes in workers.map_blocks(_unpack, sorted(jobs, key=lambda job: -job.megabytes)):
                    step.advance(megabytes)

    def contents(self, paths: Sequence[Path]) -> tuple[Content, ...]:
        """Where these files lie unpacked."""
        return tuple(self._content(self._stages[path]) if path in self._stages else Content(path) for path in paths)

    def _content(self, stage: Stage) -> Content:
        result = stage.result() or {}
        return Content(_text(stage), result["reason"], result["message"])

    def release(self, paths: Sequence[Path]) -> None:
        """A corpus does not need its files any more."""
        for stage in (self._stages[path] for path in paths if path in self._stages):
            self._uses[stage] -= 1
            if not self._uses[stage]:
                shutil.rmtree(stage.folder, ignore_errors=True)


def _text(stage: Stage) -> Path:
    return stage.folder / "text"


def _unpack(job: _Job) -> int:
    found = unpack({path: _text(stage) for path, stage in job.stages.items()})
    for path, stage in job.stages.items():
        stage.finish({"reason": found[path].reason, "message": found[path].message})
    return round(job.megabytes)
