"""Which files a checkpoint consists of, where they lie, and what they are called.

A checkpoint is one file, `X.pt`, or a shared part of that name with *expert shards* beside it: `X.experts/<id>/0-3.pt`
holds experts 0 to 3 of the checkpoint whose shared part names `<id>`, and nothing in it depends on how many processes
wrote it. Whoever saves writes the shards first, under a new id, and the shared part last: until the shared part has its
name, the checkpoint before it is whole.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Required

from fairseq_mtmoe.checkpoints.sharding import VERSION, State
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.typed import Name, Text, fault

ShardEntry = dict[str, Any]  # {"name": "0-3.pt", "first": 0, "count": 4, "sha256": "…"}

_ENTRY: Any = {"name": Required[Text], "first": Required[int], "count": Required[int], "sha256": Required[Name]}
_EXPERTS: Any = {
    "id": Required[str], "num_experts": Required[int], "keys": Required[list[Text]], "files": Required[list[_ENTRY]],
    "optimizer_names": Required[dict[int, Text]], "flat_optimizer": bool,
}  # fmt: skip
_FOLDER_SUFFIX = ".experts"
_ID = re.compile(r"[0-9a-f]{16}")
_SHARD = re.compile(r"\d+-\d+\.pt")
_PARTIAL_SHARD = re.compile(r"\.\d+-\d+\.[\w-]+\.\d+\.pt")  # what `files.replacing` leaves of a killed process


def new_id() -> str:
    """A name that no other save has; all processes of one save need the same."""
    return secrets.token_hex(8)


def is_id(name: str) -> bool:
    """Whether a folder has a name that `new_id` gives."""
    return _ID.fullmatch(name) is not None


def is_shard(name: str) -> bool:
    """Whether a file has the name of a shard, or of one that is being written."""
    return (_SHARD.fullmatch(name) or _PARTIAL_SHARD.fullmatch(name)) is not None


def shard_name(first: int, count: int) -> str:
    """What the file of experts `first` to `first + count` is called."""
    return f"{first}-{first + count - 1}.pt"


def expert_folder(path: str | Path) -> Path:
    """The folder of the shards of the shared part `path`, with a folder for each id.

    Raises:
        UserError: the shared part's name does not end in `.pt`.
    """
    path = Path(path)
    if path.suffix != ".pt":
        raise UserError(f"`{path}` must end in `.pt`: its experts are in a folder of that name with `.experts`.")
    return path.with_suffix(_FOLDER_SUFFIX)


def expert_folders_in(folder: Path) -> list[Path]:
    """The expert folders of all checkpoints in a folder, whether they have a shared part or none."""
    return [*folder.glob(f"*{_FOLDER_SUFFIX}")]


def shared_part_of(path: Path) -> Path:
    """The file of the checkpoint that a file belongs to: a shard's shared part, or the file itself."""
    is_in_folder = len(path.parents) > 2 and path.parents[1].suffix == _FOLDER_SUFFIX
    return path.parents[1].with_suffix(".pt") if is_in_folder else path


def shards_of(path: str | Path, shared_part: State) -> dict[Path, ShardEntry]:
    """The files of all experts of the shared part at `path`, with their entries, in the experts' order.

    Raises:
        UserError: see `check_shard_list`.
    """
    check_shard_list(path, shared_part)
    folder = expert_folder(path) / shared_part["experts"]["id"]
    return {folder / entry["name"]: entry for entry in shared_part["experts"]["files"]}


def with_shard_list(shared_part: State, save_id: str, shards: Iterable[ShardEntry]) -> State:
    """The shared part to save once all shards are written: it names them."""
    entries = sorted(shards, key=lambda entry: int(entry["first"]))
    return {**shared_part, "experts": {**shared_part["experts"], "id": save_id, "files": entries}}


def check_shard_list(path: str | Path, shared_part: State) -> None:
    """Refuse a shared part whose `"experts"` is not of this format; its file names must not lead elsewhere.

    Raises:
        UserError: it is of a newer version, or not one that this package wrote.
    """
    experts = shared_part["experts"]
    if isinstance(experts, dict) and isinstance(experts.get("version"), int) and experts["version"] > VERSION:
        raise UserError(f"`{path}` must be read with a newer version of fairseq_mtmoe, which wrote it.")
    if not _is_well_formed(experts):
        raise UserError(f"`{path}` must name the files of all its experts, but its list of them is damaged.")


def _is_well_formed(experts: Any) -> bool:
    if fault(experts, _EXPERTS) is not None:
        return False
    files = experts["files"]
    ends = [0, *(entry["first"] + entry["count"] for entry in files)]
    return (
        is_id(experts["id"])
        and [entry["first"] for entry in files] == ends[:-1]
        and ends[-1] == experts["num_experts"]
        and all(entry["count"] > 0 and entry["name"] == shard_name(entry["first"], entry["count"]) for entry in files)
    )
