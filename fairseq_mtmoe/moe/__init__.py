"""Sparse mixtures of experts in PyTorch.

docs/concepts/expert_layer.md explains the letters of shapes.
"""

from fairseq_mtmoe.moe.adapters import ADAPTERS, AdapterBank, BottleneckBank, LoraBank
from fairseq_mtmoe.moe.assignment import Assignment, priced_assignment
from fairseq_mtmoe.moe.assignment.running_prices import (
    RunningPrices,
    forget_prices,
    remember_prices,
    running_prices,
)
from fairseq_mtmoe.moe.dispatch import Dispatcher, DispatchPlan, LocalDispatcher
from fairseq_mtmoe.moe.experts import ExpertBank
from fairseq_mtmoe.moe.gates import (
    BaseGate,
    FixedGate,
    Gate,
    Routing,
    SwitchGate,
    TaskGate,
    build_gate,
)
from fairseq_mtmoe.moe.layer import MoELayer, balance_loss
from fairseq_mtmoe.moe.mixture import AdapterMixture, MixtureGate, TargetAdapter
from fairseq_mtmoe.moe.stats import ExpertLoad, MixtureWeights

__all__ = [
    "ADAPTERS",
    "AdapterBank",
    "AdapterMixture",
    "Assignment",
    "BaseGate",
    "BottleneckBank",
    "DispatchPlan",
    "Dispatcher",
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
    "balance_loss",
    "build_gate",
    "forget_prices",
    "priced_assignment",
    "remember_prices",
    "running_prices",
]
