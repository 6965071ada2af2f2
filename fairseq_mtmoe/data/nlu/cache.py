"""Cache of tokenized splits on disk; a split is tokenized again if its files, row or tokenizer change."""

import hashlib
import json
import logging
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.nlu.reading import Example, read_split, source_files
from fairseq_mtmoe.data.nlu.table import Kind, TaskRow
from fairseq_mtmoe.data.nlu.token_runs import Strings
from fairseq_mtmoe.data.nlu.tokenizing import TextTokenizer, TokenizedSplit
from fairseq_mtmoe.data.nlu.windows import Passages, tokenize_windows
from fairseq_mtmoe.errors import raise_invalid
from fairseq_mtmoe.io.files import replacing

logger = logging.getLogger(__name__)

FORM = 3  # version of the files; it changes when reading or tokenizing changes
# Names in files of a split's fields
STORED = {"row_offsets_E": "firsts_E", "is_correct_S": "rights_S", "segment_start_S": "seconds_S"}
ARRAYS = {one.name: STORED.get(one.name, one.name) for one in fields(TokenizedSplit)}
del ARRAYS["names"], ARRAYS["passages"]
NAMES = ("names_bytes", "names_starts")


def tokenized_split(
    root: Path, name: str, row: TaskRow, split: str, tokenizer: TextTokenizer, cache: Path, labelled: bool = True
) -> TokenizedSplit:
    """Return a split's tokens from the cache; if they are missing, tokenize the split and store them."""
    read = partial(read_split, root, row, split, labelled)

    def make() -> dict[str, Any]:
        made = _made(name, row, split, tokenizer, read())
        arrays = {stored: getattr(made, field) for field, stored in ARRAYS.items()}
        return arrays | dict(zip(NAMES, (made.names.tokens_T, made.names.starts_N), strict=True))

    parts = (tokenizer.fingerprint, tokenizer.max_length, labelled)
    arrays = stored_arrays(cache, root, name, row, split, FORM, parts, (*ARRAYS.values(), *NAMES), make)
    kept: dict[str, Any] = {field: arrays[stored] for field, stored in ARRAYS.items()}
    kept |= {field: int(kept[field]) for field in ("num_truncated", "num_lost")}
    passages = Passages(read, tokenizer) if row.kind is Kind.span else None
    return TokenizedSplit(**kept, names=Strings(*(arrays[name] for name in NAMES)), passages=passages)


def _made(name: str, row: TaskRow, split: str, tokenizer: TextTokenizer, examples: Sequence[Example]) -> TokenizedSplit:
    if row.stride is not None and row.stride > tokenizer.max_length:
        raise_invalid(f"{name}: stride", f"at most the {tokenizer.max_length} tokens of a window", row.stride)
    is_span, said = row.kind is Kind.span, []
    made = tokenize_windows(tokenizer, examples, row.stride) if is_span else tokenizer.tokenize(examples)
    if made.num_lost:
        lost = f"the answers of {made.num_lost} of {len(made)} questions fit into no window"
        said.append(f"{lost}: these questions are trained without an answer")
    if made.num_truncated:
        share = made.num_truncated / (len(made.starts_S) - 1)
        said.append(f"{made.num_truncated} texts ({share:.1%}) are truncated to {tokenizer.max_length} tokens")
    if without_token := int((made.words_W < 0).sum()):
        said.append(f"{without_token} of {len(made.words_W)} words have no token and are labelled {row.labels[0]}")
    for sentence in said:
        logger.warning(f"{name}, {split}: {sentence}")
    return made


def stored_arrays(
    cache: Path, root: Path, name: str, row: TaskRow, split: str, form: int, parts: Sequence[Any],
    arrays: Sequence[str], make: Callable[[], Mapping[str, NDArray[Any]]], kind: str = "",
) -> Mapping[str, NDArray[Any]]:  # fmt: skip
    """Return a split's arrays from the cache; remake them if file sizes or times, row, `form` or `parts` change."""
    files = source_files(root, row, split)
    states = [(os.path.relpath(file, root), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    key = hashlib.sha256(json.dumps([states, [form, asdict(row), split, *parts]], default=str).encode()).hexdigest()
    path = cache / f"{name}.{split.replace('/', '.')}.{kind}{key[:16]}.npz"
    found = _load(path, arrays)
    if found is not None:
        return found
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
