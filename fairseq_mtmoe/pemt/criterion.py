"""`--criterion pemt`: negative log-likelihood plus the gates' task sparsity loss.

These are equations 5 and 6 of PEMT. With `--task glue` the first part is the loss of
`--criterion multitask`. There is no sparsity loss in a model without gates, such as in stage 1, and
none in validation. The logged `loss` excludes it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from torch import Tensor

from fairseq_mtmoe.core.errors import flag, raise_invalid
from fairseq_mtmoe.core.options import option
from fairseq_mtmoe.core.typed import at_least
from fairseq_mtmoe.nlu.criterion import MultitaskCriterion
from fairseq_mtmoe.pemt.base_model import PemtModel
from fairseq_mtmoe.slots import SPARSITY
from fairseq_mtmoe.slots.slot import unwrapped
from fairseq_mtmoe.training.weighted_loss import add_weighted, log_weighted


@dataclass
class PemtCriterionConfig(LabelSmoothedCrossEntropyCriterionConfig):
    """fairseq's options of the criterion, and the sparsity loss's weight."""

    sparsity_weight: float = option(
        0.1,
        "weight of the gates' task sparsity loss, added to the loss per token (per sentence with "
        "--sentence-avg)",
        at_least(0),
    )


class _SparsityLoss(FairseqCriterion):
    """Mixin that adds the sparsity loss, which the next class takes from the output."""

    sparsity_weight: float
    _sparsity: Optional[Tensor] = None  # of the current pass

    def forward(
        self, model: Any, sample: Dict[str, Any], reduce: bool = True
    ) -> Tuple[Tensor, Any, Dict[str, Any]]:
        borrower = unwrapped(model)
        if isinstance(borrower, PemtModel):
            borrower.encoder.wants_sparsity = self.sparsity_weight > 0
        outcome: Tuple[Tensor, Any, Dict[str, Any]] = super().forward(model, sample, reduce)
        sparsity, self._sparsity = self._sparsity, None
        if sparsity is None:
            return outcome
        return add_weighted(*outcome, "sparsity_loss", sparsity, self.sparsity_weight)

    @classmethod
    def reduce_metrics(cls, logging_outputs: Sequence[Mapping[str, Any]]) -> None:
        """Reduce as the next class does, with the average `sparsity_loss` if there is one."""
        super().reduce_metrics(logging_outputs)
        log_weighted(logging_outputs, "sparsity_loss")


@register_criterion("pemt", dataclass=PemtCriterionConfig)
class PemtCriterion(_SparsityLoss, LabelSmoothedCrossEntropyCriterion):
    """fairseq's loss and the task sparsity loss."""

    @classmethod
    def build_criterion(cls, cfg: Any, task: Any) -> Any:
        """Build the criterion; tasks with heads get a `PemtMultitaskCriterion`.

        A `UserError` refuses options that are for text output alone.
        """
        if hasattr(task, "task_types"):
            for name in ("label_smoothing", "ignore_prefix_size", "report_accuracy"):
                if value := getattr(cfg, name):
                    raise_invalid(flag(name), "left out with a task that generates no text", value)
            criterion: Any = PemtMultitaskCriterion(task)
        else:
            criterion = super().build_criterion(cfg, task)
        criterion.sparsity_weight = cfg.sparsity_weight
        return criterion

    def compute_loss(
        self, model: Any, net_output: Any, sample: Dict[str, Any], reduce: bool = True
    ) -> Any:
        """Compute fairseq's loss; take the sparsity loss from the model's output."""
        self._sparsity = net_output[1].get(SPARSITY)
        return super().compute_loss(model, net_output, sample, reduce)


class PemtMultitaskCriterion(_SparsityLoss, MultitaskCriterion):
    """The losses of the tasks' heads and the task sparsity loss."""

    def outputs(self, model: Any, sample: Dict[str, Any]) -> Dict[str, Tensor]:
        """Return the heads' outputs; take the sparsity loss from them."""
        outputs: Dict[str, Tensor] = model(**sample["net_input"])
        self._sparsity = outputs.pop(SPARSITY, None)
        return outputs
