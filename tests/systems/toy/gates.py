"""The toy's gate."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from fairseq_mtmoe.moe.gates import Gate, Routing, Tokens


class CosineGate(Gate):
    """The expert whose vector has the direction nearest to the token's, top-1; `sharpness` multiplies the cosines."""

    def __init__(self, num_experts: int, hidden_size: int, num_tasks: int, sharpness: float) -> None:
        super().__init__(num_experts, hidden_size, num_tasks)
        self.sharpness = sharpness
        self.weight = nn.Parameter(torch.randn(num_experts, hidden_size))

    def route(self, tokens: Tokens) -> Routing:
        cosine_TN = F.normalize(tokens.hidden_TH, dim=1) @ F.normalize(self.weight.float(), dim=1).t()
        gate_T, expert_T = (self.sharpness * cosine_TN).softmax(1).max(1)
        return Routing(expert_T, gate_T, uniform_gate=1 / self.num_experts)
