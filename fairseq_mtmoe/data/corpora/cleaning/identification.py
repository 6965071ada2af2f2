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
    """See that `path` is a model that can be used.

    Raises:
        UserError: it is not.
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
    except ImportError:
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
