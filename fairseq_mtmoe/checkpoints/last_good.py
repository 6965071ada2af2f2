"""A suggested fallback: which other checkpoint to use in the place of one that is damaged or lacks a shard."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from fairseq_mtmoe.checkpoints import checksum
from fairseq_mtmoe.checkpoints.layout import shards_of, shared_part_of
from fairseq_mtmoe.checkpoints.sharding import is_shared_part
from fairseq_mtmoe.checkpoints.validation import read
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import regular_file


def damaged(path: str | Path, remedy: str | None = None) -> UserError:
    """The sentence for a damaged file: it names the newest good checkpoint beside it, if there is one.

    Args:
        path: of the file.
        remedy: what to do where it is no checkpoint of a run, which others could take the place of.
    """
    if remedy is not None:
        return UserError(f"`{path}` must be a whole file, but is truncated or damaged; {remedy}.")
    return UserError(
        f"`{path}` must be a whole checkpoint, but is truncated or damaged; use an older one{suggested_fallback(path)}."
    )


def suggested_fallback(path: str | Path) -> str:
    """The end of a sentence that tells somebody to use another checkpoint than `path`."""
    other = newest_good(path)
    return f": the newest good one beside it is `{other}`" if other else ", there is no good one beside it"


def newest_good(path: str | Path) -> Path | None:
    """The newest checkpoint in the same folder, other than `path`, that is good; None where there is none.

    An expert shard, `X.experts/<id>/0-3.pt`, is a part of `X.pt`: what is beside that one counts.
    """
    given = shared_part_of(Path(path))
    return newest_good_in(given.parent, without=given.name)


def newest_good_in(folder: str | Path, without: str = "") -> Path | None:
    """The newest checkpoint in a folder that is whole and whose weights are finite; None where there is none."""
    files = [file for file in Path(folder).glob("checkpoint*.pt") if file.name != without]
    return next((file for file in sorted(files, key=_age) if _is_good(file)), None)


def _age(path: Path) -> float:
    """A key that sorts the newest file first, and last what is no longer there."""
    try:
        return -path.stat().st_mtime
    except OSError:
        return 0.0


def _is_good(path: Path) -> bool:
    """Whether the file and its shards are seen to be whole and of one save, and have finite weights."""
    try:
        state = _verified(path)
        shards = shards_of(path, state) if is_shared_part(state) else {}
        contents = (_verified(shard, entry["sha256"]) for shard, entry in shards.items())
        return _has_finite_weights(state) and all(map(_has_finite_weights, contents))
    except Exception:  # whatever is wrong with it, it is nothing to go on from
        return False


def _verified(path: Path, digest: str | None = None) -> dict[str, Any]:
    """The content of a file that is whole, mapped; `digest`: its checksum, if it must be a certain one."""
    with open(regular_file(path, "a checkpoint file"), "rb") as file:
        found = checksum.verify(file)
        # Of a file from before archives nobody can say whether it is whole.
        if digest not in (None, found) or (found is None and checksum.is_legacy(file)):
            raise checksum.Damaged
        return read(path, file, mapped=True)


def _has_finite_weights(content: dict[str, Any]) -> bool:
    tensors = [value for value in content.get("model", {}).values() if torch.is_tensor(value) and value.numel()]
    return all(
        tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()  # else it repeats a small memory
        and bool(torch.linalg.vector_norm(tensor, math.inf).isfinite())
        for tensor in tensors
        if tensor.is_floating_point()
    )
