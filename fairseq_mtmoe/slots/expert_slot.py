"""A block's feed-forward layer, or an expert layer in its place.

"Tricks for Training Sparse Translation Models", §2.3.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from fairseq_mtmoe.checkpoints.key_maps import DENSE_TO_EXPERTS, EXPERTS, SHARED
from fairseq_mtmoe.errors import raise_invalid
from fairseq_mtmoe.moe import ExpertBank, MoELayer, SharedExpert, build_gate
from fairseq_mtmoe.moe.experts import UNITS, own_part, reinitialize_, shared_part
from fairseq_mtmoe.moe.gates import BaseGate, Gate
from fairseq_mtmoe.moe.parallel.placement import place_experts
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenShuffle
from fairseq_mtmoe.slots.slot import BatchContext, SlotBlock


@dataclass(frozen=True)
class ExpertPlan:
    """The experts of one block."""

    gate: type[Gate]
    num_experts: int
    combine: str
    num_tasks: int
    starts_dense: bool
    settings: Mapping[str, Any] = field(default_factory=dict)  # the gate's arguments beside its sizes
    shuffles_tokens: bool = True  # shuffle tokens over ranks before BASE assigns them
    timeout: float | None = None  # of the all-to-all, in seconds
    reinit_ratio: float = 0.0  # fraction of inner units that each copy re-initializes
    shared_size: int = 0  # number of the block's inner units in a shared expert
    dropout: float | None = None  # of the experts' inner activations; None: as in the dense layer

    def fill(self, block: SlotBlock) -> None:
        """Put an expert slot into a block (UserError: too few inner units to share)."""
        inner_size = block.fc1.out_features
        if not 0 <= self.shared_size < inner_size:
            rule = f"from 0 to {inner_size - 1}, below the inner size of a feed-forward"
            raise_invalid("--shared-expert-dim", rule, self.shared_size)
        block.slot = slot = ExpertSlot(self)
        if not self.starts_dense:
            slot.sparsify(block, copy_dense=False)


class ExpertSlot:
    """The block's own feed-forward layer until `sparsify`, and `moe` from then on."""

    def __init__(self, plan: ExpertPlan) -> None:
        self.plan = plan
        self.moe: MoELayer | None = None

    def __call__(self, block: SlotBlock, hidden: Tensor, branch_input: Tensor, context: BatchContext) -> Tensor:
        """Compute the branch; the gate reads the residual stream, experts the branch input."""
        if self.moe is None:
            return block.dense_branch(branch_input)
        mask_LB = None if context.padding_mask is None else context.padding_mask.t()
        output: Tensor = self.moe(hidden, branch_input, mask_LB, context.task_ids, context.token_counts)
        return output

    def sparsify(self, block: SlotBlock, copy_dense: bool = True) -> None:
        """Replace the feed-forward layer by experts: its copies, or randomly initialized."""
        fc1, plan, dropout = block.fc1, self.plan, block.activation_dropout_module.p
        placement = place_experts(plan.num_experts, plan.timeout)
        bank = ExpertBank(
            plan.num_experts,
            fc1.in_features,
            fc1.out_features - plan.shared_size,
            activation=block.activation_fn,
            dropout=dropout if plan.dropout is None else plan.dropout,
            placement=placement,
            draws=not copy_dense,
        )
        gate = build_gate(plan.gate, plan.num_experts, fc1.in_features, plan.num_tasks, **plan.settings)
        if isinstance(gate, BaseGate) and placement.is_sharded and plan.shuffles_tokens:
            gate.shuffle = TokenShuffle(placement)
        size = plan.shared_size
        shared = SharedExpert(fc1.in_features, size, block.activation_fn, dropout) if size else None
        if copy_dense:
            _divide(block, bank, shared)
            reinitialize_(bank, plan.reinit_ratio)
        elif shared is not None:
            shared.reset_parameters()
        moe = MoELayer(gate, bank, plan.combine, shared).to(device=fc1.weight.device, dtype=fc1.weight.dtype)
        moe.requires_grad_(fc1.weight.requires_grad).train(block.training)
        del block.fc1, block.fc2
        block.moe = self.moe = moe


@torch.no_grad()
def _divide(block: SlotBlock, bank: ExpertBank, shared: SharedExpert | None) -> None:
    """Copy a block's feed-forward layer into experts, and units into the shared expert."""
    layer = {name: block.get_parameter(key) for key, name in DENSE_TO_EXPERTS.items()}
    size = 0 if shared is None else shared.inner_size
    bank.copy_dense_(**{name: own_part(name, value, size) for name, value in layer.items()})
    for name, parameter in () if shared is None else shared.named_parameters():
        parameter.copy_(shared_part(name, layer[name], size))


def sparsify(model: nn.Module) -> None:
    """Copy each slot's feed-forward layer into its experts; gates start at random."""
    for path, slot in expert_slots(model).items():
        slot.sparsify(cast("SlotBlock", model.get_submodule(path)))


def sparse_targets(model: nn.Module) -> dict[str, tuple[str, Callable[[Tensor], Tensor]]]:
    """Return, by sparse parameter, its dense source and the function that takes its part."""
    targets: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {}
    for path, layer in expert_layers(model).items():
        size, count = 0 if layer.shared is None else layer.shared.inner_size, layer.experts.placement.count
        for key, name in DENSE_TO_EXPERTS.items():
            targets[f"{path}{EXPERTS}{name}"] = f"{path}.{key}", partial(_copies, name, size, count)
            if layer.shared is not None and name in UNITS:
                targets[f"{path}{SHARED}{name}"] = f"{path}.{key}", partial(_shared_copy, name, size)
    return targets


def _copies(name: str, shared_size: int, count: int, value: Tensor) -> Tensor:
    return own_part(name, value, shared_size).unsqueeze(0).repeat(count, *([1] * value.dim()))


def _shared_copy(name: str, shared_size: int, value: Tensor) -> Tensor:
    return shared_part(name, value, shared_size).clone()


def expert_blocks(model: nn.Module) -> dict[str, SlotBlock]:
    """Return the blocks that have or will have experts, by path: `encoder.layers.1`, …"""
    blocks = model.named_modules()
    return {
        path: block for path, block in blocks if isinstance(block, SlotBlock) and isinstance(block.slot, ExpertSlot)
    }


def expert_slots(model: nn.Module) -> dict[str, ExpertSlot]:
    """Return the expert slots by their blocks' dotted paths."""
    return {path: block.slot for path, block in expert_blocks(model).items() if isinstance(block.slot, ExpertSlot)}


def expert_layers(model: nn.Module) -> dict[str, MoELayer]:
    """Return the expert layers by their blocks' dotted paths; empty while dense."""
    return {path: slot.moe for path, slot in expert_slots(model).items() if slot.moe is not None}
