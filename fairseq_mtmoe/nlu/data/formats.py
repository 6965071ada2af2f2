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
from fairseq_mtmoe.nlu.data.table import Format, Source

DOCUMENT = "-DOCSTART-"
COMMENT = "# "  # begins a comment, or a word
PLACEHOLDER = "@placeholder"  # for an entity in ReCoRD's queries
# ReCoRD's passages have it with or without the end of a sentence.
HIGHLIGHT = re.compile(r"([.?!\"'])?\n@highlight\n")
WORD_LABEL = re.compile(r"O|[BI]-\S+")
LABEL_FIELD = "label"

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
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UserError(
                f"`{path}` must be a whole gzip file, but {first_line(error)}."
            ) from error
        except LookupError as error:
            raise UserError(
                f"The encoding of `{path}` must be one of texts that Python knows, but is not."
            ) from error
        except UnicodeDecodeError as error:
            wrong_byte = error.object[error.start]
            raise UserError(
                f"`{path}` must be text in {encoding.removesuffix('-sig')}, but has the byte "
                f"{wrong_byte:#x}."
            ) from error


@dataclass(slots=True)
class Record:
    """The fields of a line, or of a part of it, with the line's number."""

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
            raise self.wrong(f"must have the field {name}, but has {self.names}")
        if isinstance(value, (list, dict)):
            raise self.wrong(f"must have a text in the field {name}, but has {value!r:.80}")
        return str(value).lower() if isinstance(value, bool) else str(value)

    def items(self, name: str, kind: type[Item]) -> list[Item]:
        """Return a field's list of values of one type (UserError: it has none)."""
        values = self.fields.get(name)
        if not isinstance(values, list) or not all(type(item) is kind for item in values):
            says = f"{values!r:.80}" if name in self.fields else self.names
            raise self.wrong(
                f"must have a list of {kind.__name__} in the field {name}, but has {says}"
            )
        return values


def records(lines: Lines) -> Iterator[Record]:
    """Yield a file's records in its source's format (UserError: it has another)."""
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
            reader.line_num, f"must be comma-separated values, but {error}"
        ) from error


def _from_tsv(lines: Lines) -> Numbered:
    def rows() -> Iterator[tuple[int, list[str]]]:
        for number, line in lines.numbered():
            yield number, line.split("\t") if line else []

    return _with_columns(lines, lines.source.columns, rows())


def _with_columns(
    lines: Lines, columns: list[str], rows: Iterator[tuple[int, list[str]]]
) -> Numbered:
    """Yield the records of rows; the row of an empty line is empty.

    Without `columns` the first row is the header.
    """
    if not columns:
        columns = next((row for _, row in rows if row), [])
    named_columns = list(filter(None, columns))
    if len(set(named_columns)) < len(named_columns):
        raise lines.wrong(
            1, f"must have different names of columns, but has {', '.join(named_columns):.80}"
        )
    for number, row in rows:
        if not row:
            if len(columns) == 1:  # an example without text; elsewhere the line is no example
                lines.left_out["the line is empty"] += 1
        elif len(row) == len(columns):
            yield number, dict(zip(columns, row, strict=True))
        elif not lines.skip_ragged:
            raise lines.wrong(number, f"must have {len(columns)} fields, but has {len(row)}")
        else:
            lines.left_out["another number of fields"] += 1


def _from_jsonl(lines: Lines) -> Numbered:
    for number, line in lines.numbered():
        if not line:
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise lines.wrong(
                number, f"must be an object in JSON, but {first_line(error)}"
            ) from error
        if not isinstance(record, dict):
            raise lines.wrong(number, f"must be an object in JSON, but is {type(record).__name__}")
        yield number, record


def _from_objects(what: str, parts_of: Callable[[Any], Iterator[Fields]], lines: Lines) -> Numbered:
    for number, record in _from_jsonl(lines):
        yield from _parts(lines, number, record, what, parts_of)


def _parts(
    lines: Lines, number: int, record: Any, what: str, parts_of: Callable[[Any], Iterator[Fields]]
) -> Numbered:
    try:
        for part in parts_of(record):
            yield number, part
    except KeyError as error:
        raise lines.wrong(number, f"must be {what}, but lacks {error}") from error
    except (IndexError, TypeError, AttributeError, ValueError) as error:
        raise lines.wrong(number, f"must be {what}, but has a field with another value") from error


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
    spans = [_words_at(text, target[f"span{n}_index"], target[f"span{n}_text"]) for n in (1, 2)]
    (start1, end1), (start2, end2) = spans
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
        questions = list(_questions(json.loads(content)["data"]))
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise UserError(
            f"`{lines.path}` must be in SQuAD's format, articles of paragraphs, but is not."
        ) from error
    for number, question in enumerate(questions, 1):
        yield from _parts(lines, number, question, "a question with its answers", _squad)


def _questions(articles: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each question of SQuAD's articles with its passage."""
    for article in articles:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                yield paragraph["context"], question


def _squad(question: Any) -> Iterator[Fields]:
    context, asked = question
    answers = asked.get("answers")
    starts = [(answer["text"], answer["answer_start"]) for answer in answers or ()]
    spans = [(text, start, start + len(text)) for text, start in starts]
    fields = {"context": context, "question": asked["question"], "id": asked["id"], "spans": spans}
    yield {**fields, "answers": answers and [text for text, _ in starts]}


def _mrqa(record: Any) -> Iterator[Fields]:
    if "header" in record and "qas" not in record:
        return
    for question in record["qas"]:
        fields = {
            "context": record["context"],
            "question": question["question"],
            "id": question["qid"],
        }
        answers = question.get("answers")
        detected = () if answers is None else question["detected_answers"]
        spans = [
            (answer["text"], start, last + 1)  # the file has the last character, not the end
            for answer in detected
            for start, last in answer["char_spans"]
        ]
        yield {**fields, "answers": answers, "spans": spans}


def _from_conll(lines: Lines) -> Numbered:
    """Yield a record for each sentence, numbered by its first line.

    It has a list per column. Fields are separated by tabs, or by spaces in lines without tabs.
    Sentences end at blank lines and at `-DOCSTART-`. A line that begins a sentence with `# ` is a
    comment, unless it ends with a label. In data without labels it is no comment either if it has
    as many fields as the words above.
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
            is_word = WORD_LABEL.fullmatch(fields[-1]) or len(fields) == width < len(columns)
            if line.startswith(COMMENT) and not is_word:
                continue
            first = number
        width = width or len(fields)
        if len(fields) != width or width not in (len(columns), len(columns) - 1):
            raise lines.wrong(
                number, f"must have the fields {', '.join(columns)}, but has {len(fields)} fields"
            )
        sentence.append(fields)


def _from_whole_file(lines: Lines) -> Numbered:
    text = " ".join(line for _, line in lines.numbered() if line)
    if text:
        yield 1, {"text": text}
    else:
        lines.left_out["the file is empty"] += 1


def _from_texts(lines: Lines) -> Numbered:
    def rows() -> Iterator[tuple[int, list[str]]]:
        for number, line in lines.numbered():
            yield number, [line] if line else []

    return _with_columns(lines, ["text"], rows())


_READERS: Mapping[Format, Callable[[Lines], Numbered]] = {
    Format.tsv: _from_tsv,
    Format.csv: _from_csv,
    Format.jsonl: _from_jsonl,
    Format.multirc: partial(_from_objects, "a passage with questions and answers", _multirc),
    Format.record: partial(_from_objects, "a passage with entities and queries", _record),
    Format.wsc: partial(_from_objects, "a text with two spans in it", _wsc),
    Format.squad: _from_squad,
    Format.mrqa: partial(_from_objects, "a passage with questions and answers", _mrqa),
    Format.conll: _from_conll,
    Format.lines_by_label: _from_texts,
    Format.files_by_label: _from_whole_file,
}
