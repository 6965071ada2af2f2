"""Balanced assignment: which expert each token of a training batch goes to.

BASE layers ("Tricks for Training Sparse Translation Models", §2.1) maximise the sum of scores
with equally many tokens per expert: a linear assignment (transportation) problem. It is solved by
dual prices, the tokens' choices and augmenting paths, compiled for CPUs (`kernels/`). GPUs have a
form without synchronisation and without augmenting paths, in Triton (`triton_form.py`) or in
torch (`torch_form.py`). CPUs without the compiled library use the latter.
"""

import torch
from torch import Tensor

from fairseq_mtmoe.moe.assignment import kernels
from fairseq_mtmoe.moe.assignment.torch_form import Assignment, torch_assignment
from fairseq_mtmoe.moe.assignment.triton_form import assignment_on_gpu
from fairseq_mtmoe.moe.device_kind import device_kind

__all__ = ["Assignment", "assigned", "priced_assignment"]


@torch.no_grad()
def priced_assignment(scores_TN: Tensor, start_N: Tensor | None = None) -> Assignment:
    """Assign tokens evenly with the highest sum of scores; return experts and prices.

    Every expert gets ⌊T/N⌋ or ⌈T/N⌉ tokens.

    Args:
        scores_TN: any floating type. Infinite scores count as the highest or lowest finite one,
            NaN as the lowest.
        start_N: prices of an earlier step, (N,), float32, in units of the scores. On a CPU bad
            ones only cost time. On a GPU, prices that are off by more than the mean over tokens
            of highest - lowest score may enlarge the gap.

    On a CPU, every token gets the expert with the highest score - price, except in ties, and the
    gap to the optimum is at most 1e-6 of the sum over tokens of highest - lowest score. On a GPU,
    and where the compiled library is missing or scores are not finite or of extreme size, it is
    at most 0.1% of this sum; with very few different scores it may be larger. The result depends
    only on scores and start; the work is bounded. Prices are finite. They are 0 without tokens and
    for a single expert.
    """
    num_tokens, num_experts = scores_TN.shape
    if num_tokens == 0 or num_experts == 1:
        nobody_T = torch.zeros(num_tokens, dtype=torch.long, device=scores_TN.device)
        return Assignment(nobody_T, torch.zeros(num_experts, device=scores_TN.device))
    if not device_kind(scores_TN).host_can_read:
        return assignment_on_gpu(scores_TN, start_N=start_N)
    compiled = kernels.assign(scores_TN, start_N=start_N)
    return compiled or torch_assignment(scores_TN, start_N=start_N)


@torch.library.custom_op("mtmoe::balanced_assignment", mutates_args=())
def assigned(
    scores_TN: Tensor, padding_T: Tensor | None = None, start_N: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute `priced_assignment` as one operator; padding gets the expert N."""
    if padding_T is None:
        expert_T, price_N = priced_assignment(scores_TN, start_N)
        return expert_T, price_N
    num_tokens, num_experts = scores_TN.shape
    if num_experts == 1:
        # Expert 0 is the only expert, and padding gets N = 1.
        return padding_T.long(), scores_TN.new_zeros(1, dtype=torch.float32)
    if num_tokens > 0 and not device_kind(scores_TN).host_can_read:
        expert_T, price_N = assignment_on_gpu(scores_TN, padding_T, start_N)
        return expert_T, price_N
    kept = (~padding_T).nonzero().squeeze(1)
    nobody = padding_T.new_full((num_tokens,), num_experts, dtype=torch.long)
    kept_expert, price_N = priced_assignment(scores_TN[kept], start_N)
    return nobody.index_copy_(0, kept, kept_expert), price_N


@assigned.register_fake
def _(
    scores_TN: Tensor, padding_T: Tensor | None = None, start_N: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    num_tokens, num_experts = scores_TN.shape
    expert_T = scores_TN.new_empty(num_tokens, dtype=torch.long)
    return expert_T, scores_TN.new_empty(num_experts, dtype=torch.float32)
