"""Languages: codes, scripts, and identification by a fastText model.

Such models are lid.176 and GlotLID.
"""

import os
import re
import struct
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import regular_file
from fairseq_mtmoe.core.isolated import Lost, isolated
from fairseq_mtmoe.corpora.cleaning.characters import WIDE, scripts, wide
from fairseq_mtmoe.translation.data.languages import languages

_SCRIPT = re.compile(r"_([A-Z][a-z]{3})(?:_|$)")
_JOINED = {
    "Jpan": ("Hani", "Hira", "Kana"),
    "Kore": ("Hang", "Hani"),
    "Hans": ("Hani", "Bopo"),
    "Hant": ("Hani", "Bopo"),
}
# CLDR's distance of two scripts of a language is 50.
# The distance of languages without a relation is above 80.
_RELATED = 60
# In a sum of both, counts of other scripts' letters are so far above those of the language's own.
FOREIGN = 1 << 32


@lru_cache(1024)
def _subtags(code: str) -> tuple[str, ...]:
    """Return the parts of a language code in any spelling.

    They are equal for `de_DE`, `de-DE` and `DE-de`.
    """
    return tuple(re.split("[-_]", code.strip().lower()))


def is_same_language(code: str, lang: str) -> bool:
    """Return whether two codes begin with the same language.

    `en`, `en_XX` and `en-GB` do.
    """
    return _subtags(code)[0] == _subtags(lang)[0]


def best_match(codes: Sequence[str], lang: str) -> str | None:
    """Return a file's code for the language; None if it has none.

    The code is the same, or else one with the same script, or any.
    """
    same = [code for code in codes if is_same_language(code, lang)]
    return min(
        same,
        key=lambda code: (_subtags(code) != _subtags(lang), _script(code) != _script(lang)),
        default=None,
    )


@lru_cache(1024)
def _script(code: str) -> str | None:
    """Return a code's script; None if the code is invalid.

    Its region may imply the script: `zh-TW` is in Hant.
    """
    import langcodes  # large tables, needed for few files

    try:
        return langcodes.Language.get("-".join(_subtags(code))).maximize().script
    except ValueError:  # raised by `langcodes` for malformed codes
        return None


def is_distant(code: str, lang: str) -> bool:
    """Return whether two codes name different languages, as `fr` and `en` do.

    A near relative does not count as another language.
    """
    import langcodes  # as above

    try:
        distance: int = langcodes.tag_distance("-".join(_subtags(code)), "-".join(_subtags(lang)))
    except ValueError:  # raised by `langcodes` for malformed codes
        return False
    return distance > _RELATED


def scripts_of(lang: str) -> tuple[str, ...]:
    """Return a language's scripts: the one in its code, else the table's.

    The code `sr_Latn` has a script. Joint scripts such as Jpan are taken apart.
    """
    if named := _SCRIPT.search(lang):
        return _JOINED.get(named[1], (named[1],))
    return tuple(languages().get(lang.split("_")[0], {}).get("scripts", ()))


@cache
def letters(lang: str) -> NDArray[np.int64]:
    """Return what code points add to a text's letters.

    A letter adds 1 (`WIDE` if wide), and a letter of another script `FOREIGN` times that.
    """
    numbers, script_numbers = scripts()
    native = [numbers[script] for script in scripts_of(lang) if script in numbers]
    added_by_script = np.full(len(numbers) + 1, FOREIGN if native else 0)
    added_by_script[0], added_by_script[native] = 0, 1
    added: NDArray[np.int64] = added_by_script[script_numbers] * np.where(wide(), WIDE, 1)
    return added


def names_of(lang: str) -> frozenset[str]:
    """Return possible names of this language in a model.

    They are its code, and the table's names.
    """
    base = lang.split("_")[0]
    return frozenset((base, *languages().get(base, {}).get("names", ())))


def name_in(label: str) -> str:
    """Return the language of a model's label, `__label__de` or `__label__deu_Latn`."""
    return label.removeprefix("__label__").split("_")[0]


_MEMORY = 1 << 30
_MEMORY_PER_BYTE = 4
_SECONDS = 300
_TEXTS = (
    "the house is old",
    "Größe, naïve",
    "дом",
    "บ้าน หลัง ใหญ่",
    "家",
    " ".join(map(chr, range(0x21, 0x600))),
)
_WHAT = "a fastText model for language identification"


def in_other_language(
    texts: Sequence[str], lang: str, model_path: str, confidence: float
) -> NDArray[np.bool_]:
    """Return which texts a model takes for another language.

    Its confidence (0 to 1) must be sufficient. There are none if the model lacks `lang`.
    """
    model, langs = load_model(model_path)
    names = names_of(lang)
    if not names & langs:
        return np.zeros(len(texts), np.bool_)
    return np.array([_is_other(model, text, names, confidence) for text in texts], np.bool_)


def check_model(path: str) -> None:
    """Raise `UserError` if `path` is no usable model.

    The library may crash or hang, so that a process tries it.
    """
    memory = _MEMORY + _MEMORY_PER_BYTE * regular_file(path, _WHAT).stat().st_size
    try:
        isolated(_try_out, path, memory=memory, seconds=_SECONDS)
    except Lost as error:
        raise UserError(
            f"`identify` must be {_WHAT}, but `{path}` cannot be used: {error}."
        ) from error


def _try_out(path: str) -> None:
    model, _ = load_model(path)
    for text in ("", *_TEXTS):
        model.predict(text, k=1, threshold=0.0)


def _is_other(model: Any, text: str, names: frozenset[str], confidence: float) -> bool:
    labels, _ = model.predict(text, k=1, threshold=confidence)
    return bool(labels) and name_in(labels[0]) not in names


@cache
def load_model(path: str) -> tuple[Any, frozenset[str]]:
    """Return the model and the languages of its labels.

    Raises `UserError` without the model or its library.
    """
    try:
        import fasttext
    except ModuleNotFoundError:
        raise UserError(
            "`identify` needs fasttext-predict: run `pip install 'fairseq_mtmoe[identify]'`."
        ) from None
    file = regular_file(path, _WHAT)
    try:
        model = fasttext.load_model(str(file))
        labels, _ = model.predict("", k=-1, threshold=-1.0)
    except (ValueError, RuntimeError, MemoryError) as error:
        raise UserError(
            f"`identify` must be {_WHAT}, but `{path}` cannot be loaded: {error}"
        ) from error
    if not labels or not _has_all_rows(file, len(labels)):
        raise UserError(
            f"`identify` must be {_WHAT}, but `{path}` is incomplete; download it again."
        )
    return model, frozenset(map(name_in, labels))


def _has_all_rows(file: Path, num_labels: int) -> bool:
    """Return whether a model ends with a row for each label.

    Its library does not check this.

    Quantised models (`.ftz`) may end in another way.
    """
    if file.suffix == ".ftz":
        return True
    with file.open("rb") as content:
        content.seek(8)
        (dimension,) = struct.unpack("<i", content.read(4))
        content.seek(-4 * num_labels * dimension - 16, os.SEEK_END)
        return content.read(16) == struct.pack("<2q", num_labels, dimension)
