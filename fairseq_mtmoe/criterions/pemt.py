"""`--criterion pemt`: the negative log-likelihood of what is to be written, and the task sparsity loss of gates.

PEMT, equations 5 and 6.
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

from fairseq_mtmoe.errors import must_be
from fairseq_mtmoe.slots.model_inputs import unwrapped


@dataclass
class PemtCriterionConfig(LabelSmoothedCrossEntropyCriterionConfig):
    """fairseq's options of `label_smoothed_cross_entropy`, without smoothing by default, and the sparsity's weight."""

    sparsity_weight: float = field(
        default=0.1, metadata={"help": "weight of the task sparsity loss of gates, per token or sentence"}
    )


@register_criterion("pemt", dataclass=PemtCriterionConfig)
class PemtCriterion(LabelSmoothedCrossEntropyCriterion):
    """fairseq's loss + weight · task sparsity loss · sample size: the trainer's division leaves the weight as given.

    A model without gates, such as one of stage 1, has no such loss; nor has any in validation.
    """

    def __init__(
        self,
        task: Any,
        sentence_avg: bool,
        label_smoothing: float,
        ignore_prefix_size: int = 0,
        report_accuracy: bool = False,
        sparsity_weight: float = 0.1,
    ) -> None:
        if sparsity_weight < 0:
            must_be("--sparsity-weight", "at least 0", sparsity_weight)
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        self.sparsity_weight = sparsity_weight

    def forward(self, model: Any, sample: Dict[str, Any], reduce: bool = True) -> Tuple[Tensor, Any, Dict[str, Any]]:
        """As fairseq's; the logged `loss` is the one without the sparsity loss, comparable between weights."""
        borrower = unwrapped(model)
        if hasattr(borrower, "want_sparsity"):
            borrower.want_sparsity(self.sparsity_weight > 0)
        output = model(**sample["net_input"])
        loss, nll_loss = self.compute_loss(model, output, sample, reduce=reduce)
        sample_size = sample["target"].size(0) if self.sentence_avg else sample["ntokens"]
        logged = {
            "loss": loss.data,
            "nll_loss": nll_loss.data,
            "ntokens": sample["ntokens"],
            "nsentences": sample["target"].size(0),
            "sample_size": sample_size,
        }
        if self.report_accuracy:
            correct, total = self.compute_accuracy(model, output, sample)
            logged |= {"n_correct": correct.item(), "total": total.item()}
        sparsity = output[1].get("task_sparsity")
        if sparsity is not None:
            logged["sparsity_loss"] = sparsity.detach() * sample_size
            loss = loss + self.sparsity_weight * sparsity * sample_size
        return loss, sample_size, logged

    @classmethod
    def reduce_metrics(cls, logging_outputs: List[Dict[str, Any]]) -> None:
        """As fairseq's, with the average `sparsity_loss` where there is one."""
        super().reduce_metrics(logging_outputs)
        if any("sparsity_loss" in log for log in logging_outputs):
            sample_size = sum(log.get("sample_size", 0) for log in logging_outputs)
            total = sum(log.get("sparsity_loss", 0) for log in logging_outputs)
            metrics.log_scalar("sparsity_loss", total / sample_size, sample_size, round=4)
