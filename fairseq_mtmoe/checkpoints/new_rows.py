"""Add symbols to a checkpoint's vocabulary: rows that are means of existing rows."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_mtmoe.checkpoints.key_maps import (
    DECODER_EMBEDDINGS,
    EMBEDDINGS,
    ENCODER_EMBEDDINGS,
    OUTPUT,
    OUTPUT_BIAS,
    without_best,
)
from fairseq_mtmoe.checkpoints.sharding import State, averages_of
from fairseq_mtmoe.core.errors import UserError

Means = Sequence[Sequence[int]]  # for each new row, the old rows to average
_AT_ONCE = 1 << 14  # rows copied for one sum: a mean can be over all rows


def with_rows(state: State, source: Means, target: Means) -> State:
    """Return a copy of a checkpoint, whole or a shared part, with new embedding rows.

    Types and tied tensors stay. The optimizer's state is dropped, as it has the old shapes.

    Args:
        state: the checkpoint.
        source: for each new symbol of the source vocabulary, the old rows to average.
        target: the same for the target vocabulary.
    """
    means = {
        ENCODER_EMBEDDINGS: source,
        **dict.fromkeys((DECODER_EMBEDDINGS, OUTPUT, OUTPUT_BIAS), target),
    }
    result: State = {**state, "model": _grown(state["model"], means)}
    result.pop("last_optimizer_state", None)
    result["extra_state"] = without_best(state.get("extra_state") or {})
    for name, average in averages_of(state).items():
        result["extra_state"][name] = _grown(average, means)
    return result


def expect_rows(path: object, model: dict[str, Tensor], source: int, target: int) -> None:
    """Raise a `UserError` if a model's matrices do not have a row per symbol."""
    for name, symbols in zip(EMBEDDINGS, (source, target), strict=True):
        if name not in model or len(model[name]) != symbols:
            rows = len(model[name]) if name in model else "no"
            raise UserError(
                f"`{path}` must have a row of `{name}` for each of the {symbols:,} symbols of its "
                f"vocabulary, but has {rows} rows."
            )
    if any("adaptive_softmax" in name for name in model):
        raise UserError(
            f"`{path}` cannot get more symbols, because it has `--adaptive-softmax-cutoff`."
        )


def _grown(named: dict[str, Any], means: dict[str, Means]) -> dict[str, Any]:
    grown: dict[tuple[Any, ...], Tensor] = {}
    result = copy.copy(named)  # with the attributes of a model's state
    for name in means.keys() & named.keys():
        old = named[name]
        memory = (old.untyped_storage().data_ptr(), old.storage_offset(), old.shape)
        if memory not in grown:
            grown[memory] = torch.cat([old, _means(old, means[name])])
        result[name] = grown[memory]
    return result


def _means(old: Tensor, means: Means) -> Tensor:
    """Return means of a matrix's or bias's rows, (new rows, …)."""
    mean_of: dict[tuple[int, ...], Tensor] = {}  # many new symbols share the same rows
    for rows in map(tuple, means):
        if rows not in mean_of:
            parts = (list(rows[at : at + _AT_ONCE]) for at in range(0, len(rows), _AT_ONCE))
            sums = torch.stack([old[part].sum(0, dtype=torch.float) for part in parts])
            mean_of[rows] = sums.sum(0) / len(rows)
    return torch.stack([mean_of[tuple(rows)] for rows in means]).to(old.dtype)
