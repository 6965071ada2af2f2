"""Tokens of many texts in arrays, as fast as they can be had: texts of words that were seen before cost no tokenizing.

BERT's tokenizer never looks across a space. So a text's tokens are those of its words, and most words of a benchmark's
texts are the same few: each is tokenized once, which takes a tenth of the time. Whether a tokenizer is of this kind is
read from its own description; others, such as RoBERTa's, are given whole texts. Tests compare the two.
`Strings` keeps many texts in the same form.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.nlu.tokenizer_files import guarded

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST_WORDS = 1_000_000  # that are remembered, about 200 MB


@dataclass(frozen=True)
class TokenRuns:
    """N runs of tokens, one after the other.

    Attributes:
        tokens_T: of all runs.
        starts_N: where each run begins in them, and the last one ends, (N+1,).
    """

    tokens_T: NDArray[np.int32]
    starts_N: NDArray[np.int64]

    @classmethod
    def of(cls, runs: Sequence[Sequence[int]]) -> TokenRuns:
        """From lists."""
        starts_N = ends(np.fromiter(map(len, runs), dtype=np.int64, count=len(runs)))
        return cls(np.fromiter(chain.from_iterable(runs), dtype=np.int32, count=starts_N[-1]), starts_N)

    @property
    def lengths_N(self) -> NDArray[np.int64]:
        """How many tokens each run has."""
        return np.diff(self.starts_N)

    def __len__(self) -> int:
        return len(self.starts_N) - 1

    def joined(self, more: TokenRuns) -> TokenRuns:
        """These runs, and more after them."""
        starts_N = np.concatenate([self.starts_N, more.starts_N[1:] + self.starts_N[-1]])
        return TokenRuns(np.concatenate([self.tokens_T, more.tokens_T]), starts_N)

    def chosen(self, runs_P: NDArray[np.int64], lengths_P: NDArray[np.int64] | None = None) -> NDArray[np.int32]:
        """The tokens of the runs of these numbers one after the other, of each the first `lengths_P` or all."""
        lengths = self.lengths_N[runs_P] if lengths_P is None else lengths_P
        chosen_T: NDArray[np.int32] = self.tokens_T[places_of(self.starts_N[runs_P], lengths)]
        return chosen_T


def ends(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of the runs of these lengths begins, one after the other, and the last one ends, (N+1,)."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def places_of(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The places of what runs of these lengths hold that begin at these places, one run after the other."""
    places = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    places += np.arange(len(places))
    return places


class Encode(Protocol):
    """From texts to their tokens, without marks around them."""

    def __call__(self, texts: Sequence[str]) -> TokenRuns:
        """A run for each text."""


class WholeTexts:
    """Each text by the `tokenizers` library."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __call__(self, texts: Sequence[str]) -> TokenRuns:
        """See `Encode`."""
        with guarded("`tokenizer.json` must make tokens of any text"):
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return TokenRuns.of([encoding.ids for encoding in encodings])


class WordByWord:
    """Each word by the library, once; for tokenizers that `splits_at_spaces`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encode = WholeTexts(tokenizer)
        self._forget()

    def _forget(self) -> None:
        self._number: dict[str, int] = {}
        self._runs = TokenRuns.of([])

    def __call__(self, texts: Sequence[str]) -> TokenRuns:
        """See `Encode`."""
        if len(self._number) > MOST_WORDS:
            self._forget()
        words = [text.split(" ") for text in texts]
        every_word = list(chain.from_iterable(words))
        self._learn(every_word)
        numbers = np.fromiter(map(self._number.__getitem__, every_word), dtype=np.int64, count=len(every_word))
        words_N = np.fromiter(map(len, words), dtype=np.int64, count=len(words))
        starts_N = ends(self._runs.lengths_N[numbers])[ends(words_N)]
        return TokenRuns(self._runs.chosen(numbers), starts_N)

    def _learn(self, words: Sequence[str]) -> None:
        new = [word for word in dict.fromkeys(words) if word not in self._number]
        self._runs = self._runs.joined(self._encode(new))
        self._number.update(zip(new, range(len(self._number), len(self._number) + len(new)), strict=True))


def encoder_for(tokenizer: Tokenizer) -> Encode:
    """The faster one of those that are right."""
    return (WordByWord if splits_at_spaces(tokenizer) else WholeTexts)(tokenizer)


def splits_at_spaces(tokenizer: Tokenizer) -> bool:
    """Whether a text's tokens are those of the parts between its spaces.

    BERT's normalizer and pre-tokenizer look at single characters, WordPiece at what is between spaces and punctuation;
    tokens that were added are looked for before, and could have a space in them.
    """
    described = json.loads(tokenizer.to_str())
    kinds = [(described[part] or {}).get("type") for part in ("normalizer", "pre_tokenizer", "model")]
    added = described["added_tokens"]
    return kinds == ["BertNormalizer", "BertPreTokenizer", "WordPiece"] and not any(
        token["normalized"] or " " in token["content"] for token in added
    )


@dataclass(frozen=True)
class Strings:
    """N texts.

    Attributes:
        bytes_B: of all, in UTF-8, one after the other.
        starts_N: where each begins in them, and the last one ends, (N+1,).
    """

    bytes_B: NDArray[np.uint8]
    starts_N: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Sequence[str]) -> Self:
        """From a list."""
        # A file of JSON can name half of a character; whatever is written has a question mark there.
        encoded = [text.encode("utf-8", errors="replace") for text in texts]
        lengths_N = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        return cls(np.frombuffer(b"".join(encoded), dtype=np.uint8), ends(lengths_N))

    def __len__(self) -> int:
        return len(self.starts_N) - 1

    def __getitem__(self, number: int) -> str:
        return self.bytes_B[self.starts_N[number] : self.starts_N[number + 1]].tobytes().decode("utf-8")

    def chosen(self, numbers_P: NDArray[np.int64]) -> Self:
        """Those of these numbers, in their order."""
        lengths_P = np.diff(self.starts_N)[numbers_P]
        return type(self)(self.bytes_B[places_of(self.starts_N[numbers_P], lengths_P)], ends(lengths_P))
