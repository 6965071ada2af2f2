"""Tokens of many texts in arrays."""

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class TokenRuns:
    """N concatenated runs of tokens; `starts_N` (N+1,) has their starts and the end."""

    tokens_T: NDArray[Any]
    starts_N: NDArray[np.int64]

    @classmethod
    def of(cls, runs: Sequence[Any]) -> Self:
        """Return the runs of these sequences."""
        starts_N = ends(lengths_of(runs))
        return cls(
            np.fromiter(chain.from_iterable(runs), dtype=np.int32, count=starts_N[-1]), starts_N
        )

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
        """Return the runs at these indices, cut to `lengths_P` tokens if given."""
        lengths = self.lengths_N[runs_P] if lengths_P is None else lengths_P
        # These are the positions of all tokens, counted from each run's start.
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
    """Replace lone surrogates, which JSON can contain, by question marks.

    Libraries refuse them.
    """
    return text.encode("utf-8", errors="replace").decode("utf-8")


def lengths_of(runs: Sequence[Sized]) -> NDArray[np.int64]:
    """Return the lengths of sequences, (N,)."""
    return np.fromiter(map(len, runs), dtype=np.int64, count=len(runs))


def ends(lengths: ArrayLike) -> NDArray[np.int64]:
    """Return the starts of concatenated runs of these lengths, and the end, (N+1,)."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
