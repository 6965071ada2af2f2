"""Dense first, then sparse, in one run: the switch itself.

"Tricks for Training Sparse Translation Models", §2.3: after `--dense-updates` updates every expert becomes a copy of
its block's feed-forward layer. The optimizer's moments are copied with the weights, so the update after the switch is
the one that dense training would have made, seen by each expert on its own tokens.
"""

import logging
from typing import Any

from torch import Tensor, distributed, nn

from fairseq_mtmoe.checkpoints.key_maps import expert_key
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.models._common.expert_layers import expert_slots
from fairseq_mtmoe.models._common.optimizer_state import (
    NamedState,
    map_tensors,
    read_state,
    trained_parameters,
    write_state,
)

logger = logging.getLogger(__name__)


def maybe_sparsify(model: nn.Module, optimizer: Any, update_num: int) -> bool:
    """Sparsify `model` and `optimizer` in place if its dense updates are over; True if this call did it.

    To be called before each training step with the number of updates done so far. A resumed run comes here with the
    same number as an uninterrupted one, so both switch at the same place, from the same random state.

    Raises:
        UserError: the model is wrapped for several processes, whose buckets of gradients know the dense model only.
    """
    dense_updates = getattr(model, "dense_updates", 0)
    if not dense_updates or not model.is_dense:
        return False
    model.switch_is_watched = True
    if distributed.is_initialized() and distributed.get_world_size() > 1:
        raise UserError(
            "`--dense-updates` must be used in one process: train dense there, and go on in several from its "
            "checkpoint made sparse by `mtmoe upcycle`."
        )
    if update_num < dense_updates:
        if update_num <= 1:  # what cannot work is said at once, not after the dense updates
            read_state(optimizer, trained_parameters(model))
        return False
    sparsify_with_optimizer(model, optimizer)
    logger.info(f"sparsified after {update_num} dense updates: {len(expert_slots(model))} layers got experts")
    return True


def sparsify_with_optimizer(model: nn.Module, optimizer: Any) -> None:
    """Turn every slot's feed-forward layer into experts, and the optimizer's state of it into theirs."""
    dense = trained_parameters(model)
    state = read_state(optimizer, dense)
    sparse_state = sparsify_with_state(model, state)
    write_state(optimizer, trained_parameters(model), sparse_state)


def sparsify_with_state(model: nn.Module, state: NamedState) -> NamedState:
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
            sparse[target] = map_tensors(entry, shapes[name], lambda value, n=count: _stacked(value, n))
    return sparse


def _stacked(value: Tensor, count: int) -> Tensor:
    return value.unsqueeze(0).repeat(count, *([1] * value.dim()))
