"""What can take the place of a block's feed-forward layer."""

from fairseq_mtmoe.slots.batch_context import BatchContext
from fairseq_mtmoe.slots.expert_slot import ExpertPlan, ExpertSlot, expert_blocks, expert_layers, expert_slots
from fairseq_mtmoe.slots.slot import Slot, SlotBlock, SlotPlan, dense

__all__ = [
    "BatchContext",
    "ExpertPlan",
    "ExpertSlot",
    "Slot",
    "SlotBlock",
    "SlotPlan",
    "dense",
    "expert_blocks",
    "expert_layers",
    "expert_slots",
]
