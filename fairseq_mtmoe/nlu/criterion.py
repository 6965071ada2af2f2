"""`--criterion multitask`: the loss of a batch with several tasks' examples.

It implements MT-TaG, §3.3. Each task's type defines its loss (`nlu/types/`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from fairseq import utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.nlu.types.task_type import TaskType, Uncertainty
from fairseq_mtmoe.slots import SPARSITY


@register_criterion("multitask", dataclass=FairseqDataclass)
class MultitaskCriterion(FairseqCriterion):
    """The sum of the examples' losses; the trainer divides it by their number."""

    def __init__(self, task: Any) -> None:
        super().__init__(task)
        if not hasattr(task, "task_types"):
            raise UserError(
                "`--criterion multitask` requires a task with heads, such as `--task glue`."
            )
        self.task_types: Mapping[str, TaskType] = task.task_types

    def forward(
        self, model: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Return the loss, always a sum, the number of examples, and the logging output.

        Args:
            model: returns each task's head outputs, (E_t, …), by its name.
            sample: has each task's labels, (E_t, …), as `target`.
        """
        outputs = self.outputs(model, sample)
        target = sample["target"]
        losses = {}
        for task, logits in outputs.items():
            losses[task] = self.task_loss(task, logits, target.get(task, logits.new_empty(0)))
        loss = torch.stack(list(losses.values())).sum()
        logged: dict[str, Any] = {
            "loss": loss.detach(),
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "sample_size": sample["nsentences"],
        }
        for task, task_loss in losses.items():
            logged[f"{task}_loss"] = task_loss.detach()
            logged[f"{task}_sample_size"] = len(target[task]) if task in target else 0
        if not self.training:  # a single task; its metric is of all batches together
            (task,) = target
            logged["predictions"] = self.task_types[task].predictions(outputs[task])
        return loss, sample["nsentences"], logged

    def outputs(self, model: Any, sample: dict[str, Any]) -> dict[str, Tensor]:
        """Return the head outputs by task, without the sparsity loss of a PEMT model."""
        outputs: dict[str, Tensor] = model(**sample["net_input"])
        outputs.pop(SPARSITY, None)
        return outputs

    def task_loss(self, task: str, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of a task's losses; logits and labels are (E, …).

        Without examples it is 0, but still has a graph.
        """
        return self.task_types[task].loss(logits, labels) if len(labels) else logits.float().sum()

    def uncertainties(
        self, model: Any, sample: dict[str, Any], under_dropout: bool
    ) -> tuple[Tensor, Uncertainty]:
        """Return `id`s (E,) and uncertainties of examples, with or without dropout."""
        outputs = model(**sample["net_input"])
        none = next(iter(outputs.values())).new_empty(0, dtype=torch.float32)
        ids = [sample["id"][:0]]
        uncertainties = [Uncertainty(none, none)]
        for task, ids_E in _ids_by_task(sample).items():
            logits = outputs[task]
            labels = sample["target"][task]
            draws = self.task_types[task].dropout_draws
            if bool(draws) != under_dropout:
                continue
            if under_dropout:
                logits = logits.unflatten(0, (-1, draws))
                labels = labels[::draws]
                ids_E = ids_E[::draws]
            ids.append(ids_E)
            uncertainties.append(self.task_types[task].uncertainty(logits, labels))
        return torch.cat(ids), Uncertainty(*map(torch.cat, zip(*uncertainties, strict=True)))

    @classmethod
    def reduce_metrics(cls, logging_outputs: Sequence[Mapping[str, Any]]) -> None:
        """Log the mean loss per example, over all tasks and of each."""

        def total(key: str) -> Any:
            return sum(utils.item(log.get(key, 0)) for log in logging_outputs)

        for key in logging_outputs[0] if logging_outputs else ():
            name, is_size, _ = key.partition("sample_size")
            if is_size and (size := total(key)):
                priority = 1000 if name else 10
                metrics.log_scalar(f"{name}loss", total(f"{name}loss") / size, size, priority, 4)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Return True: all ranks log numbers under the same keys."""
        return True


def _ids_by_task(sample: dict[str, Any]) -> dict[str, Tensor]:
    """Return the `id`s (E_t,) of each task's examples.

    The examples are in the batch in the order of their first rows.
    """
    rows = sample["net_input"]["rows"]
    index_E = torch.cat([rows_EC[:, 0] for rows_EC in rows.values()]).argsort().argsort()
    ids = sample["id"][index_E].split(list(map(len, rows.values())))
    return dict(zip(rows, ids, strict=True))
