"""Label-smoothed cross-entropy with an optional load-balancing loss for Switch gates.

Fedus, Zoph and Shazeer, "Switch Transformers", 2021, eq. 4. The weight is 0 unless asked for: BASE layers are balanced
by assignment, and MT-TaG found that the loss hurts.
"""

from dataclasses import dataclass, field
from typing import Any, Dict, List, Tuple

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.logging import metrics
from torch import Tensor

from fairseq_mtmoe.errors import UserError, must_be
from fairseq_mtmoe.moe.losses import balance_loss


@dataclass
class MoELabelSmoothedCrossEntropyConfig(LabelSmoothedCrossEntropyCriterionConfig):
    """Options of fairseq's `label_smoothed_cross_entropy`, and the weight of the load-balancing loss."""

    load_balancing_weight: float = field(
        default=0.0, metadata={"help": "weight of the load-balancing loss of Switch gates, per token or sentence"}
    )


@register_criterion("moe_label_smoothed_cross_entropy", dataclass=MoELabelSmoothedCrossEntropyConfig)
class MoELabelSmoothedCrossEntropyCriterion(LabelSmoothedCrossEntropyCriterion):
    """fairseq's loss + weight · balance loss · sample size: the trainer's division leaves the weight as given."""

    def __init__(
        self,
        task: Any,
        sentence_avg: bool,
        label_smoothing: float,
        ignore_prefix_size: int = 0,
        report_accuracy: bool = False,
        load_balancing_weight: float = 0.0,
    ) -> None:
        if load_balancing_weight < 0:
            must_be("--load-balancing-weight", "at least 0", load_balancing_weight)
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        self.load_balancing_weight = load_balancing_weight

    def forward(self, model: Any, sample: Dict[str, Any], reduce: bool = True) -> Tuple[Tensor, Any, Dict[str, Any]]:
        """As fairseq's; the logged `loss` is the one without the load-balancing loss, comparable between weights."""
        loss, sample_size, logging_output = super().forward(model, sample, reduce)
        if self.load_balancing_weight > 0:
            self._refuse_checkpointing(model)
            balance = balance_loss(model)
            logging_output["balance_loss"] = balance.detach() * sample_size
            loss = loss + self.load_balancing_weight * balance * sample_size
        return loss, sample_size, logging_output

    @staticmethod
    def _refuse_checkpointing(model: Any) -> None:
        # A checkpointed block computes its activations again in the backward pass; the balance loss that it left
        # behind in the forward pass has no graph.
        if model.training and getattr(getattr(model, "cfg", None), "checkpoint_activations", False):
            raise UserError("`--load-balancing-weight` above 0 cannot be used with `--checkpoint-activations`.")

    @classmethod
    def reduce_metrics(cls, logging_outputs: List[Dict[str, Any]]) -> None:
        """As fairseq's, with the average `balance_loss` where there is one."""
        super().reduce_metrics(logging_outputs)
        if any("balance_loss" in log for log in logging_outputs):
            sample_size = sum(log.get("sample_size", 0) for log in logging_outputs)
            total = sum(log.get("balance_loss", 0) for log in logging_outputs)
            metrics.log_scalar("balance_loss", total / sample_size, sample_size, round=4)
