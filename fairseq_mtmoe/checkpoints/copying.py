"""A checkpoint in another one's place, with its expert shards or whole: copied, changed, or made of others.

Shards that no shared part names, which a killed or failed save leaves behind, are removed; files that this package did
not write stay, and so does everything beside a shared part that cannot be read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.file_io import CheckpointFile, peek
from fairseq_mtmoe.checkpoints.layout import expert_folder, expert_folders_in, is_id, is_shard, shards_of
from fairseq_mtmoe.checkpoints.sharding import State, is_shared_part
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import replacing

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


def copy_with_experts(source: str | Path, target: str | Path) -> None:
    """Copy a checkpoint, whole or in parts, over `target`, completely or not at all; shards become hard links.

    Raises:
        UserError: it is missing or damaged, or one of its shards is missing.
    """
    with CheckpointFile(source) as file, _shards_beside(target, source, file.peek() or {}):
        file_io.copy_open(file, str(target))


def save_whole(state: State, target: str | Path) -> None:
    """Write a state with all its experts to `target`, completely or not at all; shards of what was there are removed.

    Raises:
        UserError: it cannot be written.
    """
    file_io.save(state, str(target))
    remove_orphans(target)


def save_with_experts(state: State, source: str | Path, target: str | Path) -> None:
    """Write a state to `target`, completely or not at all; if it is a shared part, with the shards beside `source`.

    Raises:
        UserError: it cannot be written, or the shards are not there any more.
    """
    with _shards_beside(target, source, state):
        file_io.save(state, str(target))


@contextmanager
def _shards_beside(target: str | Path, source: str | Path, state: State) -> Iterator[None]:
    """Inside, the shards of `source`, whose state is `state`, lie beside `target`, too; later those that it names."""
    try:
        if is_shared_part(state):
            for here, there in zip(shards_of(source, state), shards_of(target, state), strict=True):
                _link(here, there)
        yield
    finally:
        remove_orphans(target)  # which opens the target anew: after an error it is what it was before


def _link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where that cannot be done."""
    try:
        with replacing(target) as partial:
            os.link(source, partial)
    except UserError:
        file_io.copy(str(source), str(target))
