"""Tokens of many texts in arrays.

BERT's tokenizer treats words between spaces independently, so that each distinct word is tokenized once, in a tenth of
the time. Tokenizers whose description does not guarantee this get whole texts.
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

MOST_WORDS = 1_000_000  # cached words, about 200 MB


@dataclass(frozen=True)
class TokenRuns:
    """N concatenated runs of tokens; `starts_N` (N+1,) has their starts and the end."""

    tokens_T: NDArray[Any]
    starts_N: NDArray[np.int64]

    @classmethod
    def of(cls, runs: Sequence[Sequence[int]]) -> Self:
        """Return the runs of these sequences."""
        starts_N = ends(lengths_of(runs))
        return cls(np.fromiter(chain.from_iterable(runs), dtype=np.int32, count=starts_N[-1]), starts_N)

    @property
    def lengths_N(self) -> NDArray[np.int64]:
        """Return the runs' lengths, (N,)."""
        return np.diff(self.starts_N)

    def __len__(self) -> int:
        return len(self.starts_N) - 1

    def __getitem__(self, number: int) -> Any:
        return self.tokens_T[self.starts_N[number] : self.starts_N[number + 1]]

    def joined(self, more: "TokenRuns") -> "TokenRuns":
        """Return these runs followed by others."""
        starts_N = np.concatenate([self.starts_N, more.starts_N[1:] + self.starts_N[-1]])
        return TokenRuns(np.concatenate([self.tokens_T, more.tokens_T]), starts_N)

    def chosen(self, runs_P: NDArray[np.int64], lengths_P: NDArray[np.int64] | None = None) -> Self:
        """Return the runs with these numbers, each with its first `lengths_P` tokens or all."""
        lengths = self.lengths_N[runs_P] if lengths_P is None else lengths_P
        # positions of all tokens, counted from each run's start
        positions_T = np.repeat(self.starts_N[runs_P] - (np.cumsum(lengths) - lengths), lengths)
        positions_T += np.arange(len(positions_T))
        return type(self)(self.tokens_T[positions_T], ends(lengths))


class Strings(TokenRuns):
    """N texts as runs of UTF-8 bytes."""

    @classmethod
    def of_texts(cls, texts: Sequence[str]) -> Self:
        """Return the texts as runs."""
        encoded = [whole_characters(text).encode() for text in texts]
        return cls(np.frombuffer(b"".join(encoded), dtype=np.uint8), ends(lengths_of(encoded)))

    def __getitem__(self, number: int) -> str:
        encoded: bytes = super().__getitem__(number).tobytes()
        return encoded.decode()


def whole_characters(text: str) -> str:
    """Replace lone surrogates, which JSON can contain and libraries refuse, by question marks."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def lengths_of(runs: Sequence[Sized]) -> NDArray[np.int64]:
    """Return the lengths of sequences, (N,)."""
    return np.fromiter(map(len, runs), dtype=np.int64, count=len(runs))


def ends(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the starts of concatenated runs of these lengths, and the end, (N+1,)."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def whole_texts(tokenizer: Any, texts: Sequence[str]) -> TokenRuns:
    """Tokenize each text into a run without special tokens, by the `tokenizers` library."""
    with guarded("`tokenizer.json` must give tokens for any text"):
        encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    return TokenRuns.of([encoding.ids for encoding in encodings])


class WordByWord:
    """Tokenizes like `whole_texts`, but each word once; for tokenizers that `splits_at_spaces` accepts."""

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
    """Return `WordByWord` if it is exact for this tokenizer, else `whole_texts`."""
    return WordByWord(tokenizer) if splits_at_spaces(tokenizer) else partial(whole_texts, tokenizer)


def splits_at_spaces(tokenizer: Any) -> bool:
    """Return whether the tokenizer treats words between spaces independently, added tokens included."""
    described = json.loads(tokenizer.to_str())
    kinds = [(described[part] or {}).get("type") for part in ("normalizer", "pre_tokenizer", "model")]
    added = described["added_tokens"]
    return kinds == ["BertNormalizer", "BertPreTokenizer", "WordPiece"] and not any(
        token["normalized"] or " " in token["content"] for token in added
    )
