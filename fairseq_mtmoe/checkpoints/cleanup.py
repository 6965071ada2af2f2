"""Removal of orphans: expert shards that no shared part names (any more), which a killed or failed save leaves behind.

What this package did not write stays, and so does everything beside a shared part that cannot be read. What cannot be
removed stays, too: it does no harm but for its size.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from fairseq_mtmoe.checkpoints.layout import expert_folder, expert_folders_in, is_id, is_shard
from fairseq_mtmoe.checkpoints.reader import peek

_DELETED = re.compile(r"checkpoint(\d+|_\d+_\d+|\.best_.*)\.pt")  # what `--keep-…` has fairseq delete


def remove_orphans(path: str | Path) -> None:
    """Remove shards that no shared part names: of the one at `path`, or of a run's checkpoints in that folder.

    A file whose name does not end in `.pt` has no shards. In a folder, what lies there without a shared part is removed
    only if its name is of a kind that a run itself makes and deletes: another shared part may be on its way.
    """
    path = Path(path)
    with suppress(OSError):
        for folder in _expert_folders(path):
            shared_part = folder.with_suffix(".pt")
            expected = shared_part.exists() or not path.is_dir() or _DELETED.fullmatch(shared_part.name)
            if folder.is_dir() and not folder.is_symlink() and expected:
                _remove_orphans_in(folder, shared_part)


def _expert_folders(path: Path) -> list[Path]:
    if path.is_dir():
        return expert_folders_in(path)
    return [expert_folder(path)] if path.suffix == ".pt" else []


def _remove_orphans_in(folder: Path, shared_part: Path) -> None:
    state = peek(shared_part) if shared_part.exists() else {}
    if state is not None:
        experts = state.get("experts")
        with suppress(OSError):
            _remove_saves(folder, keep=experts.get("id") if isinstance(experts, dict) else None)


def _remove_saves(folder: Path, keep: str | None) -> None:
    for save in [*folder.iterdir()]:
        if save.name != keep and is_id(save.name) and save.is_dir() and not save.is_symlink():
            with suppress(OSError):
                for file in [*save.iterdir()]:
                    if is_shard(file.name):
                        file.unlink()
                save.rmdir()
    with suppress(OSError):  # something is in it
        folder.rmdir()
