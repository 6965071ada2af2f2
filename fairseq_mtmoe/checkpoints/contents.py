"""What a checkpoint file may hold, whoever wrote it: tensors and plain containers, not much larger than the file.

torch's `weights_only` runs no code of a file, but makes what the file asks for: 6 GB of zeros out of 30 bytes, a
tensor of 10^12 elements over a storage of one, dictionaries that share their entries until a copy of them has no end.
`read` is the one way in: it looks at the steps that a file asks for before torch takes them, and at what came of them
before anybody else does.
"""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import re
import zipfile
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import torch

from fairseq_mtmoe.checkpoints import schema
from fairseq_mtmoe.checkpoints.options import check_options
from fairseq_mtmoe.errors import UserError

_MOST_STEPS = 2_000_000  # some hundred for each parameter with its moments; they take torch about 8 s
_LARGE, _MOST_LARGE = 2**61 - 1, 1000  # integers from here on can be keys that all have one hash
_DEEPEST = 100  # containers in containers; Python's own recursion, in C too, goes wrong at larger depths
_GROWTH = 8  # tied weights are three tensors over one storage
_SMALL = 1 << 20  # bytes that do no harm
_ARCHIVE = b"PK\x03\x04"  # by which torch, too, tells its archives from its files of before 1.6
_PICKLES_BEFORE_ARCHIVES = 5
_FOLDER = 0x10  # the attribute of a zip record that makes torch's reader skip its content

_GLOBALS = re.compile(
    r"collections OrderedDict|argparse Namespace|(builtins|__builtin__) set|torch (Size|device)"
    r"|torch\._utils (_rebuild_tensor(_v2|_v3)?|_rebuild_parameter)|torch\.nn\.parameter Parameter"
    r"|torch \w+Storage|torch\.storage (Untyped|Typed)Storage|torch (u?int\d+|b?float\w+|bool|complex\d+)"
)
_SCALARS = (bool, int, float, type(None), torch.dtype, torch.device)


def read(path: str | Path, file: BinaryIO, mapped: bool = False) -> dict[str, Any]:
    """The content of an open file of `torch.save`, on the CPU; `mapped`: a tensor is read when it is touched.

    Whether the file is whole is for `checksum.py` to say.

    Args:
        path: the file's name, for sentences.
        file: whose bytes are both checked and loaded.

    Raises:
        UserError: it holds something else than tensors, plain containers and `Namespace`, or more of
            them than a file of its size should, or options that are no plain values.
        Exception: what torch or Python's zip reader raise where a file is damaged.
    """
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    is_archive = file.read(len(_ARCHIVE)) == _ARCHIVE
    try:
        for pickled in _of_archive(path, file) if is_archive else _of_old_file(file):
            _check_steps(path, pickled)
    except UserError:
        raise
    except (ValueError, LookupError) as error:  # it is no pickle
        raise pickle.UnpicklingError(str(error)) from error
    state = _loaded(path, file, mapped and is_archive)
    if not isinstance(state, dict):
        _refuse(path, "a checkpoint's dictionary", f"a {type(state).__name__}")
    _Weight(path, _GROWTH * size + _SMALL).check(state)
    check_options(path, state)
    schema.check(path, state)
    return state


def _loaded(path: str | Path, file: BinaryIO, mapped: bool) -> Any:
    """What torch loads of an open file. To map a file torch needs a name: that of the descriptor, where it has one."""
    file.seek(0)
    if not mapped:
        return torch.load(file, map_location="cpu", weights_only=True)
    descriptor = f"/proc/self/fd/{file.fileno()}"
    name = descriptor if os.path.exists(descriptor) else str(path)
    try:
        return torch.load(name, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError as error:  # which says the name that torch was given
        error.args = (str(error).replace(name, str(path)),)
        raise


def is_plain(archive: zipfile.ZipFile) -> bool:
    """Whether torch and Python read the same in an archive, and not more than lies in it: its records are as torch
    writes them, not compressed, not skipped as folders, no two of one name or over the same bytes."""
    records = archive.infolist()
    return (
        len({record.filename for record in records}) == len(records)
        and sum(record.file_size for record in records) <= archive.start_dir
        and all(
            record.compress_type == zipfile.ZIP_STORED
            and record.compress_size == record.file_size
            and not record.external_attr & _FOLDER
            for record in records
        )
    )


def _refuse(path: str | Path, rule: str, found: str) -> NoReturn:
    raise UserError(f"`{path}` must hold {rule}, but holds {found}; it was not loaded.")


def _of_archive(path: str | Path, file: BinaryIO) -> Iterable[BinaryIO]:
    with zipfile.ZipFile(file) as archive:
        if not is_plain(archive):
            _refuse(path, "records as torch writes them", "compressed or overlapping ones")
    # Through torch's own reader, so that these are the steps that torch will take.
    file.seek(0)
    yield io.BytesIO(torch._C.PyTorchFileReader(file).get_record("data.pkl"))


def _of_old_file(file: BinaryIO) -> Iterable[BinaryIO]:
    file.seek(0)
    for _ in range(_PICKLES_BEFORE_ARCHIVES):
        yield file


def _check_steps(path: str | Path, pickled: BinaryIO) -> None:
    """Refuse a pickle that names what is not plain, has too many steps, or nests too deeply.

    Hashing tuples in tuples in tuples overflows the stack of the process. How deep a value is follows from those that a
    step takes from the pickle's stack.
    """
    allowed = _user_globals()
    depths: list[int] = []
    marks: list[int] = []
    memo: dict[int, int] = {}
    large = 0
    argument: Any
    for count, (step, argument, _) in enumerate(pickletools.genops(pickled)):
        if step.name == "GLOBAL" and not (_GLOBALS.fullmatch(argument) or argument in allowed):
            found = f"other Python objects (`{argument.replace(' ', '.')}`), which loading could execute"
            _refuse(path, "tensors, plain containers and `argparse.Namespace` alone", found)
        if count == _MOST_STEPS:
            _refuse(path, f"what can be read in {_MOST_STEPS:,} steps", "more")
        large += isinstance(argument, int) and abs(argument) >= _LARGE
        if large > _MOST_LARGE:
            _refuse(path, f"at most {_MOST_LARGE:,} integers of {_LARGE:,} or more", "more")
        if step.name == "MARK":
            marks.append(len(depths))
        elif step.name in ("BINPUT", "LONG_BINPUT", "PUT"):
            memo[argument] = depths[-1]
        elif step.name in ("BINGET", "LONG_BINGET", "GET"):
            depths.append(memo.get(argument, 0))
        else:
            taken = _taken(step, depths, marks)
            if step.stack_after:
                depths.append(_depth(step.name, taken))
                if depths[-1] > _DEEPEST:
                    _refuse(path, f"containers in at most {_DEEPEST} others", "deeper ones")


def _taken(step: pickletools.OpcodeInfo, depths: list[int], marks: list[int]) -> list[int]:
    """Take from the stack what a step takes; the depths of it."""
    count = len(step.stack_before)
    if pickletools.markobject in step.stack_before:
        count += len(depths) - marks.pop() - 2  # the mark is not on the stack here, and the slice after it is
    if not count:
        return []
    taken = depths[-count:]
    del depths[-count:]
    return taken


def _depth(name: str, taken: list[int]) -> int:
    if not taken:
        return 0
    if name in ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "BUILD"):  # the first is the container itself
        return max(taken[0], 1 + max(taken[1:], default=-1))
    return 1 + max(taken)


def _user_globals() -> set[str]:
    """What the user's own code told torch to be safe, as a pickle names it."""
    told = torch.serialization.get_safe_globals()
    names = (entry[1] if isinstance(entry, tuple) else f"{entry.__module__}.{entry.__qualname__}" for entry in told)
    return {" ".join(name.rpartition(".")[::2]) for name in names}


class _Weight:
    """How many bytes a value would have if nothing in it were shared, about; refused above a limit."""

    def __init__(self, path: str | Path, most: int) -> None:
        self._path, self._most = path, most
        self._known: dict[int, int] = {}
        self._own = tuple(entry for entry in torch.serialization.get_safe_globals() if isinstance(entry, type))

    def check(self, value: Any, depth: int = 0) -> int:
        """The weight of a value that lies in so many others."""
        if id(value) in self._known:
            return self._known[id(value)]
        if depth > _DEEPEST:  # or a container that holds itself
            _refuse(self._path, f"containers in at most {_DEEPEST} others", "deeper ones")
        weight = 8
        if isinstance(value, str):
            weight += len(value)
        elif isinstance(value, torch.Tensor):
            weight += self._tensor(value)
        elif not isinstance(value, _SCALARS):
            for part in self._parts(value):
                weight += self.check(part, depth + 1)
                if weight > self._most:
                    break
        if weight > self._most:
            _refuse(self._path, "about as much as it is large", "what becomes many times that when it is used")
        self._known[id(value)] = weight
        return weight

    def _tensor(self, value: torch.Tensor) -> int:
        if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
            _refuse(self._path, "tensors with all their values", "some without")
        return value.numel() * value.element_size()

    def _parts(self, value: Any) -> Iterable[Any]:
        if isinstance(value, dict):
            yield from value.keys()
            yield from value.values()
            if isinstance(value, OrderedDict) and vars(value):  # torch keeps versions of modules there
                if vars(value).keys() != {"_metadata"}:
                    _refuse(self._path, "plain dictionaries", "some with attributes")
                yield vars(value)["_metadata"]
        elif isinstance(value, list | tuple | set):
            yield from value
        elif isinstance(value, Namespace):
            yield vars(value)
        elif not isinstance(value, self._own):
            _refuse(self._path, "tensors, plain containers and `argparse.Namespace` alone", f"a {type(value).__name__}")
