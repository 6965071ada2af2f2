"""Cache of tokenized splits on disk.

A split is tokenized again if its files, row or tokenizer change.
"""

import json
import logging
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.core.digest import digest_of
from fairseq_mtmoe.core.errors import raise_invalid
from fairseq_mtmoe.core.files import replacing
from fairseq_mtmoe.nlu.data.reading import read_split, source_files
from fairseq_mtmoe.nlu.data.table import Kind, TaskRow
from fairseq_mtmoe.nlu.data.token_runs import Strings
from fairseq_mtmoe.nlu.data.tokenizing import TextTokenizer, TokenizedSplit
from fairseq_mtmoe.nlu.data.windows import Passages, longest_question, tokenize_windows

logger = logging.getLogger(__name__)

FORM = 4  # version of the files; it changes when reading or tokenizing changes
ARRAYS = tuple(
    field.name for field in fields(TokenizedSplit) if field.name not in ("names", "passages")
)
NAMES = ("names_bytes", "names_starts")


def tokenized_split(
    root: Path,
    name: str,
    row: TaskRow,
    split: str,
    tokenizer: TextTokenizer,
    cache: Path,
    labelled: bool = True,
) -> TokenizedSplit:
    """Return a split's tokens from the cache, or tokenize the split and store them.

    Warn of what is lost of the texts, whether they are tokenized now or were before.
    """
    read = partial(read_split, root, row, split, labelled)

    def make() -> dict[str, Any]:
        if row.stride is not None and row.stride > tokenizer.max_length:
            raise_invalid(
                f"{name}: stride",
                f"at most the {tokenizer.max_length} tokens of a window",
                row.stride,
            )
        if row.kind is Kind.span:
            tokenized = tokenize_windows(tokenizer, read(), row.stride)
        else:
            tokenized = tokenizer.tokenize(read())
        arrays = {name: getattr(tokenized, name) for name in ARRAYS}
        return arrays | dict(
            zip(NAMES, (tokenized.names.tokens_T, tokenized.names.starts_N), strict=True)
        )

    parts = (tokenizer.fingerprint, tokenizer.max_length, labelled)
    arrays = stored_arrays(cache, root, name, row, split, FORM, parts, (*ARRAYS, *NAMES), make)
    values: dict[str, Any] = {field: arrays[field] for field in ARRAYS}
    values |= {field: int(values[field]) for field in ("num_truncated", "num_lost")}
    passages = Passages(read, tokenizer) if row.kind is Kind.span else None
    tokens = TokenizedSplit(
        **values, names=Strings(*(arrays[field] for field in NAMES)), passages=passages
    )
    for sentence in _losses(row, tokenizer, tokens):
        logger.warning(f"{name}, {split}: {sentence}")
    return tokens


def _losses(row: TaskRow, tokenizer: TextTokenizer, split: TokenizedSplit) -> Iterator[str]:
    if split.num_lost:
        lost = f"the answers of {split.num_lost} of {len(split)} questions fit into no window"
        yield f"{lost}: these questions are trained without an answer"
    if split.num_truncated:
        # The sequences of a span task are windows, and only questions are truncated.
        is_span = row.kind is Kind.span
        what, count = ("questions", len(split)) if is_span else ("texts", len(split.starts_S) - 1)
        most = longest_question(tokenizer) if is_span else tokenizer.max_length
        yield (
            f"{split.num_truncated} {what} ({split.num_truncated / count:.1%}) are truncated to "
            f"{most} tokens"
        )
    if without_token := int((split.words_W < 0).sum()):
        yield (
            f"{without_token} of {len(split.words_W)} words have no token and are labelled "
            f"{row.labels[0]}"
        )


def stored_arrays(
    cache: Path,
    root: Path,
    name: str,
    row: TaskRow,
    split: str,
    form: int,
    parts: Sequence[Any],
    arrays: Sequence[str],
    make: Callable[[], Mapping[str, NDArray[Any]]],
    kind: str = "",
) -> Mapping[str, NDArray[Any]]:
    """Return a split's arrays from the cache.

    `make` them again if file sizes or times, the row, `form` or `parts` change.
    """
    files = source_files(root, row, split)
    states = [
        (os.path.relpath(file, root), file.stat().st_size, file.stat().st_mtime_ns)
        for file in files
    ]
    key = digest_of(json.dumps([states, [form, asdict(row), split, *parts]], default=str))
    path = cache / f"{name}.{split.replace('/', '.')}.{kind}{key[:16]}.npz"
    stored = _load(path, arrays)
    if stored is not None:
        return stored
    made: dict[str, Any] = {**make()}
    try:
        with replacing(path) as partial:
            np.savez(partial, **made)
    except ValueError as error:  # a UserError; without a cache the next run tokenizes again
        logger.warning(str(error))
    return made


def _load(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]] | None:
    try:
        with np.load(path, allow_pickle=False) as saved:
            return {name: saved[name] for name in names}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        logger.warning(f"{path} is damaged and will be rebuilt: {error}")
        return None
