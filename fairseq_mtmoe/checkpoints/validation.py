"""Whether what a checkpoint file holds may be loaded, whoever wrote it: tensors and plain containers.

`read` is the one way in. torch's `weights_only` runs no code of a file. fairseq, however, hands options to OmegaConf,
where `${oc.env:HOME}` becomes what the machine knows, and `eval`s some of those that are text: an option of a file must
refer to nothing, and be a literal where it would be evaluated. Tensors may not become much larger than the file.
"""

from __future__ import annotations

import ast
import os
import re
import zipfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import torch
from torch import Tensor

from fairseq_mtmoe.checkpoints import schema
from fairseq_mtmoe.checkpoints.checksum import ARCHIVE, is_plain
from fairseq_mtmoe.errors import UserError

_GROWTH = 8  # times the file's size: tied weights are three tensors over one storage
_SMALL = 1 << 20  # bytes that do no harm
# What fairseq evaluates of the options of models and tasks that are built from a file; `encoder_` may stand before it.
_EVALUATED = ("xformers_att_config", "adaptive_softmax_cutoff", "left_pad_source", "left_pad_target")
# `mtmoe upcycle` of 0.1.0 wrote the defaults of options that follow others as they are declared.
_FOLLOWING = re.compile(r"\$\{model\.(encoder|decoder)[._](ffn_)?embed_dim\}")
_MOST = 50_000  # OmegaConf needs a second and 70 MB for them; fairseq has about 400
_LONGEST = 10_000  # characters of a literal: Python takes 500 bytes for each
# fairseq looks for a file of the name that one of these has.
_REGISTRIES = ("scoring", "tokenizer", "bpe", "optimizer", "lr_scheduler", "criterion", "simul_type")
_NAME = re.compile(r"[\w-]*")


def read(path: str | Path, file: BinaryIO, mapped: bool = False) -> dict[str, Any]:
    """Return the content of an open file of `torch.save`, on the CPU; `mapped`: a tensor is read when it is touched.

    `checksum.py` says whether the file is whole.

    Args:
        path: the file's name, for sentences.
        file: whose bytes are both checked and loaded.

    Raises:
        UserError: it holds no dictionary, tensors larger than a file of its size should have, a value that is not what
            `schema.py` says, or options that are no plain values.
        Exception: what torch or Python's zip reader raise where a file is damaged, or would execute something.
    """
    file.seek(0)
    is_archive = file.read(len(ARCHIVE)) == ARCHIVE
    if is_archive:
        with zipfile.ZipFile(file) as archive:
            if not is_plain(archive):
                _refuse(path, "records as torch writes them", "compressed or overlapping ones")
    state = _loaded(path, file, mapped and is_archive)
    if not isinstance(state, dict):
        _refuse(path, "a checkpoint's dictionary", f"a {type(state).__name__}")
    _check_tensors(path, state, _GROWTH * os.fstat(file.fileno()).st_size + _SMALL)
    _check_options(path, state)
    schema.check(path, state)
    return state


def _loaded(path: str | Path, file: BinaryIO, mapped: bool) -> Any:
    """What torch loads of an open file. To map a file torch needs a name: that of the descriptor, where it has one."""
    file.seek(0)
    if not mapped:
        return torch.load(file, map_location="cpu", weights_only=True)
    descriptor = f"/proc/self/fd/{file.fileno()}"
    name = descriptor if os.path.exists(descriptor) else str(path)
    try:
        return torch.load(name, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError as error:  # which says the name that torch was given
        error.args = (str(error).replace(name, str(path)),)
        raise


def _refuse(path: str | Path, rule: str, found: str) -> NoReturn:
    raise UserError(f"`{path}` must hold {rule}, but holds {found}; it was not loaded.")


def _check_tensors(path: str | Path, state: dict[str, Any], most: int) -> None:
    """Refuse tensors without values, and more than `most` bytes of them, were each one a tensor of its own."""
    size = 0
    for value in _tensors(state):
        if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
            _refuse(path, "tensors with all their values", "some without")
        size += value.numel() * value.element_size()
    if size > most:
        _refuse(path, "about as much as it is large", "what becomes many times that when it is used")


def _tensors(state: dict[str, Any]) -> Iterator[Tensor]:
    """Every tensor in nested containers, once."""
    seen, rest = set(), [state]
    while rest:
        value: Any = rest.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, dict | Namespace):
            rest.extend((vars(value) if isinstance(value, Namespace) else value).values())
        elif isinstance(value, list | tuple | set):
            rest.extend(value)


def _check_options(path: str | Path, state: dict[str, Any]) -> None:
    """Refuse a checkpoint whose options are not plain values.

    Raises:
        UserError: an option refers to something, or would be evaluated and is no literal; there are too many.
    """
    for count, (name, value) in enumerate(every_option([state.get("cfg"), state.get("args")])):
        if count == _MOST:
            _refuse_option(path, "options", f"be at most {_MOST:,}, but are more")
        if not isinstance(value, str):
            continue
        if name in _REGISTRIES and not _NAME.fullmatch(value):
            _refuse_option(path, name, f"be a name, but is {value[:80]!r}")
        if "${" in value and not _FOLLOWING.fullmatch(value):
            _refuse_option(path, name, f"be a plain value, but is {value[:80]!r}")
        if name.endswith(_EVALUATED) and not _is_literal(value):
            _refuse_option(
                path, name, f"be a literal, and no long one, but is {value[:80]!r}, which fairseq would execute"
            )


def every_option(options: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Each value in nested options, containers left out, with the name that it has there."""
    if isinstance(options, Namespace):
        options = vars(options)
    if isinstance(options, dict):
        for key, value in options.items():
            yield "", key
            yield from every_option(value, str(key))
    elif isinstance(options, list | tuple | set):
        for value in options:
            yield from every_option(value, name)
    else:
        yield name, options


def _refuse_option(path: str | Path, name: str, rule: str) -> NoReturn:
    raise UserError(f"`{path}` must not be trusted with its options: its `{name}` must {rule}; it was not loaded.")


def _is_literal(text: str) -> bool:
    if len(text) > _LONGEST:
        return False
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True
