"""Sparse mixtures of experts in PyTorch.

docs/development/expert_layer.md explains the letters of shapes.
"""

from fairseq_mtmoe.moe.adapters import AdapterBank, BottleneckBank, LoraBank
from fairseq_mtmoe.moe.assignment import priced_assignment
from fairseq_mtmoe.moe.assignment.running_prices import (
    RunningPrices,
    remember_prices,
    running_prices,
)
from fairseq_mtmoe.moe.dispatch import LocalDispatcher
from fairseq_mtmoe.moe.experts import ExpertBank
from fairseq_mtmoe.moe.gates import (
    BaseGate,
    FixedGate,
    Gate,
    Routing,
    SwitchGate,
    TaskGate,
    Tokens,
    build_gate,
)
from fairseq_mtmoe.moe.layer import MoELayer, balance_loss
from fairseq_mtmoe.moe.mixture import MixtureGate, TargetAdapter
from fairseq_mtmoe.moe.stats import ExpertLoad, MixtureWeights

__all__ = [
    "AdapterBank",
    "BaseGate",
    "BottleneckBank",
    "ExpertBank",
    "ExpertLoad",
    "FixedGate",
    "Gate",
    "LocalDispatcher",
    "LoraBank",
    "MixtureGate",
    "MixtureWeights",
    "MoELayer",
    "Routing",
    "RunningPrices",
    "SwitchGate",
    "TargetAdapter",
    "TaskGate",
    "Tokens",
    "balance_loss",
    "build_gate",
    "priced_assignment",
    "remember_prices",
    "running_prices",
]
