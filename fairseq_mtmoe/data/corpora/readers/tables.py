"""Readers of files with a pair per line: two columns of TSV, or two keys of JSON, by recipe, header or content."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from fairseq_mtmoe.data.corpora.blocks import BadLine, CorpusFiles, Fault, Pairs, Segment, excerpt_of
from fairseq_mtmoe.data.corpora.cleaning.languages import best_match, is_same_language, looks_like
from fairseq_mtmoe.data.corpora.readers.lines import Batch, read_lines, usable_pairs
from fairseq_mtmoe.errors import UserError, raise_invalid

_SIDES = ({"source", "src"}, {"target", "tgt", "trg"})  # names of columns and keys besides languages
_SAMPLE = 1000  # lines for detecting columns or keys
# Cells without text: numbers (scores, identifiers), URLs, language codes, file names, empty cells.
_NO_TEXT = re.compile(r"\s*(?:[\d.,:;%+eE-]*|https?://\S*|[A-Za-z]{2,3}(?:[_-]\w{2,8})?|\S+\.\w{2,4})\s*")
_MOSTLY = 0.5


class Columns(NamedTuple):
    """The columns of a TSV file."""

    source: int  # from 0
    target: int
    width: int  # number of columns
    named: bool  # whether the first line of this width is a header


def read_tsv(files: CorpusFiles) -> Iterator[Pairs | BadLine]:
    """Yield the pairs of a TSV file, without its header, and without texts that are `absent` or `incomplete`."""
    (content,) = files.contents
    columns: Columns | None = None
    first = files.first
    try:
        if first > 1:  # the file's beginning determines the columns
            columns = _columns(next(read_lines(content)), files)
        for batch in read_lines(content, files.spans[0]):
            if columns is None:
                columns = _columns(batch, files)
                if columns.named:
                    tabs = columns.width - 1
                    fits = (i for i, text in enumerate(batch.texts) if i not in batch.bad and text.count("\t") == tabs)
                    at = next(fits)
                    yield from _pairs(batch.part(0, at), columns, first, files)
                    batch, first = batch.part(at + 1), at + 2
            yield from _pairs(batch, columns, first, files)
            first += len(batch.texts)
    except Fault as fault:
        yield BadLine(str(files.paths[0]), first, fault.reason, fault.message, fault.lost)


def _pairs(batch: Batch, columns: Columns, first: int, files: CorpusFiles) -> Iterator[Pairs | BadLine]:
    texts, bad = batch.texts, dict(batch.bad)
    absent, incomplete = (str(files.fields.get(name, "")) for name in ("absent", "incomplete"))
    tabs = columns.width - 1
    for index, text in enumerate(texts):
        if text.count("\t") != tabs:
            bad.setdefault(index, ("columns" if text.strip() else "empty", excerpt_of(text)))
    if bad:
        texts = [text if text.count("\t") == tabs else "\t" * tabs for text in texts]
    cells = "\t".join(texts).split("\t") if texts else []  # of all lines at once, as each has the same number
    source, target = cells[columns.source :: columns.width], cells[columns.target :: columns.width]
    for index, sides in enumerate(zip(source, target, strict=True) if absent or incomplete else ()):
        if any((absent and side.strip() == absent) or (incomplete and incomplete in side) for side in sides):
            bad.setdefault(index, ("untranslated", excerpt_of(batch.texts[index])))
    yield from usable_pairs(Batch(source, bad), Batch(target), first, files)


def _columns(batch: Batch, files: CorpusFiles) -> Columns:
    """Return the columns of a table by its first lines (UserError: neither `fields` nor the rows tell them)."""
    sample = [text.split("\t") for index, text in enumerate(batch.texts[:_SAMPLE]) if index not in batch.bad] or [[""]]
    width = Counter(map(len, sample)).most_common(1)[0][0]
    first, *others = rows = [row for row in sample if len(row) == width]
    names = _named_columns(first, files)
    # In columns of language codes, other lines are the same as the first.
    if names and [first[column] for column in names] in [[row[column] for column in names] for row in others]:
        names = None
    given = [files.fields.get(side) for side in ("source", "target")]
    if any(value is not None for value in given):
        source, target = _given_columns(first, given, files)
        has_names = any(isinstance(value, str) for value in given) or set(names or ()) == {source, target}
        return Columns(source, target, width, has_names)
    if names:
        return Columns(*names, width, named=True)
    texts = [[row[column] for row in rows] for column in range(width)]
    found = [
        column
        for column in range(width)
        if sum(not _NO_TEXT.fullmatch(cell) for cell in texts[column]) > _MOSTLY * len(rows)
    ]
    if len(found) == 2 and (likeness := _likeness(texts[found[0]], texts[found[1]], files)):
        source, target = found if likeness > 0 else found[::-1]
        return Columns(source, target, width, named=False)
    rule = (
        f"given with the columns of {files.source_lang} and {files.target_lang} "
        f"(`fields: {{source: 1, target: 2}}`), as their content does not tell them"
    )
    raise_invalid(str(files.paths[0]), rule, "\t".join(first))


def _given_columns(first: Sequence[str], given: Sequence[str | int | None], files: CorpusFiles) -> list[int]:
    found = []
    for side, value in zip(("source", "target"), given, strict=True):
        if isinstance(value, int) and 1 <= value <= len(first):
            found.append(value - 1)
        elif isinstance(value, str) and value in first:
            found.append(first.index(value))
        else:
            raise UserError(
                f"`fields: {side}` of `{files.paths[0]}` must be the number or name of one of its {len(first)} columns,"
                f" but is {value!r} instead."
            )
    if found[0] == found[1]:
        raise_invalid(f"fields of {files.paths[0]}", "two different columns", dict(files.fields))
    return found


def _named_columns(row: Sequence[str], files: CorpusFiles) -> tuple[int, int] | None:
    """Return the columns named by language codes, or by words for source and target; None without."""

    def only(matches: Callable[[str], bool]) -> int | None:
        found = [column for column, name in enumerate(row) if matches(name.strip())]
        return found[0] if len(found) == 1 else None

    langs = (files.source_lang, files.target_lang)
    by_code = [only(lambda name, lang=lang: is_same_language(name, lang)) for lang in langs]  # type: ignore[misc]
    by_word = [only(lambda name, words=words: name.lower() in words) for words in _SIDES]  # type: ignore[misc]
    source, target = by_word if None in by_code else by_code
    return None if source is None or target is None else (source, target)


def _likeness(first: Sequence[str], second: Sequence[str], files: CorpusFiles) -> float:
    """Return a positive number if the first column is the source, a negative one if the second is; 0 if unclear."""
    one, other = " ".join(first), " ".join(second)
    straight = looks_like(one, files.source_lang) + looks_like(other, files.target_lang)
    turned = looks_like(other, files.source_lang) + looks_like(one, files.target_lang)
    return 0 if abs(straight - turned) < _MOSTLY else straight - turned


Keys = tuple[str, ...]  # nested keys


def json_segments(files: CorpusFiles) -> Iterator[Segment]:
    """Yield the lines of a JSON file; keys are in `fields` (`translation.en` if nested), or detected."""
    (content,) = files.contents
    paths = (
        _paths_of(next(read_lines(content)).texts, files) if files.first > 1 else None
    )  # the beginning determines the keys
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
    """Return the text under nested keys, None for null (LookupError: a key is missing, or it is no text)."""
    for key in keys:
        if not isinstance(row, dict):
            raise LookupError
        row = row[key]
    if not keys or not isinstance(row, str | None):
        raise LookupError
    return row


def _paths_of(texts: Sequence[str], files: CorpusFiles) -> tuple[Keys, Keys] | None:
    """Return the keys of both texts; None without an object (UserError: they are unclear)."""
    rows = list(islice((row for text in texts if (row := _parsed(text)) is not None), _SAMPLE))
    paths = next((paths for row in rows if (paths := _find_keys(row, files))), None)
    if rows and not paths:
        raise UserError(
            f"`fields` of `{files.paths[0]}` must give the keys of {files.source_lang} and {files.target_lang}, such as"
            f" `{{source: text.{files.source_lang}, target: text.{files.target_lang}}}`, but the first object only has"
            f" {excerpt_of(', '.join(map(str, rows[0])))}."
        )
    return paths


def _find_keys(row: Mapping[str, Any], files: CorpusFiles) -> tuple[Keys, Keys] | None:
    """Return the keys of both texts: by `fields`, by language codes (also in `translation`), by source and target."""
    given = [files.fields.get(side) for side in ("source", "target")]
    if any(given):
        source, target = (_given_key(row, str(key)) for key in given)
        return (source, target) if source and target else None
    for outer, inner in ((("translation",), row.get("translation")), ((), row)):
        if isinstance(inner, Mapping):
            keys = [key for key in inner if isinstance(inner[key], str | None)]
            one, other = best_match(keys, files.source_lang), best_match(keys, files.target_lang)
            if one is not None and other is not None and one != other:
                return (*outer, one), (*outer, other)
    sides = [next((key for key in row if key.lower() in words), None) for words in _SIDES]
    return None if sides[0] is None or sides[1] is None else ((sides[0],), (sides[1],))


def _given_key(row: Mapping[str, Any], key: str) -> Keys | None:
    """Return the key itself if it exists, else its parts between dots; None if neither exists."""
    if key in row:
        return (key,)
    inner: Any = row
    for part in key.split("."):
        if not isinstance(inner, Mapping) or part not in inner:
            return None
        inner = inner[part]
    return tuple(key.split("."))
