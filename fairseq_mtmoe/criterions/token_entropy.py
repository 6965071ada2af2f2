"""How uncertain a translator is of a sentence: the entropy of its distribution over words, a mean over target tokens.

CA-MTL's measure for classes (equation 4), per token and so whatever the sentence's length. As the loss does, it comes
straight from the decoder's features, a block of tokens at a time, where the model is fairseq's in its essentials.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.special import entr

from fairseq_mtmoe.criterions.moe_label_smoothed_cross_entropy import NO_LAYER, projection
from fairseq_mtmoe.criterions.projected_loss import rows_at_once


def sentence_entropies(model: Any, sample: dict[str, Any], padding: int) -> tuple[Tensor, Tensor]:
    """Of each sentence of a batch the mean entropy of its target's tokens, and log V, that of an undecided model: (B,).

    Args:
        model: a translator, in evaluation mode; it reads the target up to each token.
        sample: a batch of fairseq's form.
        padding: the index of padding.
    """
    target = sample["target"]
    kept_T = target.ne(padding).flatten().nonzero().squeeze(1)
    weight_VH = projection(model)
    if weight_VH is None:
        output = model(**sample["net_input"])
        log_p_TV = model.get_normalized_probs(output, log_probs=True, sample=sample).flatten(0, 1)
        num_words, entropy_T = log_p_TV.shape[1], entr(log_p_TV.index_select(0, kept_T).float().exp()).sum(1)
    else:
        features, _ = model(**sample["net_input"], features_only=True, alignment_layer=NO_LAYER)
        num_words = len(weight_VH)
        entropy_T = projected_entropies(features.flatten(0, 1).index_select(0, kept_T), weight_VH)
    sentence_T = kept_T.div(target.shape[1], rounding_mode="floor")
    sums = torch.zeros(2, len(target), device=target.device)
    sums.index_add_(1, sentence_T, torch.stack([entropy_T, torch.ones_like(entropy_T)]))
    entropy_B, tokens_B = sums
    return entropy_B / tokens_B.clamp(min=1), torch.full_like(entropy_B, math.log(num_words))


def projected_entropies(features_TH: Tensor, weight_VH: Tensor) -> Tensor:
    """The entropies (T,), float32, of the logits `features_TH @ weight_VH.T`; not all of these are there at once.

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
