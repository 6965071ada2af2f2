"""Readers of files with a pair per line: two columns of TSV, two keys of JSON.

Columns and keys are found by recipe, header or content.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.corpora.blocks import (
    BadLine,
    CorpusFiles,
    Pairs,
    Segment,
    excerpt_of,
    text_fault,
)
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
    header: int | None  # index of the line with their names


def read_tsv(files: CorpusFiles) -> Iterator[Pairs | BadLine]:
    """Yield the pairs of a TSV file, without its header.

    Texts that are `absent` or `incomplete` are left out.
    """
    (content,) = files.contents
    first = files.first
    for start in islice(read_lines(content), 1):  # it determines the columns
        columns = _columns(start, files)
        for batch in read_lines(content, files.spans[0]):
            if first == 1 and columns.header is not None:
                yield from _pairs(batch.part(0, columns.header), columns, first, files)
                first += columns.header + 1
                batch = batch.part(columns.header + 1)
            yield from _pairs(batch, columns, first, files)
            first += len(batch.texts)


def _pairs(
    batch: Batch, columns: Columns, first: int, files: CorpusFiles
) -> Iterator[Pairs | BadLine]:
    if not batch.texts:
        return
    texts = list(batch.texts)
    bad = dict(batch.bad)
    tabs = columns.width - 1
    for index, text in enumerate(texts):
        if text.count("\t") != tabs:
            bad.setdefault(index, (text_fault(text) or "columns", excerpt_of(text)))
            texts[index] = "\t" * tabs
    # The cells of all lines at once, as each line has the same number.
    cells = "\t".join(texts).split("\t")
    source, target = cells[columns.source :: columns.width], cells[columns.target :: columns.width]
    absent = str(files.fields.get("absent", "\t"))  # no text has tabs
    incomplete = str(files.fields.get("incomplete", "\t"))
    for index, sides in enumerate(zip(source, target, strict=True)):
        if absent in map(str.strip, sides) or incomplete in "\n".join(sides):
            bad.setdefault(index, ("untranslated", excerpt_of(batch.texts[index])))
    yield from usable_pairs(Batch(source, bad), Batch(target), first, files)


def _columns(batch: Batch, files: CorpusFiles) -> Columns:
    """Return the columns of a table by its first lines.

    Raises `UserError` if neither `fields` nor a header tells them.
    """
    counts = Counter[int]()
    first: dict[int, int] = {}  # index of the first line with a number of tabs
    for index, text in enumerate(batch.texts[:_SAMPLE]):
        if index not in batch.bad:
            counts[text.count("\t")] += 1
            first.setdefault(text.count("\t"), index)
    tabs, _ = max(counts.items(), key=itemgetter(1), default=(0, 0))
    header = first.get(tabs, 0)
    titles = list(map(str.strip, batch.texts[header].split("\t")))
    named = _named_sides(titles, files)
    fields = files.fields
    if "source" in fields or "target" in fields:
        source = _given_column(titles, "source", files)
        target = _given_column(titles, "target", files)
        if source == target:
            raise_invalid(f"fields of {files.paths[0]}", "two different columns", dict(fields))
        is_named = isinstance(fields["source"], str) or isinstance(fields["target"], str)
        if is_named or {*(named or ())} == {titles[source], titles[target]}:
            return Columns(source, target, tabs + 1, header)
        return Columns(source, target, tabs + 1, None)
    if named is None or max(map(titles.count, named)) > 1:
        langs = f"{files.source_lang} and {files.target_lang}"
        rule = (
            f"given with the columns of {langs} (`fields: {{source: 1, target: 2}}`),"
            " because line 1 does not name them"
        )
        raise_invalid(str(files.paths[0]), rule, "\t".join(titles))
    return Columns(titles.index(named[0]), titles.index(named[1]), tabs + 1, header)


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
    source = best_match(names, files.source_lang)
    target = best_match(names, files.target_lang)
    if source is None or target is None or source == target:
        matches = []
        for words in _SIDES:
            matches.append(next((name for name in names if name.lower() in words), None))
        source, target = matches
    if source is None or target is None:
        return None
    return source, target


Keys = tuple[str, ...]  # nested keys


def json_segments(files: CorpusFiles) -> Iterator[Segment]:
    """Yield the lines of a JSON file.

    Keys are in `fields` (`translation.en` if nested), or detected.
    """
    (content,) = files.contents
    paths: tuple[Keys, Keys] = ((), ())
    if files.first > 1:  # the beginning determines the keys
        paths = _paths_of(next(read_lines(content)).texts, files)
    for batch in read_lines(content, files.spans[0]):
        if not any(paths):
            paths = _paths_of(batch.texts, files)
        for index, text in enumerate(batch.texts):
            if index in batch.bad:
                yield Segment(None, None, (), *batch.bad[index])
                continue
            row = _parsed(text)
            try:
                source, target = value_of(row, paths[0]), value_of(row, paths[1])
                yield Segment(source, target, excerpt=excerpt_of(text))
            except LookupError:
                yield Segment(None, None, (), text_fault(text) or "keys", excerpt_of(text))


def _parsed(text: str) -> Any:
    """Return the value of a line of JSON; None if it is none."""
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    return None


def value_of(row: Any, keys: Keys) -> str | None:
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


def _paths_of(texts: Sequence[str], files: CorpusFiles) -> tuple[Keys, Keys]:
    """Return the keys of both texts in lines of JSON; none without an object."""
    rows = [row for row in map(_parsed, texts[:_SAMPLE]) if isinstance(row, dict)]
    return find_keys(rows, files)


def find_keys(rows: Sequence[dict[str, Any]], files: CorpusFiles) -> tuple[Keys, Keys]:
    """Return the keys of both texts; none without rows.

    The first row that tells them counts.

    Raises `UserError` if the keys are unclear.
    """
    for row in rows:
        if paths := _find_keys(row, files):
            return paths
    if rows:
        raise UserError(
            f"`fields` of `{files.paths[0]}` must give the keys of {files.source_lang} and"
            f" {files.target_lang}, such as"
            f" `{{source: text.{files.source_lang}, target: text.{files.target_lang}}}`,"
            f" but the first object has only {excerpt_of(', '.join(rows[0]))}."
        )
    return (), ()


def _find_keys(row: dict[str, Any], files: CorpusFiles) -> tuple[Keys, Keys] | None:
    """Return the keys of both texts.

    They are found by `fields`, by language codes (also in `translation`), by source and target.
    """
    if "source" in files.fields or "target" in files.fields:
        source = _given_key(row, str(files.fields.get("source")))
        target = _given_key(row, str(files.fields.get("target")))
        return (source, target) if source and target else None
    for outer, inner in ((("translation",), row.get("translation")), ((), row)):
        if isinstance(inner, dict):
            keys = [key for key in inner if isinstance(inner[key], str | None)]
            if named := _named_sides(keys, files):
                return (*outer, named[0]), (*outer, named[1])
    return None


def _given_key(row: dict[str, Any], key: str) -> Keys | None:
    """Return the key itself if it has a text, else its parts between dots.

    If neither has one, return None.
    """
    for keys in ((key,), tuple(key.split("."))):
        with suppress(LookupError):
            value_of(row, keys)
            return keys
    return None
