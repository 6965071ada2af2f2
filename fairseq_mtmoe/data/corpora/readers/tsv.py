"""Tab-separated values: a pair per line, in two of its columns.

Which columns these are is said by the recipe, by the first line, or by what is in them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from fairseq_mtmoe.data.corpora.blocks import BadLine, CorpusFiles
from fairseq_mtmoe.data.corpora.readers.errors import Fault, excerpt_of
from fairseq_mtmoe.data.corpora.readers.languages import SIDES, is_same_language, looks_like
from fairseq_mtmoe.data.corpora.readers.lines import Batch, Unusable, read_lines
from fairseq_mtmoe.data.corpora.readers.segments import Pairs, usable_pairs
from fairseq_mtmoe.errors import UserError, raise_invalid

_SAMPLE = 1000  # lines that tell which columns there are
_NO_TEXT = re.compile(r"\s*(?:[\d.,:;%+eE-]*|https?://\S*|[A-Za-z]{2,3}(?:[_-]\w{2,8})?|\S+\.\w{2,4})\s*")
"""Numbers (scores, identifiers), addresses, codes of languages, names of files; and nothing."""

_MOSTLY = 0.5


class Columns(NamedTuple):
    """Where the texts are in a line."""

    source: int  # from 0
    target: int
    width: int  # how many columns a line has
    named: bool  # whether the first line of this width has the columns' names


def read_tsv(files: CorpusFiles) -> Iterator[Pairs | BadLine]:
    """The pairs of a file. A line of names, the first of its width, is no pair, and no bad line either.

    A text that has `fields: absent` in it, such as `__NULL__`, is none.
    """
    (content,) = files.contents
    columns: Columns | None = None
    first, span = (files.part.first, files.part.spans[0]) if files.part else (1, (0, None))
    try:
        if first > 1:  # the file's beginning tells for all of its lines
            columns = _columns(next(read_lines(content)), files)
        for batch in read_lines(content, span):
            if columns is None:
                columns = _columns(batch, files)
                if columns.named:
                    at = _header(batch, columns)
                    yield from _pairs(batch.part(0, at), columns, first, files)
                    batch, first = batch.part(at + 1, len(batch.texts)), at + 2
            yield from _pairs(batch, columns, first, files)
            first += len(batch.texts)
    except Fault as fault:
        yield BadLine(str(files.paths[0]), first, fault.reason, fault.message, fault.lost)


def _columns(batch: Batch, files: CorpusFiles) -> Columns:
    sample = [text.split("\t") for index, text in enumerate(batch.texts[:_SAMPLE]) if index not in batch.bad]
    return find_columns(sample or [[""]], files)


def _header(batch: Batch, columns: Columns) -> int:
    """The index of the line of names: the first that has as many columns as most have."""
    tabs = columns.width - 1
    return next(i for i, text in enumerate(batch.texts) if i not in batch.bad and text.count("\t") == tabs)


def _pairs(batch: Batch, columns: Columns, first: int, files: CorpusFiles) -> Iterator[Pairs | BadLine]:
    texts, bad = batch.texts, dict(batch.bad)
    name, absent = str(files.paths[0]), str(files.fields.get("absent", ""))
    tabs = columns.width - 1
    if bad or any(text.count("\t") != tabs for text in texts):
        texts = [text if text.count("\t") == tabs else "\t" * tabs for text in texts]
        for index, text in enumerate(batch.texts):
            if text.count("\t") != tabs:
                bad.setdefault(index, Unusable("columns" if text.strip() else "empty", excerpt_of(text)))
    cells = "\t".join(texts).split("\t") if texts else []  # all lines' at once: each of them has as many
    source, target = cells[columns.source :: columns.width], cells[columns.target :: columns.width]
    if absent:
        for index, (one, other) in enumerate(zip(source, target, strict=True)):
            if absent in one or absent in other:
                bad.setdefault(index, Unusable("untranslated", excerpt_of(batch.texts[index])))
    named = {index: (name, why) for index, why in bad.items()}
    yield from usable_pairs(source, target, first, named, (name, name), files.is_evaluation)


# ---- which columns ----


def find_columns(rows: Sequence[Sequence[str]], files: CorpusFiles) -> Columns:
    """The columns of a table that begins with these rows.

    Raises:
        UserError: `fields` names columns that are not there, or names none and the rows do not tell.
    """
    width = Counter(map(len, rows)).most_common(1)[0][0]
    rows = [row for row in rows if len(row) == width]
    header = _in_header(rows[0], files)
    if header and _comes_again(rows, header):
        header = None
    given = [files.fields.get(side) for side in ("source", "target")]
    if any(value is not None for value in given):
        found = _given(rows[0], width, given, files)
        return found._replace(named=found.named or set(header or ()) == {found.source, found.target})
    if header:
        return Columns(*header, width, named=True)
    texts = [column for column in range(width) if _is_text([row[column] for row in rows])]
    if len(texts) == 2:
        one, other = ([row[column] for row in rows] for column in texts)
        if sides := _by_language(one, other, files):
            return Columns(texts[sides[0]], texts[sides[1]], width, named=False)
    rule = (
        f"told which columns hold {files.source_lang} and {files.target_lang} "
        f"(`fields: {{source: 1, target: 2}}`): their content does not tell"
    )
    raise_invalid(str(files.paths[0]), rule, "\t".join(rows[0]))


def _given(header: Sequence[str], width: int, given: Sequence[str | int | None], files: CorpusFiles) -> Columns:
    found = []
    for side, value in zip(("source", "target"), given, strict=True):
        if isinstance(value, int) and 1 <= value <= width:
            found.append(value - 1)
        elif isinstance(value, str) and value in header:
            found.append(header.index(value))
        else:
            raise UserError(
                f"`fields: {side}` of `{files.paths[0]}` must be the number or name of one of its {width} columns, "
                f"but is {value!r} instead."
            )
    if found[0] == found[1]:
        raise_invalid(f"fields of {files.paths[0]}", "two different columns", dict(files.fields))
    return Columns(found[0], found[1], width, named=any(isinstance(value, str) for value in given))


def _in_header(row: Sequence[str], files: CorpusFiles) -> tuple[int, int] | None:
    """The columns whose names are the languages' codes, or words for source and target."""

    def only(matches: Callable[[str], bool]) -> int | None:
        found = [column for column, name in enumerate(row) if matches(name.strip())]
        return found[0] if len(found) == 1 else None

    langs = (files.source_lang, files.target_lang)
    found = [only(lambda name, lang=lang: is_same_language(name, lang)) for lang in langs]  # type: ignore[misc]
    if None in found:
        found = [only(lambda name, words=words: name.lower() in words) for words in SIDES]  # type: ignore[misc]
    source, target = found
    return None if source is None or target is None else (source, target)


def _comes_again(rows: Sequence[Sequence[str]], columns: tuple[int, int]) -> bool:
    """Whether the first line is none of names: where columns hold the languages' codes, other lines say the same."""
    first, *others = [[row[column] for column in columns] for row in rows]
    return first in others


def _is_text(cells: Sequence[str]) -> bool:
    return sum(not _NO_TEXT.fullmatch(cell) for cell in cells) > _MOSTLY * len(cells)


def _by_language(first: Sequence[str], second: Sequence[str], files: CorpusFiles) -> tuple[int, int] | None:
    """(0, 1) if the first column is in the source language, (1, 0) if the second one is; None if nobody knows."""
    one, other = " ".join(first), " ".join(second)
    straight = looks_like(one, files.source_lang) + looks_like(other, files.target_lang)
    turned = looks_like(other, files.source_lang) + looks_like(one, files.target_lang)
    if abs(straight - turned) < _MOSTLY:
        return None
    return (0, 1) if straight > turned else (1, 0)
