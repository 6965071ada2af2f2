"""Whether a file of fastText's is whole: its library reads what is missing as numbers, and then never ends.

The format is what `FastText::saveModel` of fastText 0.9 writes: options, words and labels, two matrices, each as it is
or quantised.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_MAGIC = 793712314
_VERSIONS = (11, 12)
_OPTIONS = 56  # bytes: twelve integers and a number
_CENTROIDS = 256


def is_whole(path: Path) -> bool:
    """Whether this is a model of fastText's from its first byte to its last."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Walk(data).reaches_the_end()
    except (ValueError, struct.error):  # an empty file; a number where there is none, or one too large
        return False


class _Walk:
    """Goes through a model by what it says of its own sizes."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.place = 0

    def reaches_the_end(self) -> bool:
        magic, version = self._numbers("<2i")
        if magic != _MAGIC or version not in _VERSIONS:
            return False
        self._skip(_OPTIONS)
        entries, _, _, _, pruned = self._numbers("<3i2q")
        for _ in range(entries):  # a name that ends in NUL, how often it occurs, and its kind
            self._skip(self.data.find(b"\0", self.place) + 1 - self.place + 9)
        self._skip(8 * max(pruned, 0))
        for _ in ("input", "output"):
            (is_quantised,) = self._numbers("<?")
            if is_quantised:
                self._quantised()
            else:
                rows, columns = self._numbers("<2q")
                self._skip(4 * rows * columns)
        return self.place == len(self.data)

    def _quantised(self) -> None:
        has_norms, rows, _, codes = self._numbers("<?2qi")
        self._skip(codes)
        self._centroids()
        if has_norms:
            self._skip(rows)
            self._centroids()

    def _centroids(self) -> None:
        dimension, _, _, _ = self._numbers("<4i")
        self._skip(4 * _CENTROIDS * dimension)

    def _numbers(self, form: str) -> tuple[int, ...]:
        found = struct.unpack_from(form, self.data, self.place)
        self._skip(struct.calcsize(form))
        return found

    def _skip(self, count: int) -> None:
        if not 0 <= count <= len(self.data) - self.place:
            raise ValueError("there is less of it")
        self.place += count
