"""The options in a checkpoint as data: nothing in them is looked up, evaluated or opened because a file says so.

fairseq hands options to OmegaConf, where `${oc.env:HOME}` becomes what the machine knows, and `eval`s some of those
that are text. An option of a file may therefore refer to nothing, and must be a literal where it would be evaluated.
"""

from __future__ import annotations

import ast
import re
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairseq_mtmoe.errors import UserError

# What fairseq evaluates of the options of models and tasks that are built from a file; `encoder_` may stand before it.
_EVALUATED = ("xformers_att_config", "adaptive_softmax_cutoff", "left_pad_source", "left_pad_target")
# `mtmoe upcycle` of 0.1.0 wrote the defaults of options that follow others as they are declared.
_FOLLOWING = re.compile(r"\$\{model\.(encoder|decoder)[._](ffn_)?embed_dim\}")
_MOST = 50_000  # OmegaConf needs a second and 70 MB for them; fairseq has about 400
_LONGEST = 10_000  # characters of a literal: Python takes 500 bytes for each
# fairseq looks for a file of the name that one of these has.
_REGISTRIES = ("scoring", "tokenizer", "bpe", "optimizer", "lr_scheduler", "criterion", "simul_type")
_NAME = re.compile(r"[\w-]*")

Option = tuple[str, Any]


def check_options(path: str | Path, state: dict[str, Any]) -> None:
    """Refuse a checkpoint whose options are not plain values.

    Raises:
        UserError: an option refers to something, or would be evaluated and is no literal; there are too many.
    """
    for count, (name, value) in enumerate(every_option([state.get("cfg"), state.get("args")])):
        if count == _MOST:
            _refuse(path, "options", f"be at most {_MOST:,}, but are more")
        if not isinstance(value, str):
            continue
        if name in _REGISTRIES and not _NAME.fullmatch(value):
            _refuse(path, name, f"be a name, but is {value[:80]!r}")
        if "${" in value and not _FOLLOWING.fullmatch(value):
            _refuse(path, name, f"be a plain value, but is {value[:80]!r}")
        if name.endswith(_EVALUATED) and not _is_literal(value):
            _refuse(path, name, f"be a literal, and no long one, but is {value[:80]!r}, which fairseq would execute")


def every_option(options: Any, name: str = "") -> Iterator[Option]:
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


def _refuse(path: str | Path, name: str, rule: str) -> None:
    raise UserError(f"`{path}` must not be trusted with its options: its `{name}` must {rule}; it was not loaded.")


def _is_literal(text: str) -> bool:
    if len(text) > _LONGEST:
        return False
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True
