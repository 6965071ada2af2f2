"""Readers of benchmark files in their authors' formats.

They yield records of named fields. Only line feeds end lines, as texts have other characters that
Python takes for line ends.
"""

import csv
import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from fairseq_mtmoe.core.errors import UserError, first_line
from fairseq_mtmoe.core.files import regular_file
from fairseq_mtmoe.core.typed import fault
from fairseq_mtmoe.nlu.data.table import Format, Source

DOCUMENT = "-DOCSTART-"
COMMENT = "# "  # begins a comment, or a word
PLACEHOLDER = "@placeholder"  # for an entity in ReCoRD's queries
# begins a highlight in ReCoRD's passages; the sentence before it may lack its full stop
HIGHLIGHT = re.compile(r"([.?!\"'])?\n@highlight\n")
LABEL_FIELD = "label"
# exceptions of reading JSON that lacks a field, or has a value of another type
MALFORMED = (LookupError, TypeError, AttributeError, ValueError, RecursionError)

Fields = dict[str, Any]
Numbered = Iterator[tuple[int, Fields]]
Item = TypeVar("Item")


@dataclass
class Lines:
    """The lines of a file, read as its `source` says.

    `left_out` counts skipped examples by reason.
    """

    path: Path
    source: Source
    label: str | None
    skip_ragged: bool
    skip_unfound: bool
    left_out: Counter[str] = field(default_factory=Counter)

    def wrong(self, number: int, why: str) -> UserError:
        """Return the error for a line or question."""
        unit = "question" if self.source.format is Format.squad else "line"
        return UserError(f"`{self.path}`, {unit} {number}: {why}.")

    def numbered(self) -> Iterator[tuple[int, str]]:
        """Yield all lines with their numbers, without line ends."""
        return ((number, line.rstrip("\r\n")) for number, line in enumerate(self.whole(), 1))

    def whole(self) -> Iterator[str]:
        """Yield all lines with line ends (UserError: the file is damaged)."""
        path = regular_file(self.path)
        encoding = self.source.encoding
        open_text: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
        try:
            with open_text(path, "rt", encoding=encoding, newline="\n") as file:
                yield from file
        except (gzip.BadGzipFile, EOFError, zlib.error, LookupError, UnicodeDecodeError) as error:
            raise UserError(
                f"`{path}` cannot be read as text in the encoding {encoding}: "
                f"{first_line(error)}. Copy or download it again."
            ) from error


@dataclass(slots=True)
class Record:
    """The fields of a line, or of one of a line's parts, with the line's number."""

    lines: Lines
    number: int
    fields: Fields

    @property
    def names(self) -> str:
        """Return the names of all fields, for messages."""
        return ", ".join(map(str, self.fields))

    def wrong(self, why: str) -> UserError:
        """Return the error for this record's line."""
        return self.lines.wrong(self.number, why)

    def text(self, name: str) -> str:
        """Return a field as text (UserError: it is absent, or a list or object)."""
        value = self.fields.get(name)
        if value is None:
            raise self.wrong(f"the field {name} is missing; the fields are {self.names}")
        if isinstance(value, (list, dict)):
            raise self.wrong(f"the field {name} must be a text, but is {value!r:.80}")
        return str(value).lower() if isinstance(value, bool) else str(value)

    def items(self, name: str, kind: type[Item]) -> list[Item]:
        """Return a field's list of values of one type (UserError: it is no such list)."""
        values: list[Item] = self.fields.get(name, [])
        if wrong := fault(values, list[kind], name):  # type: ignore[valid-type]
            raise self.wrong(str(wrong))
        return values


def records(lines: Lines) -> Iterator[Record]:
    """Yield a file's records (UserError: the file is not in its source's format)."""
    for number, fields in _READERS[lines.source.format](lines):
        if lines.label is not None:
            fields[LABEL_FIELD] = lines.label
        yield Record(lines, number, fields)


def _from_csv(lines: Lines) -> Numbered:
    reader = csv.reader(lines.whole(), strict=True)
    try:
        yield from _with_columns(
            lines, lines.source.columns, ((reader.line_num, row) for row in reader)
        )
    except csv.Error as error:
        raise lines.wrong(
            reader.line_num, f"the line is not comma-separated values: {error}"
        ) from error


def _from_tsv(lines: Lines) -> Numbered:
    rows = ((number, line.split("\t")) for number, line in lines.numbered())
    return _with_columns(lines, lines.source.columns, rows)


def _with_columns(
    lines: Lines, columns: list[str], rows: Iterator[tuple[int, list[str]]]
) -> Numbered:
    """Yield the records of rows; without `columns` the first row is the header."""
    if not columns:
        columns = next((row for _, row in rows if any(row)), [])
    named_columns = list(filter(None, columns))
    if len(set(named_columns)) < len(named_columns):
        raise lines.wrong(
            1, f"the columns must have different names, but are {', '.join(named_columns):.80}"
        )
    for number, row in rows:
        if row in ([], [""]):  # an empty line
            if len(columns) == 1:  # an example without text; elsewhere the line is no example
                lines.left_out["the line is empty"] += 1
        elif len(row) == len(columns):
            yield number, dict(zip(columns, row, strict=True))
        elif not lines.skip_ragged:
            raise lines.wrong(
                number, f"the line must have {len(columns)} fields, but has {len(row)}"
            )
        else:
            lines.left_out["another number of fields"] += 1


def _from_jsonl(lines: Lines) -> Numbered:
    for number, line in lines.numbered():
        if not line:
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise lines.wrong(number, f"the line is not JSON: {first_line(error)}") from error
        if not isinstance(record, dict):
            raise lines.wrong(
                number, f"the line must be an object in JSON, but is {type(record).__name__}"
            )
        yield number, record


def _from_objects(parts_of: Callable[[Any], Iterator[Fields]], lines: Lines) -> Numbered:
    for number, record in _from_jsonl(lines):
        try:
            for part in parts_of(record):
                yield number, part
        except MALFORMED as error:
            rule = f"the line must have the fields of the format {lines.source.format.name}"
            raise lines.wrong(number, f"{rule}, but reading it fails: {error!r:.80}") from error


def _multirc(record: Any) -> Iterator[Fields]:
    passage = record["passage"]
    for question in passage["questions"]:
        for answer in question["answers"]:
            text = passage["text"]
            yield {
                **answer,
                "passage": text,
                "question": question["question"],
                "answer": answer["text"],
                # T5 reads the passage like this.
                "paragraph": text.replace("<br>", " ").replace("<b>", "").replace("</b>", ""),
                # The key is an answer's id in submissions.
                "key": f"{record['idx']}/{question['idx']}/{answer['idx']}",
            }


def _record(record: Any) -> Iterator[Fields]:
    """Yield a record per ReCoRD query, whose `@placeholder` an entity replaces."""
    passage = record["passage"]["text"]
    places = sorted((entity["start"], entity["end"]) for entity in record["passage"]["entities"])
    # In the file `end` is the last character.
    entities = list(dict.fromkeys(passage[start : last + 1] for start, last in places))
    for query in record["qas"]:
        answers = [answer["text"] for answer in query.get("answers") or []]
        right = list(dict.fromkeys(map(entities.index, answers)))
        yield {
            "idx": query["idx"],
            "passage": passage.replace("@highlight\n", "- "),
            "article": HIGHLIGHT.sub(lambda end: f"{end[1] or '.'} ", passage),  # as T5 reads it
            "entities": entities,
            "query": query["query"],
            "queries": [query["query"].replace(PLACEHOLDER, entity) for entity in entities],
            **({"right": right} if right else {}),
        }


def _wsc(record: Any) -> Iterator[Fields]:
    text = record["text"]
    target = record["target"]
    start1, end1 = _words_at(text, target["span1_index"], target["span1_text"])
    start2, end2 = _words_at(text, target["span2_index"], target["span2_text"])
    # As T5 reads and writes it: the pronoun between asterisks, and the noun.
    asked = {
        "marked": f"{text[:start2]}*{text[start2:end2]}*{text[end2:]}",
        "noun": text[start1:end1],
    }
    yield {**record, "start1": start1, "end1": end1, "start2": start2, "end2": end2, **asked}


def _words_at(text: str, index: int, words: str) -> tuple[int, int]:
    """Return start and end of `words` in a text, near the word with number `index`."""
    start = [match.start() for match in re.finditer(r"\S+", text)][index]
    if text[start : start + len(words)].lower() == words.lower():
        return start, start + len(words)
    # A few of SuperGLUE's numbers are one off, and their words lack punctuation or case.
    starts = [match.start() for match in re.finditer(re.escape(words), text, re.IGNORECASE)]
    start = min(starts, key=lambda at: abs(at - start), default=start)
    return start, min(start + len(words), len(text))


def _from_squad(lines: Lines) -> Numbered:
    content = "".join(lines.whole())
    try:
        yield from enumerate(_squad(json.loads(content)), 1)
    except MALFORMED as error:
        raise UserError(
            f"`{lines.path}` must be in SQuAD's format, but reading it fails: {error!r:.80}."
        ) from error


def _squad(content: Any) -> Iterator[Fields]:
    """Yield SQuAD's questions about the paragraphs of its articles."""
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                answers = asked.get("answers")
                texts = []
                spans = []
                for answer in answers or ():
                    start = answer["answer_start"]
                    texts.append(answer["text"])
                    spans.append((answer["text"], start, start + len(answer["text"])))
                yield {
                    **asked,
                    "context": paragraph["context"],
                    "answers": answers and texts,  # None in data without labels
                    "spans": spans,
                }


def _mrqa(record: Any) -> Iterator[Fields]:
    if "header" in record:
        return
    for question in record["qas"]:
        spans = []
        for answer in question.get("detected_answers", ()):
            for start, last in answer["char_spans"]:  # the last character, not the end
                spans.append((answer["text"], start, last + 1))
        yield {
            "answers": None,
            **question,
            "context": record["context"],
            "id": question["qid"],
            "spans": spans,
        }


def _from_conll(lines: Lines) -> Numbered:
    """Yield a record for each sentence, numbered by its first line.

    It has a list per column. Fields are separated by tabs, or by spaces in lines without tabs.
    Sentences end at blank lines and at `-DOCSTART-`. A line that begins a sentence with `# ` is a
    comment if it has another number of fields than the words.
    """
    columns = lines.source.columns
    width = 0
    first = 1
    sentence = list[list[str]]()
    for number, line in chain(lines.numbered(), [(0, "")]):
        fields = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
        if not line.strip() or fields[0] == DOCUMENT:
            if sentence:
                column_values = map(list, zip(*sentence, strict=True))
                yield first, dict(zip(columns, column_values, strict=False))
            sentence = []
            continue
        if not sentence:
            if line.startswith(COMMENT) and len(fields) != (width or len(columns)):
                continue
            first = number
        width = width or len(fields)
        if len(fields) != width or width not in (len(columns), len(columns) - 1):
            raise lines.wrong(
                number,
                f"the line must have the fields {', '.join(columns)}, but has {len(fields)} fields",
            )
        sentence.append(fields)


def _from_whole_file(lines: Lines) -> Numbered:
    text = " ".join(line for _, line in lines.numbered() if line)
    if text:
        yield 1, {"text": text}
    else:
        lines.left_out["the file is empty"] += 1


def _from_texts(lines: Lines) -> Numbered:
    return _with_columns(lines, ["text"], ((number, [line]) for number, line in lines.numbered()))


_READERS: Mapping[Format, Callable[[Lines], Numbered]] = {
    Format.tsv: _from_tsv,
    Format.csv: _from_csv,
    Format.jsonl: _from_jsonl,
    Format.multirc: partial(_from_objects, _multirc),
    Format.record: partial(_from_objects, _record),
    Format.wsc: partial(_from_objects, _wsc),
    Format.squad: _from_squad,
    Format.mrqa: partial(_from_objects, _mrqa),
    Format.conll: _from_conll,
    Format.lines_by_label: _from_texts,
    Format.files_by_label: _from_whole_file,
}
