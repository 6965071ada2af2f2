"""Tokens of many texts in arrays.

BERT's tokenizer never looks across a space: each word is tokenized once, which takes a tenth of the time. Whether a
tokenizer is of this kind is read from its description; others are given whole texts.
"""

import json
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.nlu.tokenizer_files import guarded

MOST_WORDS = 1_000_000  # that are remembered, about 200 MB


@dataclass(frozen=True)
class TokenRuns:
    """N runs of tokens, one after the other; `starts_N` (N+1,) has where each begins, and the last one ends."""

    tokens_T: NDArray[Any]
    starts_N: NDArray[np.int64]

    @classmethod
    def of(cls, runs: Sequence[Sequence[int]]) -> Self:
        starts_N = ends(lengths_of(runs))
        return cls(np.fromiter(chain.from_iterable(runs), dtype=np.int32, count=starts_N[-1]), starts_N)

    @property
    def lengths_N(self) -> NDArray[np.int64]:
        return np.diff(self.starts_N)

    def __len__(self) -> int:
        return len(self.starts_N) - 1

    def __getitem__(self, number: int) -> Any:
        return self.tokens_T[self.starts_N[number] : self.starts_N[number + 1]]

    def joined(self, more: "TokenRuns") -> "TokenRuns":
        starts_N = np.concatenate([self.starts_N, more.starts_N[1:] + self.starts_N[-1]])
        return TokenRuns(np.concatenate([self.tokens_T, more.tokens_T]), starts_N)

    def chosen(self, runs_P: NDArray[np.int64], lengths_P: NDArray[np.int64] | None = None) -> Self:
        """The runs of these numbers, of each the first `lengths_P` tokens or all."""
        lengths = self.lengths_N[runs_P] if lengths_P is None else lengths_P
        # the positions of all tokens: of each run from its start on
        positions_T = np.repeat(self.starts_N[runs_P] - (np.cumsum(lengths) - lengths), lengths)
        positions_T += np.arange(len(positions_T))
        return type(self)(self.tokens_T[positions_T], ends(lengths))


class Strings(TokenRuns):
    """N texts, whose tokens are bytes in UTF-8."""

    @classmethod
    def of_texts(cls, texts: Sequence[str]) -> Self:
        encoded = [whole_characters(text).encode() for text in texts]
        return cls(np.frombuffer(b"".join(encoded), dtype=np.uint8), ends(lengths_of(encoded)))

    def __getitem__(self, number: int) -> str:
        encoded: bytes = super().__getitem__(number).tobytes()
        return encoded.decode()


def whole_characters(text: str) -> str:
    """A text with a question mark for half a character, which a file of JSON can name and libraries refuse."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def lengths_of(runs: Sequence[Sized]) -> NDArray[np.int64]:
    return np.fromiter(map(len, runs), dtype=np.int64, count=len(runs))


def ends(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of the runs of these lengths begins, one after the other, and the last one ends, (N+1,)."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def whole_texts(tokenizer: Any, texts: Sequence[str]) -> TokenRuns:
    """A run for each text, without marks around it, by the `tokenizers` library."""
    with guarded("`tokenizer.json` must make tokens of any text"):
        encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    return TokenRuns.of([encoding.ids for encoding in encodings])


class WordByWord:
    """The same word by word, each of them once; for tokenizers that `splits_at_spaces`."""

    def __init__(self, tokenizer: Any) -> None:
        self._encode = partial(whole_texts, tokenizer)
        self._number: dict[str, int] = {}
        self._runs = TokenRuns.of([])

    def __call__(self, texts: Sequence[str]) -> TokenRuns:
        if len(self._number) > MOST_WORDS:
            self._number, self._runs = {}, TokenRuns.of([])
        words = [text.split(" ") for text in texts]
        every_word = list(chain.from_iterable(words))
        new = [word for word in dict.fromkeys(every_word) if word not in self._number]
        self._runs = self._runs.joined(self._encode(new))
        self._number.update(zip(new, range(len(self._number), len(self._number) + len(new)), strict=True))
        numbers = np.fromiter(map(self._number.__getitem__, every_word), dtype=np.int64, count=len(every_word))
        found = self._runs.chosen(numbers)
        return TokenRuns(found.tokens_T, found.starts_N[ends(lengths_of(words))])


def encoder_for(tokenizer: Any) -> Callable[[Sequence[str]], TokenRuns]:
    """The faster one of those that are right."""
    return WordByWord(tokenizer) if splits_at_spaces(tokenizer) else partial(whole_texts, tokenizer)


def splits_at_spaces(tokenizer: Any) -> bool:
    """Whether a text's tokens are those of the parts between its spaces: added ones could have a space in them."""
    described = json.loads(tokenizer.to_str())
    kinds = [(described[part] or {}).get("type") for part in ("normalizer", "pre_tokenizer", "model")]
    added = described["added_tokens"]
    return kinds == ["BertNormalizer", "BertPreTokenizer", "WordPiece"] and not any(
        token["normalized"] or " " in token["content"] for token in added
    )
