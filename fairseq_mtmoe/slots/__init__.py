"""What can take the place of a block's feed-forward layer."""

from fairseq_mtmoe.slots.expert_layers import expert_layers, expert_slots
from fairseq_mtmoe.slots.expert_slot import ExpertSlot
from fairseq_mtmoe.slots.plan import SlotPlan

__all__ = ["ExpertSlot", "SlotPlan", "expert_layers", "expert_slots"]
