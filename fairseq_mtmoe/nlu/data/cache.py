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
from fairseq_mtmoe.nlu.data.reading import TaskSet, read_split, source_files
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
    task_set: TaskSet, tokenizer: TextTokenizer, cache: Path, labelled: bool = True
) -> TokenizedSplit:
    """Return a set's tokens from the cache, or tokenize the set and store them.

    Warn of truncated texts, whether they are tokenized now or come from the cache.
    """
    row = task_set.row
    read = partial(read_split, task_set, labelled)

    def make() -> dict[str, Any]:
        if row.stride is not None and row.stride > tokenizer.max_length:
            raise_invalid(
                f"{task_set.name}: stride",
                f"at most the {tokenizer.max_length} tokens of a window",
                row.stride,
            )
        if row.kind is Kind.span:
            tokenized = tokenize_windows(tokenizer, read(), row.stride)
        else:
            tokenized = tokenizer.tokenize(read())
        arrays = {name: getattr(tokenized, name) for name in ARRAYS}
        names = tokenized.names
        return {**arrays, "names_bytes": names.tokens_T, "names_starts": names.starts_N}

    parts = (FORM, tokenizer.fingerprint, tokenizer.max_length, labelled)
    values: dict[str, Any] = {**stored_arrays(cache, task_set, parts, (*ARRAYS, *NAMES), make)}
    names = Strings(*map(values.pop, NAMES))
    for count in ("num_truncated", "num_lost"):
        values[count] = int(values[count])
    passages = Passages(read, tokenizer) if row.kind is Kind.span else None
    tokens = TokenizedSplit(**values, names=names, passages=passages)
    for sentence in _losses(row, tokenizer, tokens):
        logger.warning(f"{task_set.name}, {task_set.split}: {sentence}")
    return tokens


def _losses(row: TaskRow, tokenizer: TextTokenizer, split: TokenizedSplit) -> Iterator[str]:
    if split.num_lost:
        lost = f"{split.num_lost} of {len(split)} questions"
        yield f"no window holds the answer, trained without it: {lost}"
    if split.num_truncated:
        # The sequences of a span task are windows, and only questions are truncated.
        is_span = row.kind is Kind.span
        what, count = ("questions", len(split)) if is_span else ("texts", len(split.starts_S) - 1)
        most = longest_question(tokenizer) if is_span else tokenizer.max_length
        truncated = f"{split.num_truncated} of {count} {what}"
        yield f"truncated to {most} tokens: {truncated} ({split.num_truncated / count:.1%})"
    if without_token := int((split.words_W < 0).sum()):
        words = f"{without_token} of {len(split.words_W)} words"
        yield f"without a token, so labelled {row.labels[0]}: {words}"


def stored_arrays(
    cache: Path,
    task_set: TaskSet,
    parts: Sequence[Any],
    names: Sequence[str],
    make: Callable[[], Mapping[str, Any]],
    kind: str = "",
) -> Mapping[str, NDArray[Any]]:
    """Return a set's arrays with these names from the cache.

    `make` computes them if the sizes or times of files, the row, or `parts` have changed. The first
    of `parts` is the version of the cache's files.
    """
    states = []
    for file in source_files(task_set):
        state = file.stat()
        states.append((os.path.relpath(file, task_set.root), state.st_size, state.st_mtime_ns))
    split = task_set.split
    version, *further = parts
    key_parts = [states, [version, asdict(task_set.row), split, *further]]
    key = digest_of(json.dumps(key_parts, default=str))
    path = cache / f"{task_set.name}.{split.replace('/', '.')}.{kind}{key[:16]}.npz"
    stored = _load(path, names)
    if stored is not None:
        return stored
    made = make()
    try:
        with replacing(path) as partial:
            np.savez(partial, **made)
    except ValueError as error:  # the cache cannot be written: the next run tokenizes again
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
