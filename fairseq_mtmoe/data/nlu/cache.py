"""Tokenized splits on the disk: each is made once, and anew when a file, its row or the tokenizer changes."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.nlu.examples import Example
from fairseq_mtmoe.data.nlu.reading import read_split, source_files
from fairseq_mtmoe.data.nlu.table import Kind, TaskRow
from fairseq_mtmoe.data.nlu.token_runs import Strings
from fairseq_mtmoe.data.nlu.tokenizing import TextTokenizer, TokenizedSplit
from fairseq_mtmoe.data.nlu.windows import Passages, tokenize_windows
from fairseq_mtmoe.errors import raise_invalid
from fairseq_mtmoe.io.files import replacing

logger = logging.getLogger(__name__)

FORM = 2  # of the files; a version that reads or tokenizes otherwise has another one
# The fields of a split that a file has, with their names there.
STORED = {"row_offsets_E": "firsts_E", "is_correct_S": "rights_S", "segment_start_S": "seconds_S"}
ARRAYS = {
    field.name: STORED.get(field.name, field.name)
    for field in fields(TokenizedSplit)
    if field.name not in ("names", "passages")
}
NAMES = ("names_bytes", "names_starts")


def tokenized_split(
    root: Path, name: str, row: TaskRow, split: str, tokenizer: TextTokenizer, cache: Path, labelled: bool = True
) -> TokenizedSplit:
    """The tokens of a split: from the cache, or read, tokenized and put there.

    Raises:
        UserError: the split is not there, or is not what the row says.
    """
    files = source_files(root, row, split)
    key = key_of(root, files, FORM, row, split, tokenizer.fingerprint, tokenizer.max_length, labelled)
    path = cache / f"{name}.{split.replace('/', '.')}.{key}.npz"
    read = partial(read_split, root, row, split, labelled)
    arrays = arrays_of(path, (*ARRAYS.values(), *NAMES), lambda: _arrays(_made(name, row, split, tokenizer, read())))
    counts = {name: int(arrays[name]) for name in ("num_truncated", "num_lost")}
    kept: dict[str, Any] = {name: arrays[stored] for name, stored in ARRAYS.items()} | counts
    found = TokenizedSplit(**kept, names=Strings(*(arrays[name] for name in NAMES)))
    return replace(found, passages=Passages(read, tokenizer)) if row.kind is Kind.span else found


def _arrays(made: TokenizedSplit) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {stored: np.asarray(getattr(made, name)) for name, stored in ARRAYS.items()}
    return arrays | dict(zip(NAMES, (made.names.bytes_B, made.names.starts_N), strict=True))


def _made(name: str, row: TaskRow, split: str, tokenizer: TextTokenizer, examples: Sequence[Example]) -> TokenizedSplit:
    is_span = row.kind is Kind.span
    if row.stride is not None and row.stride > tokenizer.max_length:
        raise_invalid(f"{name}: stride", f"at most the {tokenizer.max_length} tokens of a window", row.stride)
    made = tokenize_windows(tokenizer, examples, row.stride) if is_span else tokenizer.tokenize(examples)
    if made.num_lost:
        lost = f"{made.num_lost} of {len(made)} questions have an answer that no window has as a whole"
        logger.warning(f"{name}, {split}: {lost}, and are trained as if it were in none")
    if made.num_truncated:
        share = made.num_truncated / (len(made.starts_S) - 1)
        limit = f"longer than {tokenizer.max_length} tokens and lost their ends"
        logger.warning(f"{name}, {split}: {made.num_truncated} texts ({share:.1%}) were {limit}")
    if without_token := int((made.words_W < 0).sum()):
        of_all = f"{without_token} of {len(made.words_W)} words"
        logger.warning(f"{name}, {split}: {of_all} have no token and count as {row.labels[0]}")
    return made


def key_of(root: Path, files: Sequence[Path], *parts: Any) -> str:
    """Differs where what would be made of files differs; these count as changed by their size and time.

    Args:
        root: the data directory.
        files: below it.
        parts: whatever else it follows from; dataclasses by their fields.
    """
    states = [(os.path.relpath(file, root), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    plain = [asdict(part) if is_dataclass(part) and not isinstance(part, type) else part for part in parts]
    return hashlib.sha256(json.dumps([states, plain], default=str).encode()).hexdigest()[:16]


def arrays_of(
    path: Path, names: Sequence[str], make: Callable[[], Mapping[str, NDArray[Any]]]
) -> Mapping[str, NDArray[Any]]:
    """The arrays in a file of the cache; made and put there if there is none, or a damaged one."""
    found = _load(path, names)
    if found is not None:
        return found
    made = make()
    named: dict[str, Any] = {**made}
    try:
        with replacing(path) as partial:
            np.savez(partial, **named)
    except ValueError as error:  # a UserError: the next run tokenizes again
        logger.warning(str(error))
    return made


def _load(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]] | None:
    try:
        with np.load(path, allow_pickle=False) as saved:
            return {name: saved[name] for name in names}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        logger.warning(f"{path} is damaged and made anew: {error}")
        return None
