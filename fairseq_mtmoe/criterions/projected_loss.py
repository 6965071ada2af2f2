"""Label-smoothed cross-entropy straight from the decoder's features, without ever holding all logits at once.

fairseq projects all tokens to the vocabulary and passes over the (tokens, vocabulary) tensors about ten times, there
and back. Here a block of tokens goes all the way, to its loss and its gradients, while its logits are at hand: beside
the three products of matrices, which nobody can save, little time is left, and a block's memory is enough.

With `V` words and `e = smoothing / (V - 1)`, the loss of a token with target `y` is fairseq's

    (1 - smoothing - e) · (-log p_y) + e · Σ_v (-log p_v),

and its gradient for logit v is `p_v - e - [v = y] · (1 - smoothing - e)`. The constant `e` is a matrix of rank one in
the gradients of features and weight, so that it never costs a pass over the logits. Letters: T tokens, H width of the
features, V words.
"""

from functools import cache
from typing import Any, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_mtmoe.moe.device_kind import device_kind

# Logits at a time: enough rows to keep products of matrices at full speed, and few enough to stay small in memory. A
# GPU has more of both, and each block passes over the weight's gradient.
BLOCK_LOGITS, GPU_BLOCK_LOGITS = 2**25, 2**27
BLOCK_ROWS, GPU_BLOCK_ROWS = 512, 1024


class ProjectedLoss(NamedTuple):
    """Sums over all tokens, each a tensor of one number; `correct` is None unless it was asked for."""

    loss: Tensor
    nll: Tensor
    correct: Optional[Tensor]


def projected_loss(
    features_TH: Tensor, weight_VH: Tensor, target_T: Tensor, smoothing: float, count_correct: bool = False
) -> ProjectedLoss:
    """The loss of the logits `features_TH @ weight_VH.T`, with a graph; sums and softmax are in float32, as fairseq's.

    `reference_loss` is the same, slowly.
    """
    wants_gradients = torch.is_grad_enabled() and (features_TH.requires_grad or weight_VH.requires_grad)
    loss, nll, correct = _ProjectedLoss.apply(
        features_TH, weight_VH, target_T, smoothing, count_correct, wants_gradients
    )
    return ProjectedLoss(loss, nll, correct if count_correct else None)


def reference_loss(features_TH: Tensor, weight_VH: Tensor, target_T: Tensor, smoothing: float) -> ProjectedLoss:
    """What `projected_loss` computes, as its definition reads."""
    log_p_TV = torch.log_softmax((features_TH @ weight_VH.t()).float(), 1)
    nll = -log_p_TV.gather(1, target_T.unsqueeze(1)).sum()
    e = smoothing / (len(weight_VH) - 1)
    loss = (1 - smoothing - e) * nll - e * log_p_TV.sum()
    return ProjectedLoss(loss, nll, (log_p_TV.argmax(1) == target_T).sum())


class _ProjectedLoss(torch.autograd.Function):
    """Computes the gradients together with the loss; the backward pass only scales them."""

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
        blocks = _Blocks(features_TH, weight_VH, smoothing)
        if wants_gradients:
            blocks.start_gradients(*ctx.needs_input_grad[:2])
        for start in range(0, len(target_T), blocks.rows):
            blocks.pass_over(slice(start, start + blocks.rows), target_T, count_correct)
        ctx.save_for_backward(*blocks.gradients())
        nll, total_log_p = blocks.nll, blocks.total_log_p
        loss = (1 - smoothing - blocks.share) * nll - blocks.share * total_log_p
        ctx.mark_non_differentiable(nll, blocks.correct)
        return loss, nll, blocks.correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, loss_grad: Tensor, *_: Any) -> Tuple[Optional[Tensor], ...]:
        gradients = (None if grad is None else grad * loss_grad.to(grad.dtype) for grad in ctx.saved_tensors)
        return (*gradients, None, None, None, None)


class _Blocks:
    """The sums and gradients so far, and the memory that the blocks share."""

    def __init__(self, features_TH: Tensor, weight_VH: Tensor, smoothing: float) -> None:
        self.features_TH, self.weight_VH = features_TH, weight_VH
        num_words = len(weight_VH)
        self.share = smoothing / (num_words - 1)  # `e` above
        self.rest = 1 - smoothing - self.share
        self.rows = rows_at_once(features_TH, num_words)
        self.logits_TV = features_TH.new_empty(self.rows, num_words)
        self.log_p_TV = features_TH.new_empty(self.rows, num_words, dtype=torch.float32)
        self.word_sum_H = weight_VH.sum(0, dtype=torch.float32)
        self.nll, self.total_log_p = (features_TH.new_zeros((), dtype=torch.float32) for _ in range(2))
        self.correct = features_TH.new_zeros((), dtype=torch.long)
        self.features_grad_TH: Optional[Tensor] = None
        self.weight_grad_VH: Optional[Tensor] = None

    def start_gradients(self, of_features: bool, of_weight: bool) -> None:
        if of_features:
            self.features_grad_TH = torch.empty_like(self.features_TH)
        if of_weight:
            # In float32 for half precision too: a sum over many blocks would lose the small ones.
            token_sum_H = self.features_TH.sum(0, dtype=torch.float32)
            self.weight_grad_VH = (-self.share * token_sum_H).repeat(len(self.weight_VH), 1)

    def gradients(self) -> Tuple[Optional[Tensor], Optional[Tensor]]:
        of_weight = self.weight_grad_VH
        return self.features_grad_TH, None if of_weight is None else of_weight.to(self.weight_VH.dtype)

    def pass_over(self, block: slice, target_T: Tensor, count_correct: bool) -> None:
        """Add the tokens of one block to the sums and gradients."""
        features_TH, target_T1 = self.features_TH[block], target_T[block].unsqueeze(1)
        logits_TV, log_p_TV = self.logits_TV[: len(features_TH)], self.log_p_TV[: len(features_TH)]
        torch.mm(features_TH, self.weight_VH.t(), out=logits_TV)
        torch.log_softmax(logits_TV, 1, dtype=torch.float32, out=log_p_TV)
        log_p_T1 = log_p_TV.gather(1, target_T1)
        self.nll -= log_p_T1.sum()
        # Σ_v log p_v = Σ_v logit_v - V · log Z, and the logits' sum is the features times the words' sum.
        log_z_T = (logits_TV.gather(1, target_T1) - log_p_T1).squeeze(1)
        self.total_log_p += (features_TH.float() @ self.word_sum_H - len(self.weight_VH) * log_z_T).sum()
        if count_correct:
            self.correct += (logits_TV.argmax(1, keepdim=True) == target_T1).sum()
        if self.features_grad_TH is None and self.weight_grad_VH is None:
            return
        p_TV = log_p_TV.exp_()
        p_TV.scatter_add_(1, target_T1, torch.full_like(log_p_T1, -self.rest))
        p_TV = p_TV.to(self.weight_VH.dtype)
        if self.features_grad_TH is not None:
            constant_H = (-self.share * self.word_sum_H).to(features_TH.dtype)
            torch.addmm(constant_H, p_TV, self.weight_VH, out=self.features_grad_TH[block])
        if self.weight_grad_VH is not None:
            add_product_(self.weight_grad_VH, p_TV.t(), features_TH)


def projected_entropies(features_TH: Tensor, weight_VH: Tensor) -> Tensor:
    """The entropies (T,), float32, of the logits `features_TH @ weight_VH.T`, a block at a time.

    `reference_entropies` is the same, slowly.
    """
    weight_VH = weight_VH.to(features_TH.dtype)  # autocast leaves products with `out` as they are
    rows = rows_at_once(features_TH, len(weight_VH))
    logits_TV = features_TH.new_empty(rows, len(weight_VH))
    shifted_TV, weights_TV = logits_TV.float(), torch.empty_like(logits_TV, dtype=torch.float32)
    entropies = [features_TH.new_empty(0, dtype=torch.float32)]
    for part_TH in features_TH.split(rows):
        logits, shifted, weights = (block[: len(part_TH)] for block in (logits_TV, shifted_TV, weights_TV))
        torch.mm(part_TH, weight_VH.t(), out=logits)
        torch.sub(logits, logits.amax(1, keepdim=True), out=shifted)
        total_T = torch.exp(shifted, out=weights).sum(1)
        # With p = weights / total, log p is what is shifted less log total.
        entropies.append(total_T.log() - torch.linalg.vecdot(weights, shifted) / total_T)
    return torch.cat(entropies)


def reference_entropies(features_TH: Tensor, weight_VH: Tensor) -> Tensor:
    """What `projected_entropies` computes, as its definition reads: `-Σ_v p_v · log p_v`."""
    log_p_TV = torch.log_softmax((features_TH @ weight_VH.t()).float(), 1)
    return -(log_p_TV.exp() * log_p_TV).sum(1)


def rows_at_once(features_TH: Tensor, num_words: int) -> int:
    """How many tokens' logits are there at a time."""
    on_cpu = device_kind(features_TH).can_sync
    logits, rows = (BLOCK_LOGITS, BLOCK_ROWS) if on_cpu else (GPU_BLOCK_LOGITS, GPU_BLOCK_ROWS)
    return min(max(rows, logits // num_words), max(len(features_TH), 1))


def add_product_(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add `left @ right` to a sum of their type, or in float32, in one pass over it where that is possible."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    elif adds_in_float32(left.dtype, left.device):
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total += left @ right


@cache
def adds_in_float32(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether half-precision products are added to float32 sums there (newer torch, on GPUs): tried out once."""
    ones = torch.ones(16, 16, dtype=dtype, device=device)
    total = ones.float()
    try:
        torch.addmm(total, ones, ones, out_dtype=total.dtype, out=total)
    except (RuntimeError, TypeError):
        return False
    return bool((total == 17).all())
