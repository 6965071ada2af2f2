"""Many short texts in two arrays, which the cache keeps as it does tokens; a list of them is ten times the size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.nlu.token_runs import ends, places_of


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
