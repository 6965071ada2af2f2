"""Sparsifying during training: dense first, then sparse, in one run.

"Tricks for Training Sparse Translation Models", §2.3: after `--dense-updates` updates every expert
becomes a copy of its block's feed-forward layer, with the optimizer's moments.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from fairseq_mtmoe.checkpoints.optimizer_state import OptimizerState, map_entry, trained_parameters
from fairseq_mtmoe.slots.expert_slot import expert_slots, sparse_targets, sparsify_all_slots
from fairseq_mtmoe.slots.sparse_model import SparseModel

logger = logging.getLogger(__name__)


def maybe_sparsify(model: nn.Module, optimizer: Any, update_num: int) -> bool:
    """Sparsify `model` and `optimizer` in place once the dense updates are over.

    Returns whether this call did so. Called before each training step on every rank. The caller
    must rebuild a DDP wrapper of the model. Raises `UserError` for unsupported optimizers.
    """
    if not isinstance(model, SparseModel) or not model.dense_updates or not model.is_dense:
        return False
    parameters = trained_parameters(model)
    if update_num < model.dense_updates:
        if update_num <= 1:
            # An unsupported optimizer is refused before the dense updates, not after them.
            OptimizerState.capture(optimizer, parameters)
        return False
    dense_state = OptimizerState.capture(optimizer, parameters)
    sparsify_with_state(model, dense_state).restore(optimizer, trained_parameters(model))
    num_layers = len(expert_slots(model))
    sentence = f"sparsified after {update_num} dense updates: {num_layers} layers got experts"
    logger.info(sentence, extra={"for_screen": True})  # see training/screen.py
    return True


def sparsify_with_state(model: SparseModel, state: OptimizerState) -> OptimizerState:
    """Sparsify `model`; return the optimizer's `state` for the sparse parameters."""
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    sparsify_all_slots(model)
    sparse = OptimizerState()
    copied = set()
    for target, (source, take) in sparse_targets(model).items():
        copied.add(source)
        if source in state:
            sparse[target] = map_entry(state[source], shapes[source], take)
    for name in state.keys() - copied:
        sparse[name] = map_entry(state[name], shapes[name], Tensor.clone)
    return sparse


def sparsify_average(average: Any, model: nn.Module) -> None:
    """Sparsify fairseq's `EMA` of a model that became sparse; see `averaged_values`."""
    copy = average.get_model()
    dense = dict(copy.state_dict())
    sparsify_all_slots(copy)
    copy.requires_grad_(False)
    state = copy.state_dict()
    for key, value in averaged_values(model, dense):
        if key not in dense:
            state[key].copy_(value)
    if average.fp32_params:
        average.fp32_params = {
            key: value.float() for key, value in averaged_values(model, average.fp32_params)
        }


def averaged_values(model: nn.Module, dense: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield keys and values of the average of a model that became sparse.

    dense: the average before. Experts are copies of its own layers; new parameters are the model's.
    """
    sources = sparse_targets(model)
    for key, value in model.state_dict().items():
        if key in sources:
            source, take = sources[key]
            yield key, take(dense[source])
        else:
            yield key, dense.get(key, value)


def begin_with(model: nn.Module, dense: Mapping[str, Tensor]) -> None:
    """Load a dense model's weights into a new model on a CPU; experts become copies.

    Parameters that the dense model lacks stay as they are.
    """
    if isinstance(model, SparseModel) and not model.is_dense:
        dense = dict(averaged_values(model, dense))
    model.load_state_dict(dict(dense))
