"""Slow reference of expert layers and adapter mixtures, token by token, for tests."""

import itertools

import torch
from torch import Tensor
from torch.nn import functional as F

from fairseq_mtmoe.moe.adapters import AdapterBank, BottleneckBank
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
    width = hidden.shape[-1]
    hidden_TH, branch_TH = hidden.reshape(-1, width), branch_input.reshape(-1, width)
    tasks = [None] * len(hidden_TH) if task_ids is None else task_ids.expand(hidden.shape[:-1]).reshape(-1).tolist()
    real = list(range(len(hidden_TH)))
    if padding_mask is not None:
        padding = padding_mask.reshape(-1).tolist()
        real = [token for token in real if not padding[token]]

    logits = {token: _logits(layer, hidden_TH[token], tasks[token]) for token in real}
    padding_T = None if padding_mask is None else padding_mask.reshape(-1)
    experts = _choose(layer, logits, hidden_TH, padding_T)
    outputs = [torch.zeros_like(row) for row in branch_TH]
    for token in real:
        scale = _scale(layer, logits[token], experts[token])
        outputs[token] = (scale * expert_output(layer, experts[token], branch_TH[token])).to(branch_TH.dtype)
    return torch.stack(outputs).view_as(branch_input) if outputs else branch_input.clone()


def expert_output(layer: MoELayer, expert: int, x_H: Tensor) -> Tensor:
    """Return one expert's output for one token."""
    bank = layer.experts
    inner_F = bank.activation(F.linear(x_H, bank.fc1_weight[expert], bank.fc1_bias[expert]))
    return F.linear(inner_F, bank.fc2_weight[expert], bank.fc2_bias[expert])


def _logits(layer: MoELayer, hidden_H: Tensor, task: int | None) -> Tensor:
    if isinstance(layer.gate, FixedGate):
        return F.one_hot(torch.tensor(task), layer.gate.num_experts).float()
    weight_NH = layer.gate.weight[task] if isinstance(layer.gate, TaskGate) else layer.gate.weight
    return torch.stack([(hidden_H.float() * row_H.float()).sum() for row_H in weight_NH])


def _choose(layer: MoELayer, logits: dict[int, Tensor], hidden_TH: Tensor, padding_T: Tensor | None) -> dict[int, int]:
    gate = layer.gate
    if not isinstance(gate, BaseGate) or not logits:
        return {token: int(row_N.argmax()) for token, row_N in logits.items()}
    has_prices = gate.prices.known
    mode = "balanced" if layer.training else gate.evaluation
    if mode == "balanced":
        scores_TN = torch.stack([_logits(layer, hidden_H, None) for hidden_H in hidden_TH]).detach()
        expert_T = assigned(scores_TN, padding_T, gate.prices.mean if has_prices else None)[0].tolist()
        return {token: expert_T[token] for token in logits}
    price_N = gate.prices.mean * (mode == "prices")
    return {token: int((row_N - price_N).argmax()) for token, row_N in logits.items()}


def _scale(layer: MoELayer, logits_N: Tensor, expert: int) -> Tensor:
    if isinstance(layer.gate, FixedGate):
        return torch.ones(())
    if isinstance(layer.gate, BaseGate):
        gate, uniform_gate = torch.sigmoid(logits_N[expert]), 0.5
    else:
        gate, uniform_gate = logits_N.softmax(0)[expert], 1 / len(logits_N)
    return gate if layer.blend is None else 1 + layer.blend.float() * (gate / uniform_gate - 1)


def adapter_output(bank: AdapterBank, index: int, x_I: Tensor) -> Tensor:
    """Return E_k of one token, (O,)."""
    narrow_R = bank.down[index] @ x_I
    if isinstance(bank, BottleneckBank):
        narrow_R = torch.relu(narrow_R + bank.down_bias[index])
        return bank.up[index].t() @ narrow_R + bank.up_bias[index]
    return bank.scale * (bank.up[index].t() @ narrow_R)


def slow_mixture(bank: AdapterBank, x: Tensor, weights: Tensor) -> Tensor:
    """Compute equation 1, `bank(x, weights)`, (L, B, I) to (L, B, O)."""

    def mixed(x_I: Tensor, weights_K: Tensor) -> Tensor:
        return torch.stack([w.to(x) * adapter_output(bank, k, x_I) for k, w in enumerate(weights_K)]).sum(0)

    outputs = []
    for x_BI in x:
        rows = [mixed(*pair) for pair in zip(x_BI, weights.expand(x.shape[1], -1), strict=True)]
        outputs.append(torch.stack(rows))
    return torch.stack(outputs)


def slow_similarity(
    bank: AdapterBank, x: Tensor, output: Tensor, weights: Tensor, padding_mask: Tensor | None = None
) -> Tensor:
    """Compute `layer_similarity` for inputs `x`, (L, B, I), and `output`, (L, B, O)."""
    values = []
    for position, sentence in itertools.product(range(x.shape[0]), range(x.shape[1])):
        if padding_mask is not None and padding_mask[sentence, position]:
            continue
        weights_K, out_O = (weights if weights.dim() == 1 else weights[sentence]), output[position, sentence].float()
        for k, weight in enumerate(weights_K):
            expert_O = adapter_output(bank, k, x[position, sentence]).float()
            length = out_O.norm() * expert_O.norm()
            values.append(weight * (out_O @ expert_O) / length if length else weight * 0)
    return torch.stack(values).mean()
