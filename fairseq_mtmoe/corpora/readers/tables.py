"""Readers of files with a pair per line: two columns of TSV, two keys of JSON.

Columns and keys are found by recipe, header or content.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.corpora.blocks import BadLine, CorpusFiles, Pairs, Segment, excerpt_of
from fairseq_mtmoe.corpora.cleaning.languages import best_match
from fairseq_mtmoe.corpora.readers.lines import Batch, read_lines, usable_pairs

# Names of columns and keys besides languages.
_SIDES = ({"source", "src"}, {"target", "tgt", "trg"})
_SAMPLE = 1000  # lines for detecting columns or keys


class Columns(NamedTuple):
    """The columns of a TSV file."""

    source: int  # from 0
    target: int
    width: int  # number of columns
    named: bool  # whether the first line of this width is a header


def read_tsv(files: CorpusFiles) -> Iterator[Pairs | BadLine]:
    """Yield the pairs of a TSV file, without its header.

    Texts that are `absent` or `incomplete` are left out.
    """
    (content,) = files.contents
    columns: Columns | None = None
    first = files.first
    if first > 1:  # the file's beginning determines the columns
        columns = _columns(next(read_lines(content)), files)
    for batch in read_lines(content, files.spans[0]):
        if columns is None:
            columns = _columns(batch, files)
            if columns.named:
                tabs = columns.width - 1
                fits = (
                    index
                    for index, text in enumerate(batch.texts)
                    if index not in batch.bad and text.count("\t") == tabs
                )
                at = next(fits)
                yield from _pairs(batch.part(0, at), columns, first, files)
                batch = batch.part(at + 1)
                first = at + 2
        yield from _pairs(batch, columns, first, files)
        first += len(batch.texts)


def _pairs(
    batch: Batch, columns: Columns, first: int, files: CorpusFiles
) -> Iterator[Pairs | BadLine]:
    texts = batch.texts
    bad = dict(batch.bad)
    absent, incomplete = (str(files.fields.get(name, "")) for name in ("absent", "incomplete"))
    tabs = columns.width - 1
    for index, text in enumerate(texts):
        if text.count("\t") != tabs:
            bad.setdefault(index, ("columns" if text.strip() else "empty", excerpt_of(text)))
    if bad:
        texts = [text if text.count("\t") == tabs else "\t" * tabs for text in texts]
    # The cells of all lines at once, as each line has the same number.
    cells = "\t".join(texts).split("\t") if texts else []
    source, target = cells[columns.source :: columns.width], cells[columns.target :: columns.width]
    if absent or incomplete:
        for index, sides in enumerate(zip(source, target, strict=True)):
            if any(
                (absent and side.strip() == absent) or (incomplete and incomplete in side)
                for side in sides
            ):
                bad.setdefault(index, ("untranslated", excerpt_of(batch.texts[index])))
    yield from usable_pairs(Batch(source, bad), Batch(target), first, files)


def _columns(batch: Batch, files: CorpusFiles) -> Columns:
    """Return the columns of a table by its first lines.

    Raises `UserError` if neither `fields` nor a header tells them.
    """
    sample = enumerate(batch.texts[:_SAMPLE])
    lines = [text for index, text in sample if index not in batch.bad]
    rows = [line.split("\t") for line in lines or [""]]
    width = Counter(map(len, rows)).most_common(1)[0][0]
    first = next(row for row in rows if len(row) == width)
    titles = [title.strip() for title in first]
    named = _named_sides(titles, files)
    if "source" in files.fields or "target" in files.fields:
        source, target = (_given_column(first, side, files) for side in ("source", "target"))
        if source == target:
            raise_invalid(
                f"fields of {files.paths[0]}", "two different columns", dict(files.fields)
            )
        is_named = any(isinstance(files.fields[side], str) for side in ("source", "target"))
        is_named = is_named or {*(named or ())} == {titles[source], titles[target]}
        return Columns(source, target, width, is_named)
    if named is None or any(titles.count(name) > 1 for name in named):
        langs = f"{files.source_lang} and {files.target_lang}"
        rule = (
            f"given with the columns of {langs} (`fields: {{source: 1, target: 2}}`),"
            " as line 1 does not tell them"
        )
        raise_invalid(str(files.paths[0]), rule, "\t".join(first))
    return Columns(titles.index(named[0]), titles.index(named[1]), width, named=True)


def _given_column(first: Sequence[str], side: str, files: CorpusFiles) -> int:
    """Return the index of the column that `fields` gives by number or name.

    Raises `UserError` if there is no such column.
    """
    value = files.fields.get(side)
    if isinstance(value, int) and 1 <= value <= len(first):
        return value - 1
    if isinstance(value, str) and value in first:
        return first.index(value)
    raise UserError(
        f"`fields: {side}` of `{files.paths[0]}` must be the number or name of one of its"
        f" {len(first)} columns, but is {value!r} instead."
    )


def _named_sides(names: Sequence[str], files: CorpusFiles) -> tuple[str, str] | None:
    """Return the names of both texts among others; None if they are not there.

    They are language codes, or else words for source and target.
    """
    source, target = (best_match(names, lang) for lang in (files.source_lang, files.target_lang))
    if source is None or target is None or source == target:
        matches = []
        for words in _SIDES:
            matches.append(next((name for name in names if name.lower() in words), None))
        source, target = matches
    return None if source is None or target is None else (source, target)


Keys = tuple[str, ...]  # nested keys


def json_segments(files: CorpusFiles) -> Iterator[Segment]:
    """Yield the lines of a JSON file.

    Keys are in `fields` (`translation.en` if nested), or detected.
    """
    (content,) = files.contents
    # The beginning determines the keys.
    paths = _paths_of(next(read_lines(content)).texts, files) if files.first > 1 else None
    for batch in read_lines(content, files.spans[0]):
        paths = paths or _paths_of(batch.texts, files)
        for index, text in enumerate(batch.texts):
            if index in batch.bad:
                yield Segment(None, None, (), *batch.bad[index])
                continue
            row = _parsed(text)
            try:
                source, target = (_value(row, keys) for keys in paths or ((), ()))
                yield Segment(source, target, excerpt=excerpt_of(text))
            except LookupError:
                yield Segment(None, None, (), "keys" if text.strip() else "empty", excerpt_of(text))


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _value(row: Any, keys: Keys) -> str | None:
    """Return the text under nested keys, None for null.

    Raises `LookupError` if a key is missing, or its value is no text.
    """
    for key in keys:
        if not isinstance(row, dict):
            raise LookupError
        row = row[key]
    if not keys or not isinstance(row, str | None):
        raise LookupError
    return row


def _paths_of(texts: Sequence[str], files: CorpusFiles) -> tuple[Keys, Keys] | None:
    """Return the keys of both texts; None without an object.

    Raises `UserError` if the keys are unclear.
    """
    rows = list(islice((row for text in texts if (row := _parsed(text)) is not None), _SAMPLE))
    paths = next((paths for row in rows if (paths := _find_keys(row, files))), None)
    if rows and not paths:
        raise UserError(
            f"`fields` of `{files.paths[0]}` must give the keys of {files.source_lang} and"
            f" {files.target_lang}, such as"
            f" `{{source: text.{files.source_lang}, target: text.{files.target_lang}}}`,"
            f" but the first object only has {excerpt_of(', '.join(map(str, rows[0])))}."
        )
    return paths


def _find_keys(row: Mapping[str, Any], files: CorpusFiles) -> tuple[Keys, Keys] | None:
    """Return the keys of both texts.

    They are found by `fields`, by language codes (also in `translation`), by source and target.
    """
    wanted = [files.fields.get(side) for side in ("source", "target")]
    if any(wanted):
        source, target = (_given_key(row, str(key)) for key in wanted)
        return (source, target) if source and target else None
    for outer, inner in ((("translation",), row.get("translation")), ((), row)):
        if isinstance(inner, Mapping):
            keys = [key for key in inner if isinstance(inner[key], str | None)]
            if named := _named_sides(keys, files):
                return (*outer, named[0]), (*outer, named[1])
    return None


def _given_key(row: Mapping[str, Any], key: str) -> Keys | None:
    """Return the key itself if it exists, else its parts between dots.

    If neither exists, return None.
    """
    if key in row:
        return (key,)
    inner: Any = row
    for part in key.split("."):
        if not isinstance(inner, Mapping) or part not in inner:
            return None
        inner = inner[part]
    return tuple(key.split("."))
