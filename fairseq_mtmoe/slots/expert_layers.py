"""Finding the expert slots of a model by their place: `encoder.layers.1`, `decoder.layers.3`, …"""

from typing import Dict

from torch import nn

from fairseq_mtmoe.moe import MoELayer
from fairseq_mtmoe.slots.expert_slot import ExpertSlot


def expert_slots(model: nn.Module) -> Dict[str, ExpertSlot]:
    """Every block that has, or will have, experts, by its dotted path."""
    return {path: block for path, block in model.named_modules() if isinstance(block, ExpertSlot)}


def expert_layers(model: nn.Module) -> Dict[str, MoELayer]:
    """Every expert layer that the model has now, by its block's dotted path; none while it is dense."""
    return {path: slot.moe for path, slot in expert_slots(model).items() if slot.moe is not None}
