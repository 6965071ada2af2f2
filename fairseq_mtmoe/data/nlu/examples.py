"""What every reader returns: an example of a task, before it is tokenized."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """Characters `start` to `end` (excluded) of one of an example's texts, which is counted from 0."""

    text: int
    start: int
    end: int


@dataclass(frozen=True)
class Example:
    """An example.

    Attributes:
        candidates: the texts that the encoder reads, one or two; of a ranking as many times as there are choices.
        label: the class, counted from 0, or the first choice that is right; the value of a regression; whether a word
            has a label; None in test data.
        key: by which a benchmark's submission names it.
        spans: the words that a question is about, in `candidates[0]`; or where its answer stands there.
        right: of a ranking, all choices that are right; of test data none.
        names: of a ranking of any number of candidates, what a submission calls each of them.
        answers: the texts that are right, of a question about a passage; of test data none.
        words: where words have labels, those of the one text, in which a space is between them.
        tags: their labels; of test data none.
        reads: what a model of texts reads, where it is asked for; see `TextForm`.
        referent: what its answer is compared with, where the form names one.
    """

    candidates: tuple[tuple[str, ...], ...]
    label: int | float | None
    key: str
    spans: tuple[Span, ...] = ()
    right: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    tags: tuple[int, ...] = ()
    reads: str = ""
    referent: str = ""
