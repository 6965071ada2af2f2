"""What a translator reads and writes: symbols, and the SentencePiece models that cut text into them.

It travels in the file of `mtmoe import-hf` and in checkpoints, as `vocabulary` of the task's state, so that a model
needs no data directory to translate text. fairseq's four special symbols come first and are not listed.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import sentencepiece
import torch
from fairseq.data import Dictionary

from fairseq_mtmoe.data.translation.file_names import SENTENCEPIECE, model_of_sources
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import read_bytes

VOCABULARY = "vocabulary"  # its name in a checkpoint's state of the task
NEW_SYMBOLS = "new_symbols"  # there, too: how many symbols of sources and of targets are a new language's, at the end
ENDS = "vocabulary_ends"  # there, too: where the vocabulary ended when it got another language, for each older one
GENERATION = "generation"  # there, too: what `generate` of `transformers` does by default with an imported model
NUM_SPECIAL = 4  # <s>, <pad>, </s> and <unk>, fairseq's


class End(NamedTuple):
    """How much of a side there was once: all that comes later is behind it."""

    rows: int  # of the matrix of embeddings, with those of fairseq's special symbols
    length: int  # bytes of SentencePiece's model


@dataclass(frozen=True)
class Side:
    """The vocabulary of sources or of targets."""

    symbols: tuple[str, ...]  # those of fairseq's dictionary after its special ones: pieces, language tokens, others
    model: bytes  # of SentencePiece

    @property
    def size(self) -> int:
        """The number of rows of a matrix of embeddings."""
        return NUM_SPECIAL + len(self.symbols)

    def until(self, end: End) -> "Side":
        """Return the side that ended there."""
        return Side(self.symbols[: end.rows - NUM_SPECIAL], self.model[: end.length])

    def dictionary(self) -> Dictionary:
        """Return a new dictionary (UserError: a symbol is there twice)."""
        dictionary = Dictionary()
        for symbol in self.symbols:
            dictionary.add_symbol(symbol)
        if len(dictionary) != len(self.symbols) + NUM_SPECIAL:
            raise UserError("A vocabulary must have each symbol once, but has one twice, or one of fairseq's own.")
        return dictionary

    @functools.cached_property
    def processor(self) -> sentencepiece.SentencePieceProcessor:
        """Return what cuts text into pieces and joins them (UserError: the model is damaged)."""
        try:
            return sentencepiece.SentencePieceProcessor(model_proto=self.model)
        except RuntimeError as error:
            raise UserError("A vocabulary must have a model of SentencePiece, but has one that is damaged.") from error


@dataclass(frozen=True)
class Vocabulary:
    """The vocabularies of a translator: one `Side`, or one for sources and another for targets."""

    source: Side
    target: Side

    @classmethod
    def joined(cls, symbols: Sequence[str], model: bytes) -> Self:
        """Return the vocabulary of both sides."""
        side = Side(tuple(symbols), model)
        return cls(side, side)

    @classmethod
    def of_data(cls, folder: str | Path, source: Sequence[str], target: Sequence[str]) -> Self | None:
        """Return that of a data directory, whose dictionaries have these symbols; None without a model."""
        path = Path(folder) / SENTENCEPIECE
        if not path.is_file():
            return None
        first = Side(tuple(source[NUM_SPECIAL:]), read_bytes(model_of_sources(folder)))
        second = Side(tuple(target[NUM_SPECIAL:]), read_bytes(path))
        return cls(first, first if first == second else second)

    @classmethod
    def of_state(cls, state: Mapping[str, Any] | None) -> Self | None:
        """Return what a checkpoint's `task_state` holds; None where it holds none."""
        saved = (state or {}).get(VOCABULARY)
        if saved is None:
            return None
        sides = [Side(tuple(side["symbols"]), side["model"].numpy().tobytes()) for side in saved]
        return cls(sides[0], sides[-1])

    @property
    def ends(self) -> tuple[tuple[int, int], ...]:
        """Where sources' and targets' end, as `ENDS` has it."""
        return tuple((side.size, len(side.model)) for side in (self.source, self.target))

    def to_state(self) -> list[dict[str, Any]]:
        """Return what a checkpoint's `task_state` is to hold under `VOCABULARY`: a dictionary for each other side."""
        sides = (
            [self.source] if self.source is self.target or self.source == self.target else [self.source, self.target]
        )
        return [
            {
                "symbols": list(side.symbols),
                "model": torch.from_numpy(np.frombuffer(side.model, dtype=np.uint8).copy()),
            }
            for side in sides
        ]


def ends_of(state: Mapping[str, Any] | None, lang: str | None) -> tuple[End | None, End | None]:
    """Return where the vocabularies of sources and targets end for a language, by a `task_state`; None: nowhere.

    A language that was there before `mtmoe extend` is read and written as it was then.
    """
    found = (state or {}).get(ENDS, {}).get(lang)
    return (None, None) if found is None else (End(*found[0]), End(*found[1]))
