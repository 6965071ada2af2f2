"""Checkpoints in parts: a shared part `X.pt`, and expert shards, files that any number of processes can read.

`X.experts/<id>/0-3.pt` holds experts 0 to 3 of the checkpoint whose shared part names `<id>`, and nothing in it
depends on how many processes wrote it. Whoever writes a checkpoint writes the expert files first, under a new id, and
the shared part last: until the shared part has its name, the checkpoint before it is whole.
"""

from __future__ import annotations

import copy
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from fairseq_mtmoe.checkpoints import checksum, file_io
from fairseq_mtmoe.checkpoints.reader import CheckpointFile, peek
from fairseq_mtmoe.checkpoints.states import (
    PARTS,
    VERSION,
    Content,
    State,
    compact,
    count_experts,
    has_rows,
    is_shared_part,
    join,
    map_experts,
    narrow,
    owned,
    split,
    whole_shapes,
)
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import replacing
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement
from fairseq_mtmoe.optim.saved_state import Parameters

FileEntry = dict[str, Any]  # {"name": "0-3.pt", "first": 0, "count": 4, "sha256": "…"}

_ID = re.compile(r"[0-9a-f]{16}")
_DELETED = re.compile(r"checkpoint(\d+|_\d+_\d+|\.best_.*)\.pt")  # what `--keep-…` has fairseq delete
_UNEVEN = 4  # times: files of few experts are larger for each of them
_NAME = re.compile(r"(\d+)-(\d+)\.pt")
_PARTIAL_NAME = re.compile(r"\.\d+-\d+\.[\w-]+\.\d+\.pt")  # what `files.replacing` leaves of a killed process


def new_id() -> str:
    """A name that no other save has; all processes of one save need the same."""
    return secrets.token_hex(8)


def expert_folder(path: str | Path) -> Path:
    """The folder of the expert files of the shared part `path`, with a folder for each id.

    Raises:
        UserError: the shared part's name does not end in `.pt`.
    """
    path = Path(path)
    if path.suffix != ".pt":
        raise UserError(f"`{path}` must end in `.pt`: its experts are in a folder of that name with `.experts`.")
    return path.with_suffix(".experts")


def write_experts(folder: str | Path, content: Content) -> FileEntry:
    """Write one process's experts into the folder of an id, completely or not at all; returns its entry."""
    first, count = content["first"], content["count"]
    name = _name(content)
    digest = file_io.save(compact(content), str(Path(folder) / name))
    return {"name": name, "first": first, "count": count, "sha256": digest}


def with_files(shared_part: State, save_id: str, files: Iterable[FileEntry]) -> State:
    """The shared part to save once all expert files are written."""
    entries = sorted(files, key=lambda entry: int(entry["first"]))
    return {**shared_part, "experts": {**shared_part["experts"], "id": save_id, "files": entries}}


def load_shared_part(path: str | Path, file: CheckpointFile | None = None) -> State:
    """A checkpoint's state but for experts that are in files of their own; of a whole checkpoint all of it.

    Raises:
        UserError: the file is missing or damaged, or its list of expert files is.
    """
    return _with_checked_list(path, file_io.load(str(path)) if file is None else file.load())


def load_mapped(path: str | Path) -> State:
    """As `load_shared_part`, but every tensor is read when it is touched, and none is held."""
    return _with_checked_list(path, file_io.load(str(path), mapped=True))


def _with_checked_list(path: str | Path, state: State) -> State:
    if is_shared_part(state):
        check_shared_part(path, state)
    return state


def load_local(
    path: str | Path, placement: ExpertPlacement, parameters: Parameters, flat: bool, file: CheckpointFile | None = None
) -> State:
    """What a process needs of the checkpoint at `path`, see `localize`; it never holds other experts than its own.

    `file`: that checkpoint, where it is open already.
    """
    if file is None:
        with CheckpointFile(path) as opened:
            return load_local(path, placement, parameters, flat, opened)
    state = file.peek() or {}
    if is_shared_part(state) or count_experts(state.get("model", {})) <= placement.count:
        return localize(path, _with_checked_list(path, file.load()), placement, parameters, flat)
    _check_number(path, count_experts(state["model"]), placement)
    shared_part, content = _own_part(file.load(mapped=True), placement, parameters)
    return join(copy.deepcopy(shared_part), content, parameters, flat)


def is_in_parts(path: str | Path) -> bool:
    """Whether the experts of the checkpoint at `path` are in files of their own; False also if it cannot be read."""
    return is_shared_part(peek(path) or {})


def check_shared_part(path: str | Path, shared_part: State) -> None:
    """Refuse a shared part whose `"experts"` is not of this format; its file names must not lead elsewhere.

    Raises:
        UserError: it is of a newer version, or not one that this package wrote.
    """
    experts = shared_part["experts"]
    if isinstance(experts, dict) and isinstance(experts.get("version"), int) and experts["version"] > VERSION:
        raise UserError(f"`{path}` must be read with a newer version of fairseq_mtmoe, which wrote it.")
    if not _is_well_formed(experts):
        raise UserError(f"`{path}` must name the files of all its experts, but its list of them is damaged.")


def read_experts(path: str | Path, shared_part: State, first: int, count: int, parts: Iterable[str] = PARTS) -> Content:
    """Experts `first` to `first + count` of the checkpoint whose shared part is at `path`: see `ExpertReader`."""
    return ExpertReader(path, shared_part).read(first, count, parts)


class ExpertReader:
    """Reads experts of one checkpoint, from the files that have them alone, each verified when it
    is opened.

    It holds no more than the experts that are asked for: files are mapped one after the other, and copied from.
    """

    def __init__(self, path: str | Path, shared_part: State) -> None:
        check_shared_part(path, shared_part)
        self._path = Path(path)
        self._files: list[FileEntry] = shared_part["experts"]["files"]
        self._folder = expert_folder(path) / shared_part["experts"]["id"]
        self._last: tuple[str, Content] = ("", {})

    def read(self, first: int, count: int, parts: Iterable[str] = PARTS) -> Content:
        """The wanted parts of the content of experts `first` to `first + count`.

        Raises:
            UserError: a file that has some of them is missing or damaged, or belongs to another checkpoint.
        """
        parts = tuple(parts)
        result: Content = {}
        for entry in self._files:
            start = max(first, entry["first"])
            end = min(first + count, entry["first"] + entry["count"])
            if start < end:
                piece = narrow(self._open(entry), start, end - start, parts)
                if not result:
                    self._check_room(entry, first, count)
                    result = _room(piece, first, count)
                self._copy(piece, narrow(result, start, end - start, parts), entry)
        return result

    def _open(self, entry: FileEntry) -> Content:
        """The content of one file, mapped; the last one's is kept, which the next experts may be in, too."""
        name, last = self._last
        if name == entry["name"]:
            return last
        path = self._folder / entry["name"]
        if not path.is_file():
            folder, fallback = expert_folder(self._path).name, checksum.suggested_fallback(self._path)
            raise UserError(
                f"`{path}` must be there, but is missing: the folder `{folder}` must lie beside "
                f"`{self._path}`, whose experts it holds; copy both, or use an older one{fallback}."
            )
        with CheckpointFile(path) as file:
            if file.verify() != entry["sha256"]:
                raise self._foreign(entry)
            content: Content = file.load(mapped=True)
        if (content.get("first"), content.get("count")) != (entry["first"], entry["count"]) or not has_rows(content):
            raise self._foreign(entry)
        self._last = (entry["name"], content)
        return content

    def _check_room(self, known: FileEntry, first: int, count: int) -> None:
        """Refuse a list of files whose experts would need more room than they have on the disk."""
        per_expert = os.path.getsize(self._folder / known["name"]) / known["count"]
        for entry in self._files:
            path = self._folder / entry["name"]
            wanted = entry["first"] < first + count and first < entry["first"] + entry["count"]
            if wanted and path.is_file() and os.path.getsize(path) * _UNEVEN < per_expert * entry["count"]:
                raise self._foreign(entry)

    def _copy(self, piece: Any, target: Any, entry: FileEntry) -> None:
        for key, value in piece.items():
            if key not in target or len(piece) != len(target):
                raise self._foreign(entry)
            if isinstance(value, dict):
                self._copy(value, target[key], entry)
            elif torch.is_tensor(value) and value.dim():
                target[key].copy_(value)

    def _foreign(self, entry: FileEntry) -> UserError:
        return UserError(
            f"`{self._folder / entry['name']}` must be the file that was saved with `{self._path}`, but is another; "
            f"copy the folder `{expert_folder(self._path).name}` again from where the checkpoint was saved."
        )


def localize(path: str | Path, state: State, placement: ExpertPlacement, parameters: Parameters, flat: bool) -> State:
    """What a process needs of a checkpoint: the state that it would have saved itself, with its own experts.

    Args:
        path: the checkpoint's file, whose experts may lie beside it.
        state: its content, from `load_shared_part` or from fairseq: a shared part, a whole checkpoint, or a dense one.
        placement: the process's experts.
        parameters: names and (local) shapes of the trained parameters, in the optimizer's order.
        flat: whether the process's optimizer keeps one vector for all parameters, as fairseq's does with `--fp16`.

    Raises:
        UserError: experts are missing, or are others than the model's.
    """
    if is_shared_part(state):
        _check_number(path, state["experts"]["num_experts"], placement)
        return join(state, read_experts(path, state, placement.first, placement.count), parameters, flat)
    num_experts = count_experts(state["model"])
    if not num_experts:
        return state
    _check_number(path, num_experts, placement)
    return join(*_own_part(state, placement, parameters), parameters, flat)


def _check_number(path: str | Path, num_experts: int, placement: ExpertPlacement) -> None:
    if num_experts != placement.num_experts:
        raise UserError(
            f"`--num-experts` must be {num_experts} to go on from `{path}`, but is {placement.num_experts} instead."
        )


def _own_part(state: State, placement: ExpertPlacement, parameters: Parameters) -> tuple[State, Content]:
    """A whole checkpoint's shared part, and a copy of one process's experts."""
    everything = ExpertPlacement(placement.num_experts, 0, placement.num_experts)
    shared_part, content = split(state, everything, whole_shapes(parameters, placement.num_experts))
    return shared_part, owned(narrow(content, placement.first, placement.count))


def whole(path: str | Path, state: State, parts: Iterable[str] = PARTS) -> State:
    """A checkpoint's state with all experts in it, as one process would have saved it; a whole one as it is.

    Without "optimizer" among `parts` the optimizer's state is left out: for generation.
    """
    parts = tuple(parts)
    if "optimizer" not in parts:
        state = {key: value for key, value in state.items() if key != "last_optimizer_state"}
    if not is_shared_part(state):
        return state
    return join(state, read_experts(path, state, 0, state["experts"]["num_experts"], parts))


def copy_with_experts(source: str | Path, target: str | Path) -> None:
    """Copy a checkpoint of either kind over `target`, completely or not at all; expert files become hard links."""
    with _experts_of(source, peek(source) or {}, target):
        file_io.copy(str(source), str(target), overwrite=True)


def save_with_experts(state: State, source: str | Path, target: str | Path) -> None:
    """Write a state to `target`, completely or not at all; if it is a shared part, with the experts beside `source`.

    Raises:
        UserError: it cannot be written, or the experts are not there any more.
    """
    with _experts_of(source, state, target):
        file_io.save(state, str(target))


@contextmanager
def _experts_of(source: str | Path, state: State, target: str | Path) -> Iterator[None]:
    """Inside, the expert files of `source` lie beside `target`, too; later those that `target` names."""
    try:
        if is_shared_part(state):
            check_shared_part(source, state)
            save_id = state["experts"]["id"]
            for entry in state["experts"]["files"]:
                _link(expert_folder(source) / save_id / entry["name"], expert_folder(target) / save_id / entry["name"])
        yield
    finally:
        if Path(target).suffix == ".pt":
            remove_orphans(target)


def remove_orphans(place: str | Path) -> None:
    """Remove expert files that no shared part names: of the one at `place`, or of a run's checkpoints in that folder.

    What this package did not write stays, and so does everything beside a shared part that cannot be read. In a folder,
    what lies there without a shared part is removed only if its name is of a kind that a run itself makes and deletes:
    another shared part may be on its way. What cannot be removed stays.
    """
    place = Path(place)
    with suppress(OSError):
        for folder in [*place.glob("*.experts")] if place.is_dir() else [expert_folder(place)]:
            shared_part = folder.with_suffix(".pt")
            expected = shared_part.exists() or not place.is_dir() or _DELETED.fullmatch(shared_part.name)
            if folder.is_dir() and not folder.is_symlink() and expected:
                _remove_orphans_in(folder, shared_part)


def _remove_orphans_in(folder: Path, shared_part: Path) -> None:
    state = peek(shared_part) if shared_part.exists() else {}
    if state is not None:
        experts = state.get("experts")
        with suppress(OSError):
            _remove_ids(folder, keep=experts.get("id") if isinstance(experts, dict) else None)


def _remove_ids(folder: Path, keep: str | None) -> None:
    for saved in [*folder.iterdir()]:
        if saved.name != keep and _ID.fullmatch(saved.name) and saved.is_dir() and not saved.is_symlink():
            with suppress(OSError):  # what is left does no harm but for its size
                for file in [*saved.iterdir()]:
                    if _NAME.fullmatch(file.name) or _PARTIAL_NAME.fullmatch(file.name):
                        file.unlink()
                saved.rmdir()
    with suppress(OSError):  # something is in it
        folder.rmdir()


def _room(piece: Content, first: int, count: int) -> Content:
    """A content for so many experts like `piece`, with tensors that are still to be filled."""
    parts = {key: value for key, value in piece.items() if key in PARTS}
    return {"first": first, "count": count, **map_experts(parts, lambda v: v.new_empty((count, *v.shape[1:])))}


def _is_well_formed(experts: Any) -> bool:
    try:
        files, keys, names = experts["files"], experts["keys"], experts["optimizer_names"]
        ends = [0, *(entry["first"] + entry["count"] for entry in files)]
        return (
            isinstance(keys, list)
            and isinstance(names, dict)
            and _ID.fullmatch(experts["id"]) is not None
            and [entry["first"] for entry in files] == ends[:-1]
            and ends[-1] == experts["num_experts"]
            and all(entry["count"] > 0 and entry["name"] == _name(entry) and entry["sha256"] for entry in files)
        )
    except (KeyError, TypeError, AttributeError):
        return False


def _name(entry: FileEntry) -> str:
    return f"{int(entry['first'])}-{int(entry['first']) + int(entry['count']) - 1}.pt"


def _link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where that cannot be done."""
    try:
        with replacing(target) as partial:
            os.link(source, partial)
    except UserError:
        file_io.copy(str(source), str(target), overwrite=True)
