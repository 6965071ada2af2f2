"""Language identification with a fastText model: lid.176, NLLB's, GlotLID, or another one that is in a local file."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora.cleaning.languages import name_in, names_of
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import regular_file
from fairseq_mtmoe.io.isolated import Lost, isolated

_MEMORY, _MEMORY_PER_BYTE = 1 << 30, 4
_TEXTS = ("the house is old", "Größe, naïve", "дом", "บ้าน หลัง ใหญ่", "家", " ".join(map(chr, range(0x21, 0x600))))
_WHAT = "a fastText model for language identification"

_MAGIC, _VERSIONS, _SUPERVISED, _LOSSES = 793712314, (11, 12), 3, (1, 2, 3, 4)
_MOST_OCCURRENCES = 10**15  # what the library takes for "more than any": with others its tree of labels has no end
_CENTROIDS = 256


def others(texts: Sequence[str], lang: str, model_path: str, confidence: float) -> NDArray[np.bool_]:
    """Which texts a model takes for another language than `lang`, with this confidence (0 to 1) or more.

    None where the model has no label for `lang`: whatever it says of such a text is wrong.

    Raises:
        UserError: there is no such model, or no library to read it.
    """
    model, known = load(model_path)
    names = names_of(lang)
    if not names & known:
        return np.zeros(len(texts), np.bool_)
    return np.array([_is_other(model, text, names, confidence) for text in texts], np.bool_)


def check_model(path: str) -> None:
    """See that `path` is a model that can be used, in a process that its library may crash.

    Raises:
        UserError: it is not.
    """
    memory = _MEMORY + _MEMORY_PER_BYTE * regular_file(path, _WHAT).stat().st_size
    try:
        isolated(_try_out, path, memory=memory, seconds=600)
    except Lost as error:
        raise UserError(f"`identify` must be {_WHAT}, but `{path}` cannot be used: {error}.") from error


def _try_out(path: str) -> None:
    model, _ = load(path)
    for text in ("", *_TEXTS):
        model.predict(text, k=1, threshold=0.0)


def _is_other(model: Any, text: str, names: frozenset[str], confidence: float) -> bool:
    labels, _ = model.predict(text, k=1, threshold=confidence)
    return bool(labels) and name_in(labels[0]) not in names


@cache
def load(path: str) -> tuple[Any, frozenset[str]]:
    """The model, and the languages that it has labels for.

    Raises:
        UserError: there is no such model, or no library to read it.
    """
    try:
        import fasttext
    except ModuleNotFoundError:
        raise UserError(
            "`identify` needs the package fasttext-predict: pip install 'fairseq_mtmoe[identify]'."
        ) from None
    file = regular_file(path, _WHAT)
    if not _is_whole(file):
        raise UserError(f"`identify` must be {_WHAT}, but `{path}` is none, or only a part of one: download it again.")
    try:
        model = fasttext.load_model(str(file))
        labels, _ = model.predict("", k=-1, threshold=-1.0)
    except (ValueError, RuntimeError, MemoryError) as error:
        raise UserError(f"`identify` must be {_WHAT}, but `{path}` is none: {error}") from error
    return model, frozenset(map(name_in, labels))


# ---- the format ----


def _is_whole(path: Path) -> bool:
    """Whether this is a model of fastText's from its first byte to its last, as `FastText::saveModel` of 0.9 writes it.

    Its library reads what is missing as numbers and never ends, or writes outside of a matrix whose size is another one
    than the rest of the file says.
    """
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Walk(data).reaches_the_end()
    except (ValueError, struct.error):  # an empty file; a number where there is none, or one too large
        return False


class _Walk:
    """Goes through a model by what it says of its own sizes; a `ValueError` where these contradict each other."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.place = 0

    def reaches_the_end(self) -> bool:
        magic, version = self._numbers("<2i")
        self._must(magic == _MAGIC and version in _VERSIONS)
        dimension, _, _, _, _, word_ngrams, loss, model, buckets, _, most, _, _ = self._numbers("<12id")
        hashes = word_ngrams > 1 or most > 0  # parts of words and several words have places by their hash
        words, labels, pruned = self._dictionary()
        self._must(dimension > 0 and loss in _LOSSES and model == _SUPERVISED and buckets >= int(hashes))
        (is_quantised,) = self._numbers("<?")
        self._matrix(bool(is_quantised), words + (buckets if pruned < 0 else pruned), dimension)
        (is_output_quantised,) = self._numbers("<?")
        self._matrix(bool(is_quantised and is_output_quantised), labels, dimension)
        return self.place == len(self.data)

    def _dictionary(self) -> tuple[int, int, int]:
        """Words and labels, and how many rows are left for hashes where others were pruned, or -1."""
        entries, words, labels, _, pruned = self._numbers("<3i2q")
        self._must(words >= 0 and labels > 0 and entries == words + labels)
        occurrences = 0
        for number in range(entries):  # a name that ends in NUL, how often it occurs, and its kind
            self._skip(self.data.find(b"\0", self.place) + 1 - self.place)
            count, kind = self._numbers("<qb")
            self._must(count >= 0 and kind == (number >= words))
            occurrences += count
        self._must(occurrences < _MOST_OCCURRENCES)
        for _ in range(pruned):
            _, row = self._numbers("<2i")
            self._must(0 <= row < pruned)
        return words, labels, pruned

    def _matrix(self, is_quantised: bool, rows: int, columns: int) -> None:
        if not is_quantised:
            self._must(self._numbers("<2q") == (rows, columns))
            self._skip(4 * rows * columns)
            return
        has_norms, found, width, codes = self._numbers("<?2qi")
        self._skip(codes)
        self._must((found, width) == (rows, columns) and codes == rows * self._centroids(columns))
        if has_norms:
            self._skip(rows)
            self._must(self._centroids(1) == 1)

    def _centroids(self, dimension: int) -> int:
        """How many parts a row is cut into, each of which has a code."""
        found, parts, width, last = self._numbers("<4i")
        self._must(found == dimension and width > 0 and parts == -(-dimension // width))
        self._must(last == (dimension % width or width))
        self._skip(4 * _CENTROIDS * dimension)
        return parts

    def _must(self, holds: object) -> None:
        if not holds:
            raise ValueError

    def _numbers(self, form: str) -> tuple[int, ...]:
        found = struct.unpack_from(form, self.data, self.place)
        self._skip(struct.calcsize(form))
        return found

    def _skip(self, count: int) -> None:
        self._must(0 <= count <= len(self.data) - self.place)
        self.place += count
