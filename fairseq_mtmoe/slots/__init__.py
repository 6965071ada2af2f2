"""Slots of feed-forward layers: dense layers, experts, and adapters."""

from fairseq_mtmoe.slots.adapter_slot import AdapterPlan, adapted, adapter_blocks
from fairseq_mtmoe.slots.expert_slot import ExpertPlan, ExpertSlot, expert_layers, expert_slots
from fairseq_mtmoe.slots.slot import (
    SPARSITY,
    AdapterPass,
    BatchContext,
    Block,
    dense,
    task_sparsity_loss,
)

__all__ = [
    "SPARSITY",
    "AdapterPass",
    "AdapterPlan",
    "BatchContext",
    "Block",
    "ExpertPlan",
    "ExpertSlot",
    "adapted",
    "adapter_blocks",
    "dense",
    "expert_layers",
    "expert_slots",
    "task_sparsity_loss",
]
