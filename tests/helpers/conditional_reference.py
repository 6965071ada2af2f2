"""Slow reference: sentence by sentence, with each task's own matrices. Tests compare outputs and gradients with it."""

import torch
from torch import LongTensor, Tensor

from fairseq_mtmoe.conditioning import (
    ConditionalAlignment,
    ConditionalAttentionBias,
    ConditionalBottleneck,
    ConditionalLayerNorm,
    FiLM,
    Tasks,
)


def film(module: FiLM, x: Tensor, z_D: Tensor) -> Tensor:
    """Return `(1 + γ(z))·x + β(z)`."""
    gamma_F, beta_F = _gamma_and_beta(module, z_D)
    return (1 + gamma_F) * x + beta_F


def _gamma_and_beta(module: FiLM, z_D: Tensor) -> tuple[Tensor, Tensor]:
    weight, bias = module.linear.weight, module.linear.bias
    features = len(weight) // 2
    return weight[:features] @ z_D + bias[:features], weight[features:] @ z_D + bias[features:]


def layer_norm(module: ConditionalLayerNorm, x: Tensor, tasks: Tasks, task_ids: LongTensor) -> Tensor:
    """Compute equation 3 for a batch (B, L, H)."""
    normed = []
    for sentence_LH, task in zip(x, task_ids, strict=True):
        mean = sentence_LH.mean(-1, keepdim=True)
        variance = (sentence_LH - mean).square().mean(-1, keepdim=True)
        unit_LH = (sentence_LH - mean) / (variance + module.eps).sqrt()
        gamma_H, beta_H = _gamma_and_beta(module.film, tasks.shared_KD[task])
        normed.append(unit_LH * (module.weight * (1 + gamma_H)) + module.bias + beta_H)
    return torch.stack(normed)


def alignment(module: ConditionalAlignment, x: Tensor, tasks: Tasks, task_ids: LongTensor) -> Tensor:
    """Compute equation 2 for a batch (B, L, H), with the matrix of each sentence's task."""
    matrices = (film(module.film, module.weight, tasks.raw_KD[task]) for task in task_ids)
    return torch.stack([sentence_LH @ matrix for sentence_LH, matrix in zip(x, matrices, strict=True)])


def bottleneck(module: ConditionalBottleneck, x: Tensor, tasks: Tasks, task_ids: LongTensor) -> Tensor:
    """Compute §2.1.4 for a batch (B, L, H)."""
    if isinstance(module.layer_norm, ConditionalLayerNorm):
        x = layer_norm(module.layer_norm, x, tasks, task_ids)
    outputs = []
    for sentence_LH, task in zip(x, task_ids, strict=True):
        narrow = film(module.film, sentence_LH, tasks.shared_KD[task]) @ module.down.weight.t() + module.down.bias
        outputs.append(narrow @ module.up.weight.t() + module.up.bias)
    return torch.stack(outputs)


def attention_bias(module: ConditionalAttentionBias, tasks: Tasks, task: int, length: int) -> Tensor:
    """Return the direct sum of one task's blocks (§2.1.1), (L, L), repeated if longer."""
    bias_LL = torch.zeros(length, length)
    positions, width = module.weight.shape
    for begin in range(0, length, positions):
        for first in range(0, positions, width):
            rows = film(module.film, module.weight[first : first + width], tasks.shared_KD[task])
            block_WW = rows[:, : len(rows)]
            span = slice(begin + first, min(begin + first + len(rows), length))
            size = max(0, span.stop - span.start)
            bias_LL[span, span] = block_WW[:size, :size]
    return bias_LL


def attention(query: Tensor, key: Tensor, value: Tensor, bias_LL: Tensor, num_tokens: int) -> Tensor:
    """Return one sentence's attention output over its first `num_tokens`: (heads, L, D)."""
    scores = query @ key[:, :num_tokens].transpose(1, 2) / float(query.shape[-1] ** 0.5) + bias_LL[:, :num_tokens]
    read: Tensor = scores.softmax(-1) @ value[:, :num_tokens]
    return read
