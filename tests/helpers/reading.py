"""Corpora in files, and what readers make of them."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairseq_mtmoe.corpora.blocks import BAD_REASONS, BadLine, Block, CorpusFiles
from fairseq_mtmoe.corpora.readers import read
from fairseq_mtmoe.corpora.readers.unpacking import is_packed, unpack


def corpus(*paths: Path | str, source: str = "en", target: str = "de", **settings: Any) -> CorpusFiles:
    return CorpusFiles("corpus", tuple(map(Path, paths)), source, target, **settings)


def written(folder: Path, *contents: str | bytes, **settings: Any) -> CorpusFiles:
    """A corpus of files of these contents, called `a` and `b`."""
    paths = [folder / name for name in "ab"[: len(contents)]]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return corpus(*paths, **settings)


def unpacked(files: CorpusFiles, folder: Path) -> CorpusFiles:
    paths = []
    for number, path in enumerate(files.paths):
        out = folder / str(number)
        if is_packed(path):
            unpack({path: out})
        paths.append(out if is_packed(path) else path)
    return replace(files, unpacked=tuple(paths))


def found_in(files: CorpusFiles, block: int = 50_000) -> tuple[list[tuple[int, str, str]], list[BadLine]]:
    """The pairs with their lines, and the bad lines; what must be so of all blocks is seen to."""
    with tempfile.TemporaryDirectory() as folder:
        items = list(read(unpacked(files, Path(folder)), block))
    pairs: list[tuple[int, str, str]] = []
    bad: list[BadLine] = []
    for item in items:
        if isinstance(item, BadLine):
            assert item.reason in BAD_REASONS and item.excerpt.isprintable() and item.line >= 1
            bad.append(item)
            continue
        assert isinstance(item, Block)
        assert 0 < len(item.source) == len(item.target) == len(item.lines) <= block
        assert all(len(texts) == len(item.source) for texts in item.references)
        pairs += zip(item.lines.tolist(), item.source, item.target, strict=True)
    assert [line for line, _, _ in pairs] == sorted({line for line, _, _ in pairs})
    for _, source, target in pairs:
        assert source.strip() and target.strip() and "\0" not in source + target
        (source + target).encode("utf-8")
    return pairs, bad


def told(files: CorpusFiles) -> tuple[list[tuple[int, str, str]], list[tuple[str, int, str]]]:
    """The same, but of a bad line its file's name, its number and the reason."""
    pairs, bad = found_in(files)
    return pairs, [(Path(line.file).name, line.line, line.reason) for line in bad]


def split_lines(content: bytes) -> list[bytes]:
    """The lines that `wc -l` counts, and one without a line feed at the end."""
    lines = content.split(b"\n")
    return lines[:-1] if lines[-1] == b"" else lines


def usable_line(line: bytes) -> str | None:
    """One line as a reader has it, slowly; None if it cannot be used."""
    try:
        text = line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if text.strip() and "\0" not in text and len(text) <= 65536 else None
