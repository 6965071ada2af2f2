"""JSON lines: an object per line, with both texts under some keys of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from fairseq_mtmoe.data.corpora.blocks import BadLine, CorpusFiles
from fairseq_mtmoe.data.corpora.readers.errors import excerpt_of
from fairseq_mtmoe.data.corpora.readers.languages import SIDES, best_match
from fairseq_mtmoe.data.corpora.readers.lines import read_lines
from fairseq_mtmoe.data.corpora.readers.segments import Pairs, Segment, gather
from fairseq_mtmoe.errors import UserError

_SAMPLE = 1000  # objects that tell the keys

Path = tuple[str, ...]
"""Keys one inside the other."""


def read_jsonl(files: CorpusFiles) -> Iterator[Pairs | BadLine]:
    """The pairs of a file. Its keys are in `fields` (`translation.en` for one inside another), or its objects tell."""
    return gather(_segments(files), files)


def _segments(files: CorpusFiles) -> Iterator[Segment]:
    (content,), part = files.contents, files.part
    number = part.first - 1 if part else 0
    paths = _paths_of(next(read_lines(content)).texts, files) if number else None  # the beginning tells for all
    for batch in read_lines(content, part.spans[0] if part else (0, None)):
        paths = paths or _paths_of(batch.texts, files)
        for index, text in enumerate(batch.texts):
            number += 1
            if index in batch.bad:
                yield Segment(number, None, None, (), *batch.bad[index])
            else:
                yield _segment(number, text, paths)


def _segment(number: int, text: str, paths: tuple[Path, Path] | None) -> Segment:
    row = _parsed(text)
    if row is None or paths is None:
        return Segment(number, None, None, (), "keys" if text.strip() else "empty", excerpt_of(text))
    try:
        source, target = (_value(row, path) for path in paths)
    except LookupError:
        return Segment(number, None, None, (), "keys", excerpt_of(text))
    return Segment(number, source, target, excerpt=excerpt_of(text))


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _value(row: Any, path: Path) -> str | None:
    """The text under some keys, None for JSON's null.

    Raises:
        LookupError: there is no such key, or it has something else.
    """
    for key in path:
        if not isinstance(row, dict):
            raise LookupError
        row = row[key]
    if not isinstance(row, str | None):
        raise LookupError
    return row


def _paths_of(texts: Sequence[str], files: CorpusFiles) -> tuple[Path, Path] | None:
    """The keys of both texts, or None if there is no object to tell them."""
    rows = list(islice((row for text in texts if (row := _parsed(text)) is not None), _SAMPLE))
    found = (_find_keys(row, files) for row in rows)
    paths = next((paths for paths in found if paths), None)
    if rows and not paths:
        raise UserError(_unknown_keys(rows[0], files))
    return paths


def _unknown_keys(row: Mapping[str, Any], files: CorpusFiles) -> str:
    """The sentence for objects or columns of which nobody knows where the texts are."""
    return (
        f"`fields` of `{files.paths[0]}` must say under which keys {files.source_lang} and {files.target_lang} are, "
        f"such as `{{source: text.{files.source_lang}, target: text.{files.target_lang}}}`, but the first has only "
        f"{excerpt_of(', '.join(map(str, row)))}."
    )


def _find_keys(row: Mapping[str, Any], files: CorpusFiles) -> tuple[Path, Path] | None:
    """Where an object has both texts: as `fields` says, else under the languages' codes, alone or in `translation`, or
    under `source` and `target`."""
    given = [files.fields.get(side) for side in ("source", "target")]
    if any(given):
        source, target = (_given(row, str(key)) for key in given)
        return (source, target) if source and target else None
    for outer, inner in ((("translation",), row.get("translation")), ((), row)):
        if isinstance(inner, Mapping):
            keys = [key for key in inner if isinstance(inner[key], str | None)]
            one, other = best_match(keys, files.source_lang), best_match(keys, files.target_lang)
            if one is not None and other is not None and one != other:
                return (*outer, one), (*outer, other)
    sides = [next((key for key in row if key.lower() in words), None) for words in SIDES]
    return None if sides[0] is None or sides[1] is None else ((sides[0],), (sides[1],))


def _given(row: Mapping[str, Any], key: str) -> Path | None:
    """The key itself if there is one of that name, else its parts between dots."""
    if key in row:
        return (key,)
    inner: Any = row
    for part in key.split("."):
        if not isinstance(inner, Mapping) or part not in inner:
            return None
        inner = inner[part]
    return tuple(key.split("."))
