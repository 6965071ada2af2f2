"""Unpacking of compressed files and archives to disk.

Names in archives never determine where files are written.
"""

import errno
import re
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO

from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.core.files import regular_file
from fairseq_mtmoe.corpora.blocks import excerpt_of, unreadable

_CODECS = {b"\x1f\x8b\x08": "gzip", b"BZh": "bz2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_SHOWN_NAMES = 5
_PIECE = 1 << 18


def split_member(path: Path) -> tuple[Path, str | None]:
    """Return the file, and the archive's member if `path` has one.

    A file's own name may contain `!`.
    """
    text = str(path)
    if "!" not in text or path.exists():
        return path, None
    for mark in re.finditer("!", text):
        outer = Path(text[: mark.start()])
        if outer.is_file():
            return outer, text[mark.end() :]
    name, _, member = text.partition("!")
    return Path(name), member


def is_packed(path: Path) -> bool:
    """Return whether a corpus' file is packed, or a member of an archive."""
    outer, member = split_member(path)
    if member is not None or not outer.is_file():  # a missing file is reported when it is opened
        return member is not None
    with outer.open("rb") as file:
        head = _head(file)
    return bool(_codec(head) or _archive(head))


def unpack(paths: Mapping[Path, Path]) -> None:
    """Unpack a file, or members of one archive, to `paths`.

    Raises `UserError` if the file is truncated or damaged.
    """
    first = next(iter(paths))
    try:
        with (
            regular_file(split_member(first)[0], "a corpus' file").open("rb") as raw,
            ExitStack() as stack,
        ):
            _unpack(_decompressed(raw, stack), paths)
    except UserError:
        raise
    except Exception as error:  # unpackers' errors have many types
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # of the disk
            raise
        raise unreadable(first, str(error) or type(error).__name__) from error


def _unpack(file: BinaryIO, paths: Mapping[Path, Path]) -> None:
    kind = _archive(_head(file))
    if kind is None:
        for path, out in paths.items():
            if split_member(path)[1] is not None:
                raise UserError(
                    f"`{path}` must be in a tar or zip archive, but the file is not an archive."
                )
            _write(file, out)
        return
    members, open_member = _opened(file, kind)
    names = list(members)
    chosen = {path: _member(names, path) for path in paths}
    # in the archive's order, as compressed ones cannot be rewound
    for path in sorted(paths, key=lambda path: names.index(chosen[path])):
        with ExitStack() as stack:
            member = stack.enter_context(open_member(members[chosen[path]]))
            _write(_decompressed(member, stack), paths[path])


def _opened(file: BinaryIO, kind: str) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """Return an archive's members by name, and the function that opens one.

    Members are in order, without folders.
    """
    if kind == "zip":
        archive = zipfile.ZipFile(file)
        members = {info.filename: info for info in archive.infolist() if not info.is_dir()}
        return members, archive.open
    tar = tarfile.TarFile(fileobj=file)
    return {info.name: info for info in tar if not info.isdir()}, tar.extractfile


def _write(file: BinaryIO, out: Path) -> None:
    with out.open("wb") as target:
        shutil.copyfileobj(file, target, _PIECE)


def _decompressed(file: BinaryIO, stack: ExitStack) -> BinaryIO:
    """Return a file decompressed by its first bytes."""
    from fsspec.compression import compr  # takes 0.1 s to import

    codec = _codec(_head(file))
    if codec is None:
        return file
    if codec not in compr:
        raise UserError(
            "Files in zstd need backports.zstd: run `pip install 'fairseq_mtmoe[corpora]'`."
        )
    unpacked: BinaryIO = stack.enter_context(compr[codec](file, mode="rb"))
    return unpacked


def _head(file: BinaryIO) -> bytes:
    head = file.read(512)
    file.seek(0)
    return head


def _codec(head: bytes) -> str | None:
    for magic, codec in _CODECS.items():
        if head.startswith(magic):
            return codec
    return None


def _archive(head: bytes) -> str | None:
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "zip"
    return "tar" if head[257:262] == b"ustar" else None


def _member(names: Sequence[str], path: Path) -> str:
    """Return the name of the member given by `path`.

    `*` matches any characters, and a leading `./` is ignored.
    """
    wanted = split_member(path)[1]
    if wanted is None:
        rule = f"given with a member, such as `{path.name}!path/inside`: it is an archive"
        raise_invalid("the corpus' file", rule, str(path))
    pattern = wanted.removeprefix("./").replace("[", "[[]").replace("?", "[?]")
    matching = [name for name in names if fnmatchcase(name.removeprefix("./"), pattern)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        both = " and ".join(map(excerpt_of, matching[:2]))
        raise UserError(f"`{path}` must match one member of the archive, but matches {both}.")
    shown = ", ".join(map(excerpt_of, names[:_SHOWN_NAMES]))
    if len(names) > _SHOWN_NAMES:
        shown += " …"
    raise UserError(
        f"`{path}` does not exist: the archive has no `{wanted}`, only {shown or 'nothing'}."
    )
