"""Expert slots in fairseq's transformer blocks, and what else the systems share."""

from fairseq_mtmoe.models._common.blocks import ExpertSlot, SlotPlan
from fairseq_mtmoe.models._common.expert_layers import expert_layers, expert_slots

__all__ = ["ExpertSlot", "SlotPlan", "expert_layers", "expert_slots"]
