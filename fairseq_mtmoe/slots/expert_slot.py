"""A block's feed-forward layer, or an expert layer in its place.

"Tricks for Training Sparse Translation Models", §2.3.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from fairseq_mtmoe.checkpoints.key_maps import DENSE_TO_EXPERTS, EXPERTS
from fairseq_mtmoe.moe import ExpertBank, MoELayer, build_gate
from fairseq_mtmoe.moe.gates import BaseGate, Gate
from fairseq_mtmoe.moe.parallel.placement import place_experts
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenShuffle
from fairseq_mtmoe.slots.slot import BatchContext, Block, dense


@dataclass(frozen=True)
class ExpertPlan:
    """The experts of one block."""

    gate: type[Gate]
    num_experts: int
    combine: str
    num_tasks: int
    starts_dense: bool
    # The gate's arguments beside its sizes
    settings: Mapping[str, Any] = field(default_factory=dict)
    shuffles_tokens: bool = True  # shuffle tokens over ranks before BASE assigns them
    timeout: float | None = None  # of the all-to-all, in seconds
    dropout: float | None = None  # of the experts' inner activations; None: as in the dense layer

    def fill(self, block: Block) -> None:
        """Put an expert slot into a block."""
        block.slot = slot = ExpertSlot(self)
        if not self.starts_dense:
            slot.sparsify(block, copy_dense=False)


class ExpertSlot:
    """The block's own feed-forward layer until `sparsify`, and `moe` from then on."""

    def __init__(self, plan: ExpertPlan) -> None:
        self.plan = plan
        self.moe: MoELayer | None = None

    def __call__(
        self, block: Block, hidden: Tensor, branch_input: Tensor, context: BatchContext
    ) -> Tensor:
        """Compute the branch.

        The gate reads the residual stream, experts read the branch input.
        """
        if self.moe is None:
            return dense(block, hidden, branch_input, context)
        mask_LB = None if context.padding_mask is None else context.padding_mask.t()
        output: Tensor = self.moe(
            hidden, branch_input, mask_LB, context.task_ids, context.token_counts
        )
        return output

    def sparsify(self, block: Block, copy_dense: bool = True) -> None:
        """Replace the feed-forward layer by experts: copies of it, or random ones."""
        fc1 = block.fc1
        plan = self.plan
        dropout = block.activation_dropout_module.p
        placement = place_experts(plan.num_experts, plan.timeout)
        bank = ExpertBank(
            plan.num_experts,
            fc1.in_features,
            fc1.out_features,
            activation=block.activation_fn,
            dropout=dropout if plan.dropout is None else plan.dropout,
            placement=placement,
            draws=not copy_dense,
        )
        gate = build_gate(
            plan.gate, plan.num_experts, fc1.in_features, plan.num_tasks, **plan.settings
        )
        if isinstance(gate, BaseGate) and placement.is_sharded and plan.shuffles_tokens:
            gate.shuffle = TokenShuffle(placement)
        if copy_dense:
            for key, name in DENSE_TO_EXPERTS.items():
                bank.get_parameter(name).data.copy_(block.get_parameter(key).data)
        moe = MoELayer(gate, bank, plan.combine)
        moe = moe.to(device=fc1.weight.device, dtype=fc1.weight.dtype)
        moe.requires_grad_(fc1.weight.requires_grad).train(block.training)
        del block.fc1, block.fc2
        block.moe = self.moe = moe


def sparsify_all_slots(model: nn.Module) -> None:
    """Copy each slot's feed-forward layer into its experts; gates start at random."""
    for path, slot in expert_slots(model).items():
        slot.sparsify(cast("Block", model.get_submodule(path)))


def sparse_targets(model: nn.Module) -> dict[str, tuple[str, Callable[[Tensor], Tensor]]]:
    """Return, by sparse parameter, its dense source and the function that copies it."""
    targets: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {}
    for path, layer in expert_layers(model).items():
        for key, name in DENSE_TO_EXPERTS.items():
            copies = partial(_copies, layer.experts.placement.count)
            targets[f"{path}{EXPERTS}{name}"] = f"{path}.{key}", copies
    return targets


def _copies(count: int, value: Tensor) -> Tensor:
    return torch.stack([value] * count)


def expert_slots(model: nn.Module) -> dict[str, ExpertSlot]:
    """Return the expert slots, dense or sparse, by their blocks' dotted paths.

    A path is `encoder.layers.1`, for example.
    """
    return {
        path: block.slot
        for path, block in model.named_modules()
        if isinstance(block, Block) and isinstance(block.slot, ExpertSlot)
    }


def expert_layers(model: nn.Module) -> dict[str, MoELayer]:
    """Return the expert layers by their blocks' dotted paths; empty while dense."""
    return {path: slot.moe for path, slot in expert_slots(model).items() if slot.moe is not None}
