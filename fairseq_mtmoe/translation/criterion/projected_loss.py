"""Label-smoothed cross-entropy straight from the decoder's features.

It never holds all logits at once. The loss and the gradients of a block of tokens are computed
while its logits are in memory. fairseq passes over the (tokens, vocabulary) tensors about ten
times.

With `V` words and `e = smoothing / (V - 1)`, the loss of a token with target `y` is fairseq's

    (1 - smoothing - e) · (-log p_y) + e · Σ_v (-log p_v),

and its gradient for logit v is `p_v - e - [v = y] · (1 - smoothing - e)`. In the gradients of
features and weight the constant `e` is a matrix of rank one, so it costs no pass over the logits.
Letters: T tokens, H width of the features, V words.
"""

from functools import cache
from typing import Any, Iterator, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_mtmoe.moe.device_kind import device_kind

# Logits at a time: enough rows for matrix products at full speed, few enough for a CPU's cache.
# A GPU has larger blocks, because each block passes over the weight's gradient.
BLOCK_LOGITS = 2**22
GPU_BLOCK_LOGITS = 2**27
BLOCK_ROWS = 512
GPU_BLOCK_ROWS = 1024


class ProjectedLoss(NamedTuple):
    """Sums over all tokens, scalar tensors; `correct` is None unless requested."""

    loss: Tensor
    nll: Tensor
    correct: Optional[Tensor]


def projected_loss(
    features_TH: Tensor,
    weight_VH: Tensor,
    target_T: Tensor,
    smoothing: float,
    count_correct: bool = False,
) -> ProjectedLoss:
    """Return the loss of the logits `features_TH @ weight_VH.T`, with a graph.

    Sums and softmax are in float32, as in fairseq.
    """
    options = smoothing, count_correct, torch.is_grad_enabled()
    loss, nll, correct = _ProjectedLoss.apply(features_TH, weight_VH, target_T, *options)
    return ProjectedLoss(loss, nll, correct if count_correct else None)


class _ProjectedLoss(torch.autograd.Function):
    """Computes the gradients together with the loss.

    The backward pass only scales them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        features_TH: Tensor,
        weight_VH: Tensor,
        target_T: Tensor,
        smoothing: float,
        count_correct: bool,
        wants_gradients: bool,
    ) -> Tuple[Tensor, Tensor, Tensor]:
        num_words = len(weight_VH)
        share = smoothing / (num_words - 1)  # `e` above
        word_sum_H = weight_VH.sum(0, dtype=torch.float32)
        nll = features_TH.new_zeros((), dtype=torch.float32)
        total_log_p = features_TH.new_zeros((), dtype=torch.float32)
        correct = features_TH.new_zeros((), dtype=torch.long)
        wants_features = wants_gradients and ctx.needs_input_grad[0]
        wants_weight = wants_gradients and ctx.needs_input_grad[1]
        features_grad_TH = torch.empty_like(features_TH) if wants_features else None
        weight_grad_VH: Optional[Tensor] = None
        # float32 also in half precision: a sum over many blocks would lose small terms
        if wants_weight:
            weight_grad_VH = (-share * features_TH.sum(0, dtype=torch.float32)).repeat(num_words, 1)
        num_rows = rows_at_once(features_TH, num_words)
        memory_TV = features_TH.new_empty(num_rows, num_words, dtype=torch.float32)
        for block, logits_TV in _logits(features_TH, weight_VH):
            part_TH = features_TH[block]
            target_T1 = target_T[block].unsqueeze(1)
            part_memory_TV = memory_TV[: len(part_TH)]
            log_p_TV = torch.log_softmax(logits_TV, 1, dtype=torch.float32, out=part_memory_TV)
            log_p_T1 = log_p_TV.gather(1, target_T1)
            nll -= log_p_T1.sum()
            # Σ_v log p_v = Σ_v logit_v - V · log Z.
            # The sum of the logits is the features times the sum of the words.
            log_z_T = (logits_TV.gather(1, target_T1) - log_p_T1).squeeze(1)
            total_log_p += (part_TH.float() @ word_sum_H - num_words * log_z_T).sum()
            if count_correct:
                correct += (logits_TV.argmax(1, keepdim=True) == target_T1).sum()
            if not wants_features and not wants_weight:
                continue
            p_TV = log_p_TV.exp_()
            p_TV.scatter_add_(1, target_T1, torch.full_like(log_p_T1, -(1 - smoothing - share)))
            p_TV = p_TV.to(weight_VH.dtype)
            if features_grad_TH is not None:
                constant_H = (-share * word_sum_H).to(features_TH.dtype)
                torch.addmm(constant_H, p_TV, weight_VH, out=features_grad_TH[block])
            if weight_grad_VH is not None:
                add_product_(weight_grad_VH, p_TV.t(), part_TH)
        if weight_grad_VH is not None:
            weight_grad_VH = weight_grad_VH.to(weight_VH.dtype)
        ctx.save_for_backward(features_grad_TH, weight_grad_VH)
        loss = (1 - smoothing - share) * nll - share * total_log_p
        ctx.mark_non_differentiable(nll, correct)
        return loss, nll, correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, loss_grad: Tensor, *_: Any) -> Tuple[Optional[Tensor], ...]:
        scaled: List[Optional[Tensor]] = []
        for grad in ctx.saved_tensors:
            scaled.append(None if grad is None else grad * loss_grad.to(grad.dtype))
        return (*scaled, None, None, None, None)


def projected_entropies(features_TH: Tensor, weight_VH: Tensor) -> Tensor:
    """Return the entropies (T,), float32, of the logits `features_TH @ weight_VH.T`."""
    weight_VH = weight_VH.to(features_TH.dtype)  # autocast does not cast products with `out`
    shape = (rows_at_once(features_TH, len(weight_VH)), len(weight_VH))
    shifted_TV, weights_TV = features_TH.new_empty(2, *shape, dtype=torch.float32)
    entropies = [features_TH.new_empty(0, dtype=torch.float32)]
    for _, logits in _logits(features_TH, weight_VH):
        shifted = shifted_TV[: len(logits)]
        weights = weights_TV[: len(logits)]
        torch.sub(logits, logits.amax(1, keepdim=True), out=shifted)
        total_T = torch.exp(shifted, out=weights).sum(1)
        # With p = weights / total, log p = shifted - log total.
        entropies.append(total_T.log() - torch.linalg.vecdot(weights, shifted) / total_T)
    return torch.cat(entropies)


def _logits(features_TH: Tensor, weight_VH: Tensor) -> Iterator[Tuple[slice, Tensor]]:
    """Yield each block of tokens and its logits, all in the same memory."""
    rows = rows_at_once(features_TH, len(weight_VH))
    logits_TV = features_TH.new_empty(rows, len(weight_VH))
    for start in range(0, len(features_TH), rows):
        part_TH = features_TH[start : start + rows]
        part_logits_TV = logits_TV[: len(part_TH)]
        torch.mm(part_TH, weight_VH.t(), out=part_logits_TV)
        yield slice(start, start + rows), part_logits_TV


def rows_at_once(features_TH: Tensor, num_words: int) -> int:
    """Return the number of tokens in a block."""
    on_cpu = device_kind(features_TH).host_can_read
    logits, rows = (BLOCK_LOGITS, BLOCK_ROWS) if on_cpu else (GPU_BLOCK_LOGITS, GPU_BLOCK_ROWS)
    return min(max(rows, logits // num_words), max(len(features_TH), 1))


def add_product_(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add `left @ right` to `total`, in one pass if possible.

    `total` has their dtype or float32.
    """
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    elif adds_in_float32(left.dtype, left.device):
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total += left @ right


@cache
def adds_in_float32(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether `addmm` adds half-precision products to float32 on a device.

    It is tried once. Newer versions of torch can do so on GPUs.
    """
    ones = torch.ones(16, 16, dtype=dtype, device=device)
    total = ones.float()
    try:
        torch.addmm(total, ones, ones, out_dtype=total.dtype, out=total)
    except (RuntimeError, TypeError):
        return False
    return bool((total == 17).all())
