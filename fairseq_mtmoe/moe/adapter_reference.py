"""Mixtures of adapters said slowly: one token and one adapter at a time. For tests, which compare every gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_mtmoe.moe.adapters import AdapterBank, BottleneckBank


def adapter_output(bank: AdapterBank, index: int, x_I: Tensor) -> Tensor:
    """E_k of one token, (O,)."""
    narrow_R = bank.down[index] @ x_I
    if isinstance(bank, BottleneckBank):
        narrow_R = torch.relu(narrow_R + bank.down_bias[index])
        return bank.up[index].t() @ narrow_R + bank.up_bias[index]
    return bank.scale * (bank.up[index].t() @ narrow_R)


def slow_mixture(bank: AdapterBank, x: Tensor, weights: Tensor) -> Tensor:
    """Equation 1: what `bank(x, weights)` must be, (L, B, I) to (L, B, O); `weights` are (K,) or (B, K)."""
    by_place = []
    for x_BI in x:
        by_sentence = []
        for sentence, x_I in enumerate(x_BI):
            weights_K = weights if weights.dim() == 1 else weights[sentence]
            by_sentence.append(
                sum((w.to(x) * adapter_output(bank, k, x_I) for k, w in enumerate(weights_K)), torch.zeros(()).to(x))
            )
        by_place.append(torch.stack(by_sentence))
    return torch.stack(by_place)


def slow_similarity(
    bank: AdapterBank, x: Tensor, output: Tensor, weights: Tensor, padding_mask: Tensor | None = None
) -> Tensor:
    """One layer's part of equation 5: 1/K Σ_k w_k cos(H_o, E_k), the mean over tokens that are no padding.

    Args:
        bank: of the layer's sources.
        x: what they read, (L, B, I).
        output: H_o, (L, B, O).
        weights: (K,) or (B, K).
        padding_mask: True at padding, (B, L).
    """
    values = []
    for place, sentence in ((place, sentence) for place in range(x.shape[0]) for sentence in range(x.shape[1])):
        if padding_mask is not None and padding_mask[sentence, place]:
            continue
        weights_K, out_O = (weights if weights.dim() == 1 else weights[sentence]), output[place, sentence].float()
        for k, weight in enumerate(weights_K):
            expert_O = adapter_output(bank, k, x[place, sentence]).float()
            length = out_O.norm() * expert_O.norm()
            values.append(weight * (out_O @ expert_O) / length if length else weight * 0)
    return torch.stack(values).mean()
