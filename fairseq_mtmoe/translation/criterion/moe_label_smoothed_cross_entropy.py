"""fairseq's label-smoothed cross-entropy, faster, and a load-balancing loss.

For models that share fairseq's transformer output, the loss is computed straight from the decoder's
features (see `projected_loss.py`), for others as in fairseq. The values are equal up to rounding.

The load-balancing loss is optional, for Switch gates: equation 4 of Fedus, Zoph and Shazeer,
"Switch Transformers", 2021. Its weight is 0 by default: BASE layers are balanced by assignment, and
MT-TaG found that the loss hurts.

`sentence_entropies` is a translator's uncertainty (CA-MTL, equation 4): the mean entropy of a
target's tokens.
"""

import math
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.distributed import LegacyDistributedDataParallel, ModuleProxyWrapper
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerDecoderBase, TransformerModelBase
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.special import entr

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.options import option
from fairseq_mtmoe.core.typed import at_least
from fairseq_mtmoe.moe.layer import balance_loss
from fairseq_mtmoe.slots.slot import takes
from fairseq_mtmoe.training.weighted_loss import add_weighted, log_weighted
from fairseq_mtmoe.translation.criterion.projected_loss import projected_entropies, projected_loss

NO_LAYER = -1


@dataclass
class MoELabelSmoothedCrossEntropyConfig(LabelSmoothedCrossEntropyCriterionConfig):
    """Options of fairseq's criterion, and the weight of the load-balancing loss."""

    load_balancing_weight: float = option(
        0.0,
        "weight of the load-balancing loss of switch gates, added to the loss per token (per "
        "sentence with --sentence-avg)",
        at_least(0),
    )


@register_criterion(
    "moe_label_smoothed_cross_entropy", dataclass=MoELabelSmoothedCrossEntropyConfig
)
class MoELabelSmoothedCrossEntropyCriterion(LabelSmoothedCrossEntropyCriterion):
    """fairseq's loss + weight · balance loss · sample size (the trainer's divisor)."""

    def __init__(
        self,
        task: Any,
        sentence_avg: bool,
        label_smoothing: float,
        ignore_prefix_size: int = 0,
        report_accuracy: bool = False,
        load_balancing_weight: float = 0.0,
    ) -> None:
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        self.load_balancing_weight = load_balancing_weight

    def forward(
        self, model: Any, sample: Dict[str, Any], reduce: bool = True
    ) -> Tuple[Tensor, Any, Dict[str, Any]]:
        """Return fairseq's tuple; the logged `loss` excludes the load-balancing loss."""
        weight_VH = output_weight(model) if reduce else None
        if weight_VH is None:
            outcome: Tuple[Tensor, Any, Dict[str, Any]] = super().forward(model, sample, reduce)
        else:
            outcome = self._from_features(model, weight_VH, sample)
        if self.load_balancing_weight == 0:
            return outcome
        # A checkpointed block's forward pass leaves a balance loss without a graph.
        if model.training and getattr(getattr(model, "cfg", None), "checkpoint_activations", False):
            raise UserError(
                "`--load-balancing-weight` above 0 cannot be used with `--checkpoint-activations`."
            )
        return add_weighted(
            *outcome, "balance_loss", balance_loss(model), self.load_balancing_weight
        )

    def _from_features(self, model: Any, weight_VH: Tensor, sample: Dict[str, Any]) -> Any:
        # Without NO_LAYER, the last block would compute attention weights, which are not read here.
        features, extra = model(**sample["net_input"], features_only=True, alignment_layer=NO_LAYER)
        target = model.get_targets(sample, (features, extra))
        target = target[:, self.ignore_prefix_size :].reshape(-1)
        features_TH = features[:, self.ignore_prefix_size :].reshape(-1, features.size(-1))
        kept_T = target.ne(self.padding_idx).nonzero().squeeze(1)
        features_TH = features_TH.index_select(0, kept_T)
        target_T = target.index_select(0, kept_T)
        sums = projected_loss(features_TH, weight_VH, target_T, self.eps, self.report_accuracy)
        sample_size = sample["target"].size(0) if self.sentence_avg else sample["ntokens"]
        logged = {
            "loss": sums.loss.data,
            "nll_loss": sums.nll.data,
            "ntokens": sample["ntokens"],
            "nsentences": sample["target"].size(0),
            "sample_size": sample_size,
        }
        if sums.correct is not None:
            logged |= {"n_correct": sums.correct.item(), "total": len(kept_T)}
        return sums.loss, sample_size, logged

    @classmethod
    def reduce_metrics(cls, logging_outputs: List[Dict[str, Any]]) -> None:
        """Reduce as fairseq does, with the average `balance_loss` if there is one."""
        super().reduce_metrics(logging_outputs)
        log_weighted(logging_outputs, "balance_loss")


# fairseq's trainer restores the optimizer only if the checkpoint names the same criterion class.
# The loss is the same, so a run may change between the two criterions.
MoELabelSmoothedCrossEntropyCriterion.__name__ = LabelSmoothedCrossEntropyCriterion.__name__


def output_weight(model: Any) -> Optional[Tensor]:
    """Return `projection(model)`, or None in half precision with a scaled loss.

    There, gradients must be scaled before they are rounded.
    """
    weight_VH = projection(model)
    if weight_VH is None:
        return None
    is_scaled = weight_VH.dtype == torch.float16 or torch.is_autocast_enabled(weight_VH.device.type)
    return None if is_scaled else weight_VH


def projection(model: Any) -> Optional[Tensor]:
    """Return the matrix (V, H) from features to logits; None if anything else matters."""
    model = _without_ddp(model)
    if not isinstance(model, TransformerModelBase):
        return None
    methods = (
        type(model).get_normalized_probs,
        type(model).get_targets,
        type(model.decoder).output_layer,
    )
    fairseq_methods = (
        TransformerModelBase.get_normalized_probs,
        BaseFairseqModel.get_targets,
        TransformerDecoderBase.output_layer,
    )
    if methods != fairseq_methods:
        return None
    if not takes(model, "features_only") or not takes(model, "alignment_layer"):
        return None
    projected = getattr(model.decoder, "output_projection", None)
    if type(projected) is not nn.Linear or projected.bias is not None:
        return None
    return None if model.decoder.adaptive_softmax is not None else projected.weight


def _without_ddp(model: Any) -> Any:
    """Return the model without DDP wrappers.

    A wrapper that looks for unused parameters stays.
    """
    wrappers = (ModuleProxyWrapper, DistributedDataParallel, LegacyDistributedDataParallel)
    while isinstance(model, wrappers):
        if getattr(model, "find_unused_parameters", False):
            return model
        model = model.module
    return model


def sentence_entropies(model: Any, sample: dict[str, Any], padding: int) -> tuple[Tensor, Tensor]:
    """Return sentences' mean entropy over target tokens, (B,), and its maximum log V."""
    target = sample["target"]
    kept_T = target.ne(padding).flatten().nonzero().squeeze(1)
    weight_VH = projection(model)
    if weight_VH is None:
        output = model(**sample["net_input"])
        log_p_TV = model.get_normalized_probs(output, log_probs=True, sample=sample).flatten(0, 1)
        num_words = log_p_TV.shape[1]
        entropy_T = entr(log_p_TV.index_select(0, kept_T).float().exp()).sum(1)
    else:
        features, _ = model(**sample["net_input"], features_only=True, alignment_layer=NO_LAYER)
        num_words = len(weight_VH)
        entropy_T = projected_entropies(features.flatten(0, 1).index_select(0, kept_T), weight_VH)
    sentence_T = kept_T.div(target.shape[1], rounding_mode="floor")
    sums = torch.zeros(2, len(target), device=target.device)
    sums.index_add_(1, sentence_T, torch.stack([entropy_T, torch.ones_like(entropy_T)]))
    entropy_B, tokens_B = sums
    return entropy_B / tokens_B.clamp(min=1), torch.full_like(entropy_B, math.log(num_words))
