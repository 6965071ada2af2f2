"""Language identification with a fastText model: lid.176, NLLB's, GlotLID, or another one that is in a local file."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora.cleaning.fasttext_format import is_whole
from fairseq_mtmoe.data.corpora.cleaning.languages import name_in, names_of
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import regular_file
from fairseq_mtmoe.io.isolated import Lost, isolated

_MEMORY, _MEMORY_PER_BYTE = 1 << 30, 4
_TEXTS = ("the house is old", "Größe, naïve", "дом", "บ้าน หลัง ใหญ่", "家", " ".join(map(chr, range(0x21, 0x600))))
_WHAT = "a fastText model for language identification"


def others(texts: Sequence[str], lang: str, model_path: str, confidence: float) -> NDArray[np.bool_]:
    """Which texts a model takes for another language than `lang`, with this confidence (0 to 1) or more.

    None where the model has no label for `lang`: whatever it says of such a text is wrong.

    Raises:
        UserError: there is no such model, or no library to read it.
    """
    model, known = _load(model_path)
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
    model, _ = _load(path)
    for text in ("", *_TEXTS):
        model.predict(text, k=1, threshold=0.0)


def load(path: str) -> None:
    """Have the model in memory: before the first text, so that a path that is wrong is said at once.

    Raises:
        UserError: see `check_model`.
    """
    _load(path)


def _is_other(model: Any, text: str, names: frozenset[str], confidence: float) -> bool:
    labels, _ = model.predict(text, k=1, threshold=confidence)
    return bool(labels) and name_in(labels[0]) not in names


@cache
def _load(path: str) -> tuple[Any, frozenset[str]]:
    """The model, and the languages that it has labels for."""
    try:
        import fasttext
    except ModuleNotFoundError:
        raise UserError(
            "`identify` needs the package fasttext-predict: pip install 'fairseq_mtmoe[identify]'."
        ) from None
    file = regular_file(path, _WHAT)
    if not is_whole(file):
        raise UserError(f"`identify` must be {_WHAT}, but `{path}` is none, or only a part of one: download it again.")
    try:
        model = fasttext.load_model(str(file))
        labels, _ = model.predict("", k=-1, threshold=-1.0)
    except (ValueError, RuntimeError, MemoryError) as error:
        raise UserError(f"`identify` must be {_WHAT}, but `{path}` is none: {error}") from error
    return model, frozenset(map(name_in, labels))
