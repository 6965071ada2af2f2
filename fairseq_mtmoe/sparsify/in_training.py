"""Dense first, then sparse, in one run: the moment when the model becomes sparse.

"Tricks for Training Sparse Translation Models", §2.3: after `--dense-updates` updates every expert becomes a copy of
its block's feed-forward layer. The optimizer's moments are copied with the weights, so the next update is the one that
dense training would have made, seen by each expert on its own tokens.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from torch import Tensor, nn

from fairseq_mtmoe.checkpoints.key_maps import expert_key
from fairseq_mtmoe.optim.optimizer_state import read_state, trained_parameters, write_state
from fairseq_mtmoe.optim.saved_state import NamedState, map_tensors
from fairseq_mtmoe.slots import expert_slots
from fairseq_mtmoe.slots.sparse_model import SparseModel

logger = logging.getLogger(__name__)


def maybe_sparsify(model: nn.Module, optimizer: Any, update_num: int) -> bool:
    """Sparsify `model` and `optimizer` in place if its dense updates are over; True if this call did it.

    To be called before each training step with the number of updates done so far. A resumed run comes here with the
    same number as an uninterrupted one, so both become sparse at the same place, from the same random state.

    In several processes each of them calls it, and gets its own experts; a wrapper of the model for several processes
    knows the dense parameters only, and must be made anew.

    Raises:
        UserError: the optimizer's state cannot be carried over; see `read_state`.
    """
    if not isinstance(model, SparseModel) or not model.dense_updates or not model.is_dense:
        return False
    if update_num < model.dense_updates:
        if update_num <= 1:  # what cannot work is said at once, not after the dense updates
            read_state(optimizer, trained_parameters(model))
        return False
    sparsify_with_optimizer(model, optimizer)
    sentence = f"sparsified after {update_num} dense updates: {len(expert_slots(model))} layers got experts"
    logger.info(sentence, extra={"for_screen": True})  # see training/screen.py
    return True


def sparsify_with_optimizer(model: SparseModel, optimizer: Any) -> None:
    """Turn every slot's feed-forward layer into experts, and the optimizer's state of it into theirs."""
    dense = trained_parameters(model)
    state = read_state(optimizer, dense)
    sparse_state = sparsify_with_state(model, state)
    write_state(optimizer, trained_parameters(model), sparse_state)


def sparsify_with_state(model: SparseModel, state: NamedState) -> NamedState:
    """Sparsify `model`; returns the optimizer's `state` of its dense parameters under the names of the sparse ones."""
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    slots = expert_slots(model)
    model.sparsify()
    sparse: NamedState = {}
    for name, entry in state.items():
        target = expert_key(name, set(slots))
        if target is None:
            sparse[name] = map_tensors(entry, shapes[name], Tensor.clone)
        else:
            count = model.get_parameter(target).shape[0]
            sparse[target] = map_tensors(entry, shapes[name], partial(_stacked, count=count))
    return sparse


def sparsify_average(average: Any, model: nn.Module) -> None:
    """Sparsify fairseq's moving average of a model that became sparse: experts from its own weights, gates the model's.

    Args:
        average: fairseq's `EMA`, with float32 copies or without.
        model: the model, already sparse.
    """
    copy = average.get_model()
    slots, before = set(expert_slots(copy)), set(copy.state_dict())
    copy.sparsify()
    copy.requires_grad_(False)
    experts = {target: key for key in before if (target := expert_key(key, slots)) is not None}
    values, own = model.state_dict(), copy.state_dict()
    for key in set(own) - before - set(experts):
        own[key].copy_(values[key])
    if average.fp32_params:
        dense = dict(average.fp32_params)
        average.fp32_params = {
            key: _stacked(dense[experts[key]], len(value)) if key in experts else dense.get(key, value.float())
            for key, value in own.items()
        }


def _stacked(value: Tensor, count: int) -> Tensor:
    return value.unsqueeze(0).repeat(count, *([1] * value.dim()))
