"""Slow reference of expert layers, token by token."""

import torch
from torch import Tensor
from torch.nn import functional as F

from fairseq_mtmoe.moe.assignment import assigned
from fairseq_mtmoe.moe.gates import BaseGate, FixedGate, TaskGate
from fairseq_mtmoe.moe.layer import MoELayer


def slow_forward(
    layer: MoELayer,
    hidden: Tensor,
    branch_input: Tensor,
    padding_mask: Tensor | None = None,
    task_ids: Tensor | None = None,
) -> Tensor:
    """Compute `layer(...)` without the experts' dropout."""
    hidden_TH, branch_TH = (tensor.reshape(-1, hidden.shape[-1]) for tensor in (hidden, branch_input))
    tasks = [None] * len(hidden_TH) if task_ids is None else task_ids.expand(hidden.shape[:-1]).reshape(-1).tolist()
    padding_T = None if padding_mask is None else padding_mask.reshape(-1)
    padding = [False] * len(hidden_TH) if padding_T is None else padding_T.tolist()
    logits = {token: _logits(layer, hidden_TH[token], tasks[token]) for token, is_padding in enumerate(padding)
              if not is_padding}  # fmt: skip
    experts, bank = _choose(layer, logits, hidden_TH, padding_T), layer.experts
    outputs = [torch.zeros_like(row) for row in branch_TH]
    for token, logits_N in logits.items():
        expert = experts[token]
        inner_F = bank.activation(F.linear(branch_TH[token], bank.fc1_weight[expert], bank.fc1_bias[expert]))
        output = F.linear(inner_F, bank.fc2_weight[expert], bank.fc2_bias[expert])
        outputs[token] = (_scale(layer, logits_N, expert) * output).to(branch_TH.dtype)
    return torch.stack(outputs).view_as(branch_input) if outputs else branch_input.clone()


def _logits(layer: MoELayer, hidden_H: Tensor, task: int | None) -> Tensor:
    if isinstance(layer.gate, FixedGate):
        return torch.eye(layer.gate.num_experts)[task]
    weight_NH = layer.gate.weight[task] if isinstance(layer.gate, TaskGate) else layer.gate.weight
    return torch.stack([(hidden_H.float() * row_H.float()).sum() for row_H in weight_NH])


def _choose(layer: MoELayer, logits: dict[int, Tensor], hidden_TH: Tensor, padding_T: Tensor | None) -> dict[int, int]:
    gate = layer.gate
    if not isinstance(gate, BaseGate) or not logits:
        return {token: int(row_N.argmax()) for token, row_N in logits.items()}
    if layer.training or gate.evaluation == "balanced":
        scores_TN = torch.stack([_logits(layer, hidden_H, None) for hidden_H in hidden_TH]).detach()
        expert_T = assigned(scores_TN, padding_T, gate.prices.start)[0].tolist()
        return {token: expert_T[token] for token in logits}
    price_N = gate.prices.mean * (gate.evaluation == "prices")
    return {token: int((row_N - price_N).argmax()) for token, row_N in logits.items()}


def _scale(layer: MoELayer, logits_N: Tensor, expert: int) -> Tensor:
    if isinstance(layer.gate, FixedGate):
        return torch.ones(())
    if isinstance(layer.gate, BaseGate):
        gate, uniform_gate = torch.sigmoid(logits_N[expert]), 0.5
    else:
        gate, uniform_gate = logits_N.softmax(0)[expert], 1 / len(logits_N)
    return gate if layer.blend is None else 1 + layer.blend.float() * (gate / uniform_gate - 1)
