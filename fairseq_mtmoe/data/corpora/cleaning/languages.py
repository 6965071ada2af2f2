"""Languages: codes, scripts, and language identification by a fastText model (lid.176, GlotLID …)."""

import mmap
import re
import struct
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from fontTools.unicodedata import script as script_of
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora.cleaning.characters import WIDE, scripts, wide
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import regular_file
from fairseq_mtmoe.io.isolated import Lost, isolated

_TABLE = Path(__file__).with_name("languages.yaml")
_SCRIPT = re.compile(r"_([A-Z][a-z]{3})(?:_|$)")
_JOINED = {
    "Jpan": ("Hani", "Hira", "Kana"),
    "Kore": ("Hang", "Hani"),
    "Hans": ("Hani", "Bopo"),
    "Hant": ("Hani", "Bopo"),
}
_ENGLISH = frozenset(["the", "of", "and", "to", "that", "with", "this", "are", "was", "have", "from", "by", "be", "or"])
_SOME_ENGLISH = 0.04  # share of these words above which a text is English: of 100 words of English prose they are 20
_RELATED = 60  # CLDR's distance of two scripts of a language is 50; that of languages without a relation is above 80
FOREIGN = 1 << 32  # counts of other scripts' letters are so far above those of the own ones in one sum of both


@lru_cache(1024)
def _subtags(code: str) -> tuple[str, ...]:
    """Return the parts of a language code in any spelling: equal for `de_DE`, `de-DE` and `DE-de`."""
    return tuple(re.split("[-_]", code.strip().lower()))


def is_same_language(code: str, lang: str) -> bool:
    """Return whether two codes begin with the same language, as `en`, `en_XX` and `en-GB` do."""
    return _subtags(code)[0] == _subtags(lang)[0]


def best_match(codes: Sequence[str], lang: str) -> str | None:
    """Return a file's code for the language: the same code, or else one with its script, or any; None without."""
    same = [code for code in codes if is_same_language(code, lang)]
    return min(same, key=lambda code: (_subtags(code) != _subtags(lang), _script(code) != _script(lang)), default=None)


@lru_cache(1024)
def _script(code: str) -> str | None:
    """Return a code's script, which its region may imply (`zh-TW` is in Hant); None if the code is invalid."""
    import langcodes  # large tables, needed for few files

    try:
        return langcodes.Language.get("-".join(_subtags(code))).maximize().script
    except ValueError:  # raised by `langcodes` for malformed codes
        return None


def is_distant(code: str, lang: str) -> bool:
    """Return whether a code is of another language that is not a near relative, as `fr` is beside `en`."""
    import langcodes  # as above

    try:
        distance: int = langcodes.tag_distance("-".join(_subtags(code)), "-".join(_subtags(lang)))
    except ValueError:  # raised by `langcodes` for malformed codes
        return False
    return distance > _RELATED


def looks_like(text: str, lang: str) -> float:
    """Return from 0 to 1 how much a text looks like the language, by letters, and for English by common words."""
    own = scripts_of(lang)
    of_text = Counter(filter(str.isalpha, text))
    in_script = sum(count for letter, count in of_text.items() if not own or script_of(letter) in own)
    words = re.findall(r"\w+", text.lower())
    share = sum(word in _ENGLISH for word in words) / max(len(words), 1)
    is_english = min(share / _SOME_ENGLISH, 1.0)
    fits: float = in_script / max(of_text.total(), 1)
    return fits * (is_english if is_same_language(lang, "en") else 1 - is_english)


@cache
def languages() -> dict[str, dict[str, list[str]]]:
    """Return the `scripts` and `names` of `languages.yaml`, by plain code."""
    return dict(yaml.safe_load(_TABLE.read_text(encoding="utf-8")))


def scripts_of(lang: str) -> tuple[str, ...]:
    """Return a language's scripts: the one in its code (`sr_Latn`), else the table's, joint ones such as Jpan apart."""
    if named := _SCRIPT.search(lang):
        return _JOINED.get(named[1], (named[1],))
    return tuple(languages().get(lang.split("_")[0], {}).get("scripts", ()))


@cache
def letters(lang: str) -> NDArray[np.int64]:
    """Return what code points add to a text's letters: 1 (`WIDE` if wide), `FOREIGN` times that in other scripts."""
    numbers, of_letters = scripts()
    own = [numbers[script] for script in scripts_of(lang) if script in numbers]
    of_script = np.full(len(numbers) + 1, FOREIGN if own else 0)
    of_script[0], of_script[own] = 0, 1
    added: NDArray[np.int64] = of_script[of_letters] * np.where(wide(), WIDE, 1)
    return added


def names_of(lang: str) -> frozenset[str]:
    """Return possible names of this language in a model: its code, and the table's names."""
    base = lang.split("_")[0]
    return frozenset((base, *languages().get(base, {}).get("names", ())))


def name_in(label: str) -> str:
    """Return the language of a model's label, `__label__de` or `__label__deu_Latn`."""
    return label.removeprefix("__label__").split("_")[0]


_MEMORY, _MEMORY_PER_BYTE = 1 << 30, 4
_TEXTS = ("the house is old", "Größe, naïve", "дом", "บ้าน หลัง ใหญ่", "家", " ".join(map(chr, range(0x21, 0x600))))
_WHAT = "a fastText model for language identification"

_MAGIC, _VERSIONS, _SUPERVISED, _LOSSES = 793712314, (11, 12), 3, (1, 2, 3, 4)
_MOST_OCCURRENCES = 10**15  # the library's "more than any"; with larger counts its tree of labels has no end
_CENTROIDS = 256


def in_other_language(texts: Sequence[str], lang: str, model_path: str, confidence: float) -> NDArray[np.bool_]:
    """Return which texts a model takes for another language, with confidence (0 to 1); none if it lacks `lang`."""
    model, known = load_model(model_path)
    names = names_of(lang)
    if not names & known:
        return np.zeros(len(texts), np.bool_)
    return np.array([_is_other(model, text, names, confidence) for text in texts], np.bool_)


def check_model(path: str) -> None:
    """Raise `UserError` if `path` is no usable model; the library may crash, so that it is tried in a process."""
    memory = _MEMORY + _MEMORY_PER_BYTE * regular_file(path, _WHAT).stat().st_size
    try:
        isolated(_try_out, path, memory=memory, seconds=600)
    except Lost as error:
        raise UserError(f"`identify` must be {_WHAT}, but `{path}` cannot be used: {error}.") from error


def _try_out(path: str) -> None:
    model, _ = load_model(path)
    for text in ("", *_TEXTS):
        model.predict(text, k=1, threshold=0.0)


def _is_other(model: Any, text: str, names: frozenset[str], confidence: float) -> bool:
    labels, _ = model.predict(text, k=1, threshold=confidence)
    return bool(labels) and name_in(labels[0]) not in names


@cache
def load_model(path: str) -> tuple[Any, frozenset[str]]:
    """Return the model and the languages of its labels; raise `UserError` without it or its library."""
    try:
        import fasttext
    except ModuleNotFoundError:
        raise UserError("`identify` needs fasttext-predict: pip install 'fairseq_mtmoe[identify]'.") from None
    file = regular_file(path, _WHAT)
    if not _is_whole(file):
        raise UserError(f"`identify` must be {_WHAT}, but `{path}` is none, or only a part of one: download it again.")
    try:
        model = fasttext.load_model(str(file))
        labels, _ = model.predict("", k=-1, threshold=-1.0)
    except (ValueError, RuntimeError, MemoryError) as error:
        raise UserError(f"`identify` must be {_WHAT}, but `{path}` is none: {error}") from error
    return model, frozenset(map(name_in, labels))


def _is_whole(path: Path) -> bool:
    """Return whether a model is one of fastText 0.9 to its end: its library reads and writes beyond that of a part."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Walk(data).reaches_the_end()
    except (ValueError, struct.error):  # an empty file; a number where there is none, or one too large
        return False


class _Walk:
    """Walks through a model file by its own sizes (ValueError: these contradict each other)."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.offset = data, 0

    def reaches_the_end(self) -> bool:
        magic, version = self._numbers("<2i")
        self._must(magic == _MAGIC and version in _VERSIONS)
        dimension, _, _, _, _, word_ngrams, loss, model, buckets, _, most, _, _ = self._numbers("<12id")
        hashes = word_ngrams > 1 or most > 0  # parts of words and several words have rows by their hash
        words, labels, pruned = self._dictionary()
        self._must(dimension > 0 and loss in _LOSSES and model == _SUPERVISED and buckets >= int(hashes))
        (is_quantised,) = self._numbers("<?")
        self._matrix(bool(is_quantised), words + (buckets if pruned < 0 else pruned), dimension)
        (is_output_quantised,) = self._numbers("<?")
        self._matrix(bool(is_quantised and is_output_quantised), labels, dimension)
        return self.offset == len(self.data)

    def _dictionary(self) -> tuple[int, int, int]:
        """Words and labels, and how many rows are left for hashes where others were pruned, or -1."""
        entries, words, labels, _, pruned = self._numbers("<3i2q")
        self._must(words >= 0 and labels > 0 and entries == words + labels)
        occurrences = 0
        for number in range(entries):  # a name that ends in NUL, how often it occurs, and its kind
            self._skip(self.data.find(b"\0", self.offset) + 1 - self.offset)
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
        """Return the number of parts of a row, each of which has a code."""
        found, parts, width, last = self._numbers("<4i")
        self._must(found == dimension and width > 0 and parts == -(-dimension // width))
        self._must(last == (dimension % width or width))
        self._skip(4 * _CENTROIDS * dimension)
        return parts

    def _must(self, holds: object) -> None:
        if not holds:
            raise ValueError

    def _numbers(self, form: str) -> tuple[int, ...]:
        found = struct.unpack_from(form, self.data, self.offset)
        self._skip(struct.calcsize(form))
        return found

    def _skip(self, count: int) -> None:
        self._must(0 <= count <= len(self.data) - self.offset)
        self.offset += count
