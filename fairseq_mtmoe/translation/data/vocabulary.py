"""A translator's vocabulary: symbols, and SentencePiece models.

It is stored in files of `mtmoe import-hf` and in checkpoints, as `vocabulary` in the task's state,
so that a model needs no data directory to translate text. fairseq's four special symbols come first
and are not listed.
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

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import read_bytes
from fairseq_mtmoe.core.normalisation import normalise
from fairseq_mtmoe.core.sentencepieces import load_sentencepiece, parse_model
from fairseq_mtmoe.translation.data.file_names import SENTENCEPIECE, model_of_sources

# Keys in a checkpoint's `task_state`
VOCABULARY = "vocabulary"
# Numbers of a new language's symbols at the end of sources and of targets
NEW_SYMBOLS = "new_symbols"
# For each older language, the end of the vocabulary before another was added
ENDS = "vocabulary_ends"
# Default settings of `generate` in `transformers` for an imported model
GENERATION = "generation"
KEPT = (NEW_SYMBOLS, ENDS, GENERATION)  # what a run keeps of the model that it begins with
NUM_SPECIAL = 4  # fairseq's <s>, <pad>, </s> and <unk>


class End(NamedTuple):
    """The size of a side before a language was added, whose symbols were appended."""

    rows: int  # of the embedding matrix, fairseq's special symbols included
    length: int  # bytes of the SentencePiece model


@dataclass(frozen=True)
class Side:
    """The vocabulary of sources or of targets."""

    # fairseq's dictionary without its special symbols: pieces, language tokens, others
    symbols: tuple[str, ...]
    model: bytes  # serialized SentencePiece model

    @property
    def size(self) -> int:
        """Return the number of rows of the embedding matrix."""
        return NUM_SPECIAL + len(self.symbols)

    def until(self, end: End) -> "Side":
        """Return the side as it was at an earlier size."""
        return Side(self.symbols[: end.rows - NUM_SPECIAL], self.model[: end.length])

    def dictionary(self) -> Dictionary:
        """Return a new dictionary (UserError: a symbol occurs twice)."""
        dictionary = Dictionary()
        for symbol in self.symbols:
            dictionary.add_symbol(symbol)
        if len(dictionary) != len(self.symbols) + NUM_SPECIAL:
            raise UserError(
                "A vocabulary must have each symbol once, but repeats one of its own or of "
                "fairseq's."
            )
        return dictionary

    @functools.cached_property
    def processor(self) -> sentencepiece.SentencePieceProcessor:
        """Return the SentencePiece processor (UserError: the model is damaged)."""
        try:
            return load_sentencepiece(self.model)
        except RuntimeError as error:
            raise UserError(
                "A vocabulary must have a SentencePiece model, but its model is damaged."
            ) from error

    @functools.cached_property
    def normalises(self) -> bool:
        """Return whether the model has a table of characters to normalise text with.

        Imported models mostly have one.
        """
        return bool(parse_model(self.model).normalizer_spec.precompiled_charsmap)

    def encode(self, lines: Sequence[str], out_type: type = int) -> list[list[Any]]:
        """Return each line's pieces, as ids or names.

        Without a table, lines are normalised as by `mtmoe prepare`.
        """
        texts = list(lines)
        if not self.normalises:
            texts = list(map(normalise, lines))
        pieces: list[list[Any]] = self.processor.encode(texts, out_type=out_type)
        return pieces


@dataclass(frozen=True)
class Vocabulary:
    """The vocabularies of sources and of targets, which may be the same `Side`."""

    source: Side
    target: Side

    @classmethod
    def joined(cls, symbols: Sequence[str], model: bytes) -> Self:
        """Return a vocabulary with one side for sources and targets."""
        side = Side(tuple(symbols), model)
        return cls(side, side)

    @classmethod
    def of_data(
        cls, folder: str | Path, source: Sequence[str], target: Sequence[str]
    ) -> Self | None:
        """Return a data directory's vocabulary, for dictionaries with these symbols.

        It is None without a model.
        """
        path = Path(folder) / SENTENCEPIECE
        if not path.is_file():
            return None
        first = Side(tuple(source[NUM_SPECIAL:]), read_bytes(model_of_sources(folder)))
        second = Side(tuple(target[NUM_SPECIAL:]), read_bytes(path))
        return cls(first, second)

    @classmethod
    def of_state(cls, state: Mapping[str, Any] | None) -> Self | None:
        """Return the vocabulary in a checkpoint's `task_state`; None without."""
        saved = (state or {}).get(VOCABULARY)
        if saved is None:
            return None
        sides = [Side(tuple(side["symbols"]), side["model"].numpy().tobytes()) for side in saved]
        return cls(sides[0], sides[-1])

    @property
    def ends(self) -> tuple[tuple[int, int], ...]:
        """Return the ends of sources and targets, as stored under `ENDS`."""
        return tuple((side.size, len(side.model)) for side in (self.source, self.target))

    def to_state(self) -> list[dict[str, Any]]:
        """Return the value for `VOCABULARY` in a checkpoint's `task_state`.

        It has a dictionary per distinct side.
        """
        sides = []
        for side in dict.fromkeys((self.source, self.target)):
            model = np.frombuffer(side.model, dtype=np.uint8).copy()
            sides.append({"symbols": list(side.symbols), "model": torch.from_numpy(model)})
        return sides


def check_symbols(
    state: Mapping[str, Any] | None,
    dictionaries: Sequence[Dictionary],
    sizes: Mapping[int, int],
    path: str,
) -> None:
    """Check that both sides have the symbols of a checkpoint, if any (UserError).

    sizes: number of symbols before language tokens, by the dictionary's `id`. Either may be longer,
    as after `extend`.
    path: of the checkpoint, for the error.
    """
    saved = (state or {}).get(VOCABULARY)
    if not saved:
        return
    for dictionary, side in zip(dictionaries, (saved[0], saved[-1]), strict=False):
        symbols = dictionary.symbols[NUM_SPECIAL : sizes[id(dictionary)]]
        count = min(len(symbols), len(side["symbols"]))
        if symbols[:count] != list(side["symbols"][:count]):
            raise UserError(
                f"`{path}` must have the vocabulary of the data, and of all models of an "
                f"ensemble, but has another; `mtmoe prepare … --vocabulary-of {path}` makes data "
                "with its own."
            )


def ends_of(state: Mapping[str, Any] | None, lang: str | None) -> tuple[End | None, End | None]:
    """Return the ends of a language's source and target vocabularies.

    state: a checkpoint's `task_state`. None stands for no limit.

    After `mtmoe extend`, older languages use the vocabulary from before.
    """
    ends = (state or {}).get(ENDS, {}).get(lang)
    return (None, None) if ends is None else (End(*ends[0]), End(*ends[1]))
