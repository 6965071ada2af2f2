"""Files of tasks in the forms in which their authors distribute them: each line becomes a record of named fields.

Lines end at line feeds alone: texts hold other characters that Python takes for ends of lines.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

from fairseq_mtmoe.data.nlu.table import Format, Source
from fairseq_mtmoe.errors import UserError, first_line
from fairseq_mtmoe.io.files import regular_file

DOCUMENT = "-DOCSTART-"
PLACEHOLDER = "@placeholder"  # of an entity, in ReCoRD's queries
HIGHLIGHT = re.compile(r"([.?!\"'])?\n@highlight\n")  # in ReCoRD's passages, after the end of a sentence or not
WORD_LABEL = re.compile(r"O|[BI]-\S+")

MAX_LINE = 65_536  # characters of a line of text, as in corpora
MAX_OBJECT = 16_000_000  # of an object in JSON, such as a passage with its questions
MAX_FILE = 2**28  # of a file that is one object

Record = dict[str, Any]
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # an escape of half a character


@dataclass
class Lines:
    """A file that is read.

    Attributes:
        path: of the file.
        source: what the table says of it.
        skip_ragged: leave lines out that have another number of fields.
        skip_unplaced: leave questions out none of whose answers is where it is said to be.
        left_out: how many were, for what reason.
    """

    path: Path
    source: Source
    skip_ragged: bool = False
    skip_unplaced: bool = False
    left_out: dict[str, int] = field(default_factory=dict)

    def wrong(self, number: int, why: str) -> UserError:
        """The error that something is wrong in a line, or in a question of SQuAD's, counted from 1."""
        unit = "question" if self.source.format is Format.squad else "line"
        return UserError(f"`{self.path}`, {unit} {number}: {why}.")

    def leave_out(self, why: str) -> None:
        """Count an example that is left out."""
        self.left_out[why] = self.left_out.get(why, 0) + 1

    def numbered(self) -> Iterator[tuple[int, str]]:
        """The lines with their numbers, without their ends; empty ones are none."""
        for number, line in enumerate(self.whole(), 1):
            line = line.rstrip("\r\n")
            if line:
                yield number, line

    def whole(self) -> Iterator[str]:
        """All lines with their ends."""
        most = _MOST.get(self.source.format, MAX_LINE)
        for number, raw in enumerate(self._raw(most), 1):
            try:
                line = raw.decode(self.source.encoding if number == 1 else _without_mark(self.source.encoding))
            except UnicodeDecodeError as error:
                encoding = _without_mark(self.source.encoding)
                raise self.wrong(
                    number, f"must be text in {encoding}, but has the byte {raw[error.start]:#x}"
                ) from error
            if len(line.rstrip("\r\n")) > most:
                raise self._too_long(number, most)
            yield line

    def _too_long(self, number: int, most: int) -> UserError:
        return UserError(f"`{self.path}`, line {number}: must have at most {most:,} characters, but has more.")

    def _raw(self, most: int) -> Iterator[bytes]:
        """All lines, of which none may have more bytes than `most` characters and an end."""
        bytes_of_line = 4 * most + 2
        path = regular_file(self.path)
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            try:
                for number in count(1):
                    line = file.readline(bytes_of_line + 1)
                    if len(line) > bytes_of_line:
                        raise self._too_long(number, most)
                    if not line:
                        break
                    yield line
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise UserError(f"`{path}` must be a whole file of gzip, but {first_line(error)}.") from error


def records(lines: Lines) -> Iterator[tuple[int, Record]]:
    """The records of a file in the form that its source says, each with the number of its line.

    Raises:
        UserError: the file, or a line of it, has another form; the sentence names both.
    """
    return _READERS[lines.source.format](lines)


def _without_mark(encoding: str) -> str:
    return encoding.removesuffix("-sig")


def _from_tsv(lines: Lines) -> Iterator[tuple[int, Record]]:
    return _with_columns(lines, ((number, line.split("\t")) for number, line in lines.numbered()))


def _from_csv(lines: Lines) -> Iterator[tuple[int, Record]]:
    def rows() -> Iterator[tuple[int, list[str]]]:
        reader = csv.reader(lines.whole(), strict=True)
        try:
            yield from ((reader.line_num, row) for row in reader if row)
        except csv.Error as error:
            raise lines.wrong(reader.line_num + 1, f"must be comma-separated values, but {error}") from error

    return _with_columns(lines, rows())


def _with_columns(lines: Lines, rows: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, Record]]:
    columns = lines.source.columns
    if not columns:
        _, columns = next(rows, (0, []))
    for number, row in rows:
        if len(row) == len(columns):
            yield number, dict(zip(columns, row, strict=True))
        elif lines.skip_ragged:
            lines.leave_out("another number of fields")
        else:
            raise lines.wrong(number, f"must have {len(columns)} fields, but has {len(row)}")


def _from_jsonl(lines: Lines) -> Iterator[tuple[int, Record]]:
    for number, line in lines.numbered():
        try:
            record = _parsed(line)
        except (ValueError, RecursionError) as error:  # a number of thousands of digits is no JSONDecodeError
            raise lines.wrong(
                number, f"must be an object in JSON, but {str(error) or 'is nested too deeply'}"
            ) from error
        if not isinstance(record, dict):
            raise lines.wrong(number, f"must be an object in JSON, but is {type(record).__name__}")
        yield number, record


def _parsed(text: str) -> Any:
    """The value of a text in JSON.

    Raises:
        ValueError: it is none, or has half a character in it.
        RecursionError: it is nested too deeply.
    """
    value = json.loads(text)
    if SURROGATE.search(text):  # two of them may be the halves of one character
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError("has half a character in it, one of two that JSON writes some as") from error
    return value


def _amiss(error: Exception) -> str:
    """What a record is that led to an error: it misses a field, or something else stands where one should."""
    return f"lacks {error}" if isinstance(error, KeyError) else "has a value of another kind among its fields"


def _from_multirc(lines: Lines) -> Iterator[tuple[int, Record]]:
    for number, record in _from_jsonl(lines):
        try:
            passage = record["passage"]
            for question in passage["questions"]:
                for answer in question["answers"]:
                    # Key: the three numbers by which a submission names an answer.
                    key = f"{record['idx']}/{question['idx']}/{answer['idx']}"
                    fields = {"passage": passage["text"], "question": question["question"], "answer": answer["text"]}
                    fields["paragraph"] = _without_markup(passage["text"])
                    yield number, {**answer, **fields, "key": key}
        except (KeyError, TypeError, AttributeError) as error:
            raise lines.wrong(number, f"must be a passage with questions and answers, but {_amiss(error)}") from error


def _without_markup(text: str) -> str:
    """A passage of MultiRC's as T5 reads it."""
    return text.replace("<br>", " ").replace("<b>", "").replace("</b>", "")


def _without_marks(text: str) -> str:
    """A passage of ReCoRD's as T5 reads it: its highlights are sentences."""
    return HIGHLIGHT.sub(lambda found: f"{found[1] or '.'} ", text)


def _from_record(lines: Lines) -> Iterator[tuple[int, Record]]:
    """A record for each query, in which a candidate, an entity of the passage, takes the place of `@placeholder`."""
    for number, record in _from_jsonl(lines):
        try:
            entities = _entities(lines, number, record["passage"])
            for query in record["qas"]:
                yield (
                    number,
                    {
                        "idx": query["idx"],
                        "passage": record["passage"]["text"].replace("@highlight\n", "- "),
                        "article": _without_marks(record["passage"]["text"]),
                        "entities": entities,
                        "query": query["query"],
                        "queries": _queries(lines, number, query["query"], entities),
                        **_right_entities(lines, number, query, entities),
                    },
                )
        except (KeyError, TypeError, AttributeError) as error:
            raise lines.wrong(number, f"must be a passage with entities and queries, but {_amiss(error)}") from error


def _entities(lines: Lines, number: int, passage: Record) -> list[str]:
    """A passage's entities, each text once, where it first stands; the file names their last characters."""
    text = passage["text"]
    if not isinstance(text, str):
        raise lines.wrong(number, f"the passage must be a text, but is {text!r:.80} instead")
    places = [(entity["start"], entity["end"]) for entity in passage["entities"]]
    for start, last in places:
        if not (type(start) is int and type(last) is int and 0 <= start <= last < len(text)):
            rule = f"must stand in the passage of {len(text)} characters"
            raise lines.wrong(number, f"an entity {rule}, but is said to stand from {start!r:.40} to {last!r:.40}")
    return list(dict.fromkeys(text[start : last + 1] for start, last in sorted(places)))


def _queries(lines: Lines, number: int, query: object, entities: list[str]) -> list[str]:
    """What a query says with each of the entities in it."""
    if not isinstance(query, str) or PLACEHOLDER not in query:
        raise lines.wrong(number, f"a query must be a text with {PLACEHOLDER} in it, but is {query!r:.80} instead")
    return [query.replace(PLACEHOLDER, entity) for entity in entities]


def _right_entities(lines: Lines, number: int, query: Record, entities: list[str]) -> Record:
    """The numbers of a query's answers among the entities, if it has answers."""
    answers = [answer["text"] for answer in query.get("answers") or []]
    if unknown := [answer for answer in answers if answer not in entities]:
        raise lines.wrong(number, f"must have answers among the passage's entities, but has {unknown[0]!r:.80}")
    return {"right": list(dict.fromkeys(map(entities.index, answers)))} if answers else {}


def _from_wsc(lines: Lines) -> Iterator[tuple[int, Record]]:
    for number, record in _from_jsonl(lines):
        try:
            text, target = record["text"], record["target"]
            places = [_words_at(text, target[f"span{n}_index"], target[f"span{n}_text"]) for n in (1, 2)]
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise lines.wrong(number, f"must be a text with two spans in it, but {_amiss(error)}") from error
        (start1, end1), (start2, end2) = places
        found = {"start1": start1, "end1": end1, "start2": start2, "end2": end2}
        # As T5 reads and writes it: the pronoun between asterisks, and the noun.
        asked = {"marked": f"{text[:start2]}*{text[start2:end2]}*{text[end2:]}", "noun": text[start1:end1]}
        yield number, {**record, **found, **asked}


def _words_at(text: str, index: int, words: str) -> tuple[int, int]:
    """The characters of some words, the first of which is the word of this number."""
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    start, end = starts[index], starts[index] + len(words)
    # A few of SuperGLUE's numbers are one off, and what they name has lost its punctuation or case.
    if text[start:end].lower() != words.lower():
        nearest = min(_occurrences(text, words), key=lambda place: abs(place - start), default=start)
        start, end = nearest, min(nearest + len(words), len(text))
    return start, end


def _occurrences(text: str, words: str) -> list[int]:
    return [match.start() for match in re.finditer(re.escape(words), text, re.IGNORECASE)]


def _from_squad(lines: Lines) -> Iterator[tuple[int, Record]]:
    content = "".join(lines.whole())
    try:
        paragraphs = [one for article in _parsed(content)["data"] for one in article["paragraphs"]]
        questions = [(paragraph["context"], question) for paragraph in paragraphs for question in paragraph["qas"]]
    except (KeyError, TypeError) as error:
        raise UserError(
            f"`{lines.path}` must be one of SQuAD's, articles of paragraphs, but {_amiss(error)}."
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"`{lines.path}` must be an object in JSON, but {first_line(error)}.") from error
    for number, (context, question) in enumerate(questions, 1):
        try:
            found = {"context": context, "question": question["question"], "id": question["id"]}
            answers = question.get("answers")
            starts = [(answer["text"], answer["answer_start"]) for answer in answers or ()]
            places = [(text, start, start + len(text)) for text, start in starts]
        except (KeyError, TypeError, AttributeError) as error:
            raise lines.wrong(number, f"must be a question with its answers, but {_amiss(error)}") from error
        yield number, {**found, "answers": answers and [text for text, _ in starts], "places": places}


def _from_mrqa(lines: Lines) -> Iterator[tuple[int, Record]]:
    for number, record in _from_jsonl(lines):
        if number == 1 and "header" in record:
            continue
        try:
            for question in record["qas"]:
                found = {"context": record["context"], "question": question["question"], "id": question["qid"]}
                answers = question.get("answers")
                places = [
                    (answer["text"], start, last + 1)  # the file names the last character
                    for answer in (() if answers is None else question["detected_answers"])
                    for start, last in answer["char_spans"]
                ]
                yield number, {**found, "answers": answers, "places": places}
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise lines.wrong(number, f"must be a passage with questions and answers, but {_amiss(error)}") from error


def _from_conll(lines: Lines) -> Iterator[tuple[int, Record]]:
    """A record for each sentence, with a list for each column; its number is that of its first line.

    Fields are between tabs, or, in a line without one, between spaces. Sentences end at lines of nothing but white
    space and at `-DOCSTART-`. A line that begins a sentence with `# ` and does not end with a label is a comment.
    """
    columns, width = lines.source.columns, 0
    first, sentence = 1, list[list[str]]()
    for number, line in enumerate(chain(lines.whole(), [""]), 1):
        fields = _fields(line.rstrip("\r\n"))
        if not line.strip() or fields[0] == DOCUMENT:
            if sentence:
                yield first, dict(zip(columns, map(list, zip(*sentence, strict=True)), strict=False))
            sentence = []
            continue
        if not sentence:
            if line.startswith("# ") and not WORD_LABEL.fullmatch(fields[-1]):
                continue
            first = number
        width = width or len(fields)
        if len(fields) != width or width not in (len(columns), len(columns) - 1):
            expected = width if width in (len(columns), len(columns) - 1) else len(columns)
            raise lines.wrong(number, f"must have {expected} fields, but has {len(fields)}")
        sentence.append(fields)


def _fields(line: str) -> list[str]:
    return line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))


def _from_lines(lines: Lines) -> Iterator[tuple[int, Record]]:
    return ((number, {"text": line}) for number, line in lines.numbered())


def _from_whole_file(lines: Lines) -> Iterator[tuple[int, Record]]:
    text = " ".join(line for _, line in lines.numbered())
    if text:
        yield 1, {"text": text}


_MOST = {
    **dict.fromkeys((Format.jsonl, Format.multirc, Format.record, Format.wsc, Format.mrqa), MAX_OBJECT),
    Format.squad: MAX_FILE,
}
_READERS: Mapping[Format, Callable[[Lines], Iterator[tuple[int, Record]]]] = {
    Format.tsv: _from_tsv,
    Format.csv: _from_csv,
    Format.jsonl: _from_jsonl,
    Format.multirc: _from_multirc,
    Format.record: _from_record,
    Format.wsc: _from_wsc,
    Format.squad: _from_squad,
    Format.mrqa: _from_mrqa,
    Format.conll: _from_conll,
    Format.lines_by_label: _from_lines,
    Format.files_by_label: _from_whole_file,
}
