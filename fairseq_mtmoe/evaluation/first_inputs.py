"""The covariances Σ x xᵀ of what a model's first block is given of each task's data.

Tokens are those of the sequences that the model reads; a text in several of them, such as a candidate's premise or the
overlap of windows, counts in each. Of each batch only what stands before the first block is computed.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.evaluation.predictor import PredictedSet, Predictor


class _Reached(Exception):
    """A pass came to its first block, and need not go on."""


def first_inputs(model: Any, net_input: dict[str, Any]) -> Tensor:
    """Return the rows (N, H) of an encoder's first block's input that are no padding."""
    found: list[Tensor] = []

    def reached(block: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        x, _, batch = arguments
        found.append(batch.pad(x))
        raise _Reached

    hook = model.encoder.layers[0].register_forward_pre_hook(reached)
    try:
        with suppress(_Reached):
            model(**net_input)
    finally:
        hook.remove()
    (x_BLH,) = found
    real_NH: Tensor = x_BLH[net_input["src_tokens"].ne(model.encoder.config.pad_token_id)]
    return real_NH


@dataclass
class CovarianceSums:
    """Σ x xᵀ of one task's inputs of one model's first block, (H, H), and how many they were."""

    sums_HH: NDArray[np.float64]
    tokens: int = 0


@torch.no_grad()
def covariance_sums(
    predictor: Predictor, sets: Iterable[PredictedSet], advance: Callable[[int], None] = lambda count: None
) -> CovarianceSums:
    """Return the sums over the sets of one task, which are read one after the other."""
    width = predictor.model.encoder.config.hidden_size
    sums = CovarianceSums(np.zeros((width, width)))
    for chosen in sets:
        (examples,) = predictor.read([chosen])
        for sample in predictor.batches(chosen, examples):
            x_NH = first_inputs(predictor.model, sample["net_input"]).double()
            sums.sums_HH += (x_NH.T @ x_NH).cpu().numpy()
            sums.tokens += len(x_NH)
            advance(len(sample["id"]))
        if not np.isfinite(sums.sums_HH).all():
            raise UserError(f"`{predictor.checkpoint}` must give finite numbers for {chosen.key}, but does not.")
    return sums
