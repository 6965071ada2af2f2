"""Slow reference of adapter mixtures, one adapter after the other."""

import torch
from torch import Tensor
from torch.nn import functional as F

from fairseq_mtmoe.moe.adapters import AdapterBank, BottleneckBank


def adapter_output(bank: AdapterBank, index: int, x: Tensor) -> Tensor:
    """E_k of inputs (…, I)."""
    narrow = x @ bank.down[index].t()
    if isinstance(bank, BottleneckBank):
        return torch.relu(narrow + bank.down_bias[index]) @ bank.up[index] + bank.up_bias[index]
    return bank.scale * (narrow @ bank.up[index])


def slow_mixture(bank: AdapterBank, x: Tensor, weights: Tensor) -> Tensor:
    """Equation 1, (L, B, I) to (L, B, O), for weights (K,) or (B, K)."""
    outputs = [adapter_output(bank, index, x) for index in range(bank.num_members)]
    return torch.stack([weights[..., index, None] * output for index, output in enumerate(outputs)]).sum(0)


def slow_similarity(
    bank: AdapterBank, x: Tensor, output: Tensor, weights: Tensor, padding_mask: Tensor | None = None
) -> Tensor:
    """Equation 5 for inputs (L, B, I) and a layer's outputs (L, B, O): the mean over tokens without padding."""
    outputs = [adapter_output(bank, index, x).float() for index in range(bank.num_members)]
    cosines = [F.cosine_similarity(output.float(), each, dim=-1) for each in outputs]
    of_tokens_LB = (torch.stack(cosines, -1) * weights).mean(-1)
    return of_tokens_LB.mean() if padding_mask is None else of_tokens_LB[~padding_mask.t()].mean()
