"""Sparse mixtures of experts in PyTorch. README.md has the letters of the shapes and a picture."""

from fairseq_mtmoe.moe.assignment import balanced_assignment
from fairseq_mtmoe.moe.dispatch import DispatchPlan, combine, dispatch
from fairseq_mtmoe.moe.experts import ExpertBank
from fairseq_mtmoe.moe.gates import BaseGate, Gate, Routing, SwitchGate, TaskGate, build_gate
from fairseq_mtmoe.moe.layer import MoELayer
from fairseq_mtmoe.moe.losses import balance_loss
from fairseq_mtmoe.moe.stats import ExpertLoad

__all__ = [
    "BaseGate",
    "DispatchPlan",
    "ExpertBank",
    "ExpertLoad",
    "Gate",
    "MoELayer",
    "Routing",
    "SwitchGate",
    "TaskGate",
    "balance_loss",
    "balanced_assignment",
    "build_gate",
    "combine",
    "dispatch",
]
