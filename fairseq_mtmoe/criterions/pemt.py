"""`--criterion pemt`: the negative log-likelihood of what is to be said, and the task sparsity loss of gates.

PEMT, equations 5 and 6. Of `--task glue` the first is the loss of `--criterion multitask`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.logging import metrics
from torch import Tensor

from fairseq_mtmoe.criterions.multitask import HasTaskTypes, MultitaskCriterion
from fairseq_mtmoe.errors import raise_invalid
from fairseq_mtmoe.slots import SPARSITY
from fairseq_mtmoe.slots.slot import unwrapped


@dataclass
class PemtCriterionConfig(LabelSmoothedCrossEntropyCriterionConfig):
    """fairseq's options of `label_smoothed_cross_entropy`, without smoothing by default, and the sparsity's weight."""

    sparsity_weight: float = field(
        default=0.1, metadata={"help": "weight of the task sparsity loss of gates, per token or sentence"}
    )


@register_criterion("pemt", dataclass=PemtCriterionConfig)
class PemtCriterion(LabelSmoothedCrossEntropyCriterion):
    """fairseq's loss and the task sparsity loss; see `with_sparsity`."""

    def __init__(
        self,
        task: Any,
        sentence_avg: bool,
        label_smoothing: float,
        ignore_prefix_size: int = 0,
        report_accuracy: bool = False,
        sparsity_weight: float = 0.1,
    ) -> None:
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        self.sparsity_weight = checked(sparsity_weight)

    @classmethod
    def build_criterion(cls, cfg: Any, task: Any) -> Any:
        """As fairseq's; of a task whose models have heads, one that knows their losses.

        Raises:
            UserError: an option is out of its range, or has no meaning for such a task.
        """
        if not isinstance(task, HasTaskTypes):
            return super().build_criterion(cfg, task)
        for name in ("label_smoothing", "ignore_prefix_size", "report_accuracy"):
            if getattr(cfg, name):
                raise_invalid(
                    f"--{name.replace('_', '-')}", "left out with a task that writes no words", getattr(cfg, name)
                )
        return PemtMultitaskCriterion(task, cfg.sparsity_weight)

    def forward(self, model: Any, sample: Dict[str, Any], reduce: bool = True) -> Tuple[Tensor, Any, Dict[str, Any]]:
        """As fairseq's; the logged `loss` is the one without the sparsity loss, comparable between weights."""
        want_sparsity(model, self.sparsity_weight)
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
        return with_sparsity(loss, sample_size, logged, output[1].get(SPARSITY), self.sparsity_weight)

    @classmethod
    def reduce_metrics(cls, logging_outputs: List[Dict[str, Any]]) -> None:
        """As fairseq's, with the average `sparsity_loss` where there is one."""
        super().reduce_metrics(logging_outputs)
        log_sparsity(logging_outputs)


class PemtMultitaskCriterion(MultitaskCriterion):
    """The loss of a task's head and the task sparsity loss; see `with_sparsity`."""

    def __init__(self, task: Any, sparsity_weight: float) -> None:
        super().__init__(task)
        self.sparsity_weight = checked(sparsity_weight)

    def forward(self, model: Any, sample: Dict[str, Any], reduce: bool = True) -> Tuple[Tensor, int, Dict[str, Any]]:
        """As `MultitaskCriterion`'s; the logged `loss` is the one without the sparsity loss."""
        want_sparsity(model, self.sparsity_weight)
        outputs = model(**sample["net_input"])
        sparsity = outputs.pop(SPARSITY, None)
        return with_sparsity(*self.of_outputs(outputs, sample), sparsity, self.sparsity_weight)

    @staticmethod
    def reduce_metrics(logging_outputs: Sequence[Mapping[str, Any]]) -> None:
        """As `MultitaskCriterion`'s, with the average `sparsity_loss` where there is one."""
        MultitaskCriterion.reduce_metrics(logging_outputs)
        log_sparsity(logging_outputs)


def checked(sparsity_weight: float) -> float:
    """The weight, or the `UserError` that it is out of its range."""
    if sparsity_weight < 0:
        raise_invalid("--sparsity-weight", "at least 0", sparsity_weight)
    return sparsity_weight


def want_sparsity(model: Any, weight: float) -> None:
    """Tell a model that borrows whether its task sparsity loss has a weight."""
    borrower = unwrapped(model)
    if hasattr(borrower, "want_sparsity"):
        borrower.want_sparsity(weight > 0)


def with_sparsity(
    loss: Tensor, sample_size: int, logged: Dict[str, Any], sparsity: Optional[Tensor], weight: float
) -> Tuple[Tensor, int, Dict[str, Any]]:
    """What a criterion gives: loss + weight · task sparsity loss · sample size, so that the trainer's division leaves
    the weight as given.

    A model without gates, such as one of stage 1, has no such loss; nor has any in validation.
    """
    if sparsity is None:
        return loss, sample_size, logged
    logged = {**logged, "sparsity_loss": sparsity.detach() * sample_size}
    return loss + weight * sparsity * sample_size, sample_size, logged


def log_sparsity(logging_outputs: Sequence[Mapping[str, Any]]) -> None:
    """Log the average `sparsity_loss` where there is one."""
    if any("sparsity_loss" in log for log in logging_outputs):
        sample_size = sum(log.get("sample_size", 0) for log in logging_outputs)
        total = sum(log.get("sparsity_loss", 0) for log in logging_outputs)
        metrics.log_scalar("sparsity_loss", total / sample_size, sample_size, round=4)
