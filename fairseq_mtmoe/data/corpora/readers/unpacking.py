"""Unpacking of compressed files and archives to disk; names in archives never determine where."""

import errno
import fnmatch
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from fairseq_mtmoe.data.corpora.blocks import Content, Fault, excerpt_of
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.io.files import regular_file, replacing

_CODECS = {b"\x1f\x8b\x08": "gzip", b"BZh": "bz2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_PACKED_TWICE = 3  # levels of compression: a mirror may compress an archive again whose members are compressed
_SHOWN_NAMES = 5
_PIECE = 1 << 18


def split_member(path: Path) -> tuple[Path, str | None]:
    """Return the file, and the archive's member if one is given; a file's own name may contain `!`."""
    text = str(path)
    cuts = [index for index, character in enumerate(text) if character == "!"]
    if not cuts or path.exists():
        return path, None
    cut = next((cut for cut in cuts if Path(text[:cut]).is_file()), cuts[0])
    return Path(text[:cut]), text[cut + 1 :]


def is_packed(path: Path) -> bool:
    """Return whether a corpus' file is packed, or a member of an archive."""
    outer, member = split_member(path)
    if member is not None or not outer.is_file():  # a missing file is reported when it is opened
        return member is not None
    with outer.open("rb") as file:
        head = file.read(512)
    return _codec(head) is not None or _archive(head) is not None


def unpack(paths: Mapping[Path, Path]) -> dict[Path, Content]:
    """Unpack a file, or members of one archive, to `paths`; return their contents, with faults that ended them."""
    first = next(iter(paths))
    try:
        with regular_file(split_member(first)[0], "a corpus' file").open("rb") as raw, ExitStack() as stack, _faults():
            file = _decompressed(raw, stack)
            kind = _archive(_head(file))
            if kind is None:
                if any(split_member(path)[1] is not None for path in paths):
                    raise UserError(f"`{first}` must be a member of a tar or zip archive, but the file is none.")
                return {path: _write(_pieces(file), out) for path, out in paths.items()}
            members, open_member = _opened(file, kind)
            names = list(members)
            chosen = {path: _member(names, path) for path in paths}
            # in the archive's order, as compressed ones cannot be rewound
            in_order = sorted(paths, key=lambda path: names.index(chosen[path]))
            pieces = {path: _pieces_of_member(open_member, members[chosen[path]]) for path in in_order}
            return {path: _write(content, paths[path]) for path, content in pieces.items()}
    except Fault as fault:  # nothing can be read
        written = {path: _write(iter(()), out) for path, out in paths.items()}
        return {path: content._replace(reason=fault.reason, message=fault.message) for path, content in written.items()}


def _opened(file: BinaryIO, kind: str) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """Return an archive's members by name, in order, without folders, and the function that opens one."""
    if kind == "zip":
        archive = zipfile.ZipFile(file)
        return {info.filename: info for info in archive.infolist() if not info.is_dir()}, archive.open
    tar = tarfile.TarFile(fileobj=file)
    return {info.name: info for info in tar if not info.isdir()}, tar.extractfile


def _pieces_of_member(open_member: Callable[[Any], Any], member: object) -> Iterator[bytes]:
    with ExitStack() as stack:
        with _faults():
            file = _decompressed(stack.enter_context(open_member(member)), stack)
        yield from _pieces(file)


def _write(pieces: Iterator[bytes], out: Path) -> Content:
    """Write a file's bytes up to a fault, if there is one."""
    fault = None
    with replacing(out) as partial, partial.open("wb") as target:
        try:
            for data in pieces:
                target.write(data)
        except Fault as error:
            fault = error
    return Content(out, fault.reason, excerpt_of(fault.message)) if fault else Content(out)


def _pieces(file: Any) -> Iterator[bytes]:
    """Yield the bytes of a file, up to an error if there is one."""
    while True:
        with _faults():
            data: bytes = file.read1(_PIECE)
        if not data:
            return
        yield data


@contextmanager
def _faults() -> Iterator[None]:
    """Turn unpackers' errors, which have many types, into a `Fault`; errors of the disk are not changed."""
    try:
        yield
    except (Fault, UserError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # zipfile seeks before the beginning
            raise
        message = str(error) or type(error).__name__
        is_cut = isinstance(error, EOFError) or "unexpected end of data" in message
        raise Fault("truncated" if is_cut else "damaged", message) from error


def _decompressed(file: BinaryIO, stack: ExitStack) -> BinaryIO:
    """Return a file decompressed by its first bytes, also if it is compressed several times."""
    from fsspec.compression import compr  # takes 0.1 s to import

    for _ in range(_PACKED_TWICE):
        codec = _codec(_head(file))
        if codec is None:
            break
        if codec not in compr:
            raise UserError("Files packed by zstd need backports.zstd: `pip install 'fairseq_mtmoe[corpora]'`.")
        file = stack.enter_context(compr[codec](file, mode="rb"))
    return file


def _head(file: Any) -> bytes:
    pieces: list[bytes] = []
    try:
        while sum(map(len, pieces)) < 512 and (data := file.read1(512)):
            pieces.append(data)
    except Exception:
        if not pieces:
            raise
    file.seek(0)  # reading the file raises the error again
    return b"".join(pieces)


def _codec(head: bytes) -> str | None:
    return next((codec for magic, codec in _CODECS.items() if head.startswith(magic)), None)


def _archive(head: bytes) -> str | None:
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "zip"
    return "tar" if head[257:262] == b"ustar" else None


def _member(names: Sequence[str], path: Path) -> str:
    """Return the name of the member given by `path`; `*` matches any characters, a leading `./` is ignored."""
    wanted = split_member(path)[1]
    if wanted is None:
        rule = f"given with a member, such as `{path.name}!path/inside`, as it is an archive"
        raise_invalid("the corpus' file", rule, str(path))
    plain = {name: name.removeprefix("./") for name in names}
    wanted = wanted.removeprefix("./")
    matching = [name for name in names if plain[name] == wanted]
    if "*" in wanted and not matching:
        pattern = wanted.replace("[", "[[]").replace("?", "[?]")
        matching = [name for name in names if fnmatch.fnmatchcase(plain[name], pattern)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        both = " and ".join(f"`{excerpt_of(name)}`" for name in matching[:2])
        raise UserError(f"`{path}` must be one member of the archive, but matches both {both}.")
    shown = ", ".join(map(excerpt_of, names[:_SHOWN_NAMES])) + (" …" if len(names) > _SHOWN_NAMES else "")
    raise UserError(
        f"`{path}` must be a member of the archive, but there is no `{wanted}`, only {shown or 'nothing at all'}."
    )
