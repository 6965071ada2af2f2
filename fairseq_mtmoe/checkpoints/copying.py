"""A checkpoint in another one's place, with its expert shards or whole: copied, changed, or made of others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.cleanup import remove_orphans
from fairseq_mtmoe.checkpoints.layout import shards_of
from fairseq_mtmoe.checkpoints.reader import CheckpointFile
from fairseq_mtmoe.checkpoints.states import State, is_shared_part
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import replacing


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
