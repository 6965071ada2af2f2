"""A block's feed-forward layer, or a mixture of experts in its place.

"Tricks for Training Sparse Translation Models", §2.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_mtmoe.errors import raise_invalid
from fairseq_mtmoe.moe import ExpertBank, MoELayer, SharedExpert, build_gate
from fairseq_mtmoe.moe.experts import own_part, reinitialize_, shared_part
from fairseq_mtmoe.moe.gates import BaseGate, Gate
from fairseq_mtmoe.moe.parallel.placement import place_experts
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenShuffle
from fairseq_mtmoe.slots.slot import BatchContext, SlotBlock


@dataclass(frozen=True)
class ExpertPlan:
    """What one block's experts are: the class of gate, their number, how they are combined, the number of tasks.

    `settings` is what the gate is made with beside its sizes. `timeout` is in seconds, for the exchange between
    processes; `shuffles_tokens` mixes theirs before BASE assigns. `reinit_ratio` is the share of inner units that each
    copy draws anew; so many as `shared_size` of the block's own inner units are a shared expert's. `dropout` is that of
    inner values in experts; None: as in the block's own layer.
    """

    gate: type[Gate]
    num_experts: int
    combine: str
    num_tasks: int
    starts_dense: bool
    settings: Mapping[str, Any] = field(default_factory=dict)
    shuffles_tokens: bool = True
    timeout: float | None = None
    reinit_ratio: float = 0.0
    shared_size: int = 0
    dropout: float | None = None

    def fill(self, block: SlotBlock) -> None:
        """Put an expert slot into a block, with its experts unless the model starts dense.

        Raises:
            UserError: the block has not so many inner units to share.
        """
        inner_size = block.fc1.out_features
        if not 0 <= self.shared_size < inner_size:
            rule = f"from 0 to {inner_size - 1}, below the inner size of a feed-forward"
            raise_invalid("--shared-expert-dim", rule, self.shared_size)
        slot = ExpertSlot(self)
        block.slot = slot
        if not self.starts_dense:
            slot.sparsify(block, copy_dense=False)


class ExpertSlot:
    """Dense, then sparse: the block's own feed-forward layer until `sparsify`, and `moe` from then on."""

    def __init__(self, plan: ExpertPlan) -> None:
        self.plan = plan
        self.moe: MoELayer | None = None

    def __call__(self, block: SlotBlock, hidden: Tensor, branch_input: Tensor, context: BatchContext) -> Tensor:
        """See `Slot`. The gate reads the residual stream itself, the experts what the dense layer would read."""
        if self.moe is None:
            return block.dense_branch(branch_input)
        mask_LB = None if context.padding_mask is None else context.padding_mask.t()
        output: Tensor = self.moe(hidden, branch_input, mask_LB, context.task_ids, context.token_counts)
        return output

    def sparsify(self, block: SlotBlock, copy_dense: bool = True) -> None:
        """Replace the block's feed-forward layer by experts: copies of it, or with an initialisation of their own."""
        fc1, plan = block.fc1, self.plan
        placement = place_experts(plan.num_experts, plan.timeout)
        bank = ExpertBank(
            plan.num_experts,
            fc1.in_features,
            fc1.out_features - plan.shared_size,
            activation=block.activation_fn,
            dropout=block.activation_dropout_module.p if plan.dropout is None else plan.dropout,
            placement=placement,
            draws=not copy_dense,
        )
        gate = build_gate(plan.gate, plan.num_experts, fc1.in_features, plan.num_tasks, **plan.settings)
        if isinstance(gate, BaseGate) and placement.is_sharded and plan.shuffles_tokens:
            gate.shuffle = TokenShuffle(placement)
        shared = self._shared_expert(block)
        if copy_dense:
            _divide(block, bank, shared)
            reinitialize_(bank, plan.reinit_ratio)
        elif shared is not None:
            shared.reset_parameters()
        moe = MoELayer(gate, bank, plan.combine, shared).to(device=fc1.weight.device, dtype=fc1.weight.dtype)
        moe.requires_grad_(fc1.weight.requires_grad)
        moe.train(block.training)
        del block.fc1, block.fc2
        block.moe = self.moe = moe

    def _shared_expert(self, block: SlotBlock) -> SharedExpert | None:
        size, dropout = self.plan.shared_size, block.activation_dropout_module.p
        return SharedExpert(block.fc1.in_features, size, block.activation_fn, dropout) if size else None


@torch.no_grad()
def _divide(block: SlotBlock, bank: ExpertBank, shared: SharedExpert | None) -> None:
    """Make every expert a copy of a block's feed-forward layer, but for the units that are the shared expert's."""
    layer = {"fc1_weight": block.fc1.weight, "fc1_bias": block.fc1.bias}
    layer |= {"fc2_weight": block.fc2.weight, "fc2_bias": block.fc2.bias}
    size = 0 if shared is None else shared.inner_size
    bank.copy_dense_(**{name: own_part(name, value, size) for name, value in layer.items()})
    for name, parameter in () if shared is None else shared.named_parameters():
        parameter.copy_(shared_part(name, layer[name], size))


def expert_blocks(model: nn.Module) -> dict[str, SlotBlock]:
    """Every block that has, or will have, experts, by its dotted path: `encoder.layers.1`, `decoder.layers.3`, …"""
    blocks = ((path, block) for path, block in model.named_modules() if isinstance(block, SlotBlock))
    return {path: block for path, block in blocks if isinstance(block.slot, ExpertSlot)}


def expert_slots(model: nn.Module) -> dict[str, ExpertSlot]:
    """The slots of these blocks."""
    return {path: block.slot for path, block in expert_blocks(model).items() if isinstance(block.slot, ExpertSlot)}


def expert_layers(model: nn.Module) -> dict[str, MoELayer]:
    """Every expert layer that the model has now, by its block's dotted path; none while it is dense."""
    return {path: slot.moe for path, slot in expert_slots(model).items() if slot.moe is not None}
