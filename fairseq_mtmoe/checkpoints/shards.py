"""Expert shards: files with some of a checkpoint's experts each, written by one process and read by any.

`layout.py` says where they lie. What a process reads it copies out of mapped files, one after the other: it holds no
more than the experts that it asks for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.fallback import suggested_fallback
from fairseq_mtmoe.checkpoints.layout import ShardEntry, expert_folder, shard_name, shards_of
from fairseq_mtmoe.checkpoints.reader import CheckpointFile
from fairseq_mtmoe.checkpoints.states import PARTS, Content, State, compact, has_rows, map_experts, narrow
from fairseq_mtmoe.errors import UserError

_UNEVEN = 4  # times: shards of few experts are larger for each of them


def write_shard(folder: str | Path, content: Content) -> ShardEntry:
    """Write one process's experts into the folder of an id, completely or not at all; returns the shard's entry."""
    first, count = content["first"], content["count"]
    name = shard_name(first, count)
    digest = file_io.save(compact(content), str(Path(folder) / name))
    return {"name": name, "first": first, "count": count, "sha256": digest}


class ShardReader:
    """Reads experts of one checkpoint out of its shards, each verified when it is opened.

    Args:
        path: the shared part's file, beside which the shards lie.
        shared_part: its content.

    Raises:
        UserError: the shared part's list of shards is damaged.
    """

    def __init__(self, path: str | Path, shared_part: State) -> None:
        self._path = Path(path)
        self._shards = shards_of(path, shared_part)
        self._last: tuple[Path, Content] = (Path(), {})

    def read(self, first: int, count: int, parts: Iterable[str] = PARTS) -> Content:
        """The wanted parts of the content of experts `first` to `first + count`.

        Raises:
            UserError: a shard that has some of them is missing or damaged, or belongs to another checkpoint.
        """
        parts = tuple(parts)
        result: Content = {}
        for file, entry in self._shards.items():
            start = max(first, entry["first"])
            end = min(first + count, entry["first"] + entry["count"])
            if start < end:
                piece = narrow(self._open(file, entry), start, end - start, parts)
                if not result:
                    self._check_room(file, first, count)
                    result = _room(piece, first, count)
                self._copy(piece, narrow(result, start, end - start, parts), file)
        return result

    def _open(self, path: Path, entry: ShardEntry) -> Content:
        """The content of one shard, mapped; the last one's is kept, which the next experts may be in, too."""
        if self._last[0] == path:
            return self._last[1]
        if not path.is_file():
            raise self._missing(path)
        with CheckpointFile(path) as file:
            if file.verify() != entry["sha256"]:
                raise self._foreign(path)
            content: Content = file.load(mapped=True)
        if (content.get("first"), content.get("count")) != (entry["first"], entry["count"]) or not has_rows(content):
            raise self._foreign(path)
        self._last = (path, content)
        return content

    def _check_room(self, known: Path, first: int, count: int) -> None:
        """Refuse a list of shards whose experts would need more room than they have on the disk."""
        per_expert = os.path.getsize(known) / self._shards[known]["count"]
        for path, entry in self._shards.items():
            wanted = entry["first"] < first + count and first < entry["first"] + entry["count"]
            if wanted and path.is_file() and os.path.getsize(path) * _UNEVEN < per_expert * entry["count"]:
                raise self._foreign(path)

    def _copy(self, piece: Any, target: Any, path: Path) -> None:
        for key, value in piece.items():
            if key not in target or len(piece) != len(target):
                raise self._foreign(path)
            if isinstance(value, dict):
                self._copy(value, target[key], path)
            elif torch.is_tensor(value) and value.dim():
                target[key].copy_(value)

    def _missing(self, path: Path) -> UserError:
        return UserError(
            f"`{path}` must be there, but is missing: the folder `{expert_folder(self._path).name}` must lie beside "
            f"`{self._path}`, whose experts it holds; copy both, or use an older one{suggested_fallback(self._path)}."
        )

    def _foreign(self, path: Path) -> UserError:
        return UserError(
            f"`{path}` must be the file that was saved with `{self._path}`, but is another; "
            f"copy the folder `{expert_folder(self._path).name}` again from where the checkpoint was saved."
        )


def _room(piece: Content, first: int, count: int) -> Content:
    """A content for so many experts like `piece`, with tensors that are still to be filled."""
    parts = {key: value for key, value in piece.items() if key in PARTS}
    return {"first": first, "count": count, **map_experts(parts, lambda v: v.new_empty((count, *v.shape[1:])))}
