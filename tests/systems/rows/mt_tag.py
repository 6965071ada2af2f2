"""Multi-task encoders: MT-TaG as published and with the preserving combine, MT-Switch, MT-Dense."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_mtmoe.nlu.criterion import MultitaskCriterion
from tests.helpers.encoders import ANSWERS, TARGET, all_numbers, dense_encoder, tag_model, task_batch
from tests.helpers.models import perturb
from tests.systems.system import Batch, System, with_experts_of, with_weights_of

# A row's name -> its options on the 2-block encoder of tests/helpers/encoders.py.
OPTIONS: dict[str, dict[str, Any]] = {
    "mt_tag": dict(),
    "mt_tag, the paper's combine": dict(expert_combine="paper"),
    "mt_switch": dict(switch=True),
}


def output(model: nn.Module, net_input: Batch) -> Tensor:
    return all_numbers(model(**net_input))


def task_losses(model: nn.Module, net_input: Batch) -> Tensor:
    """The criterion's, of labels that the batch can be learned by heart with."""
    criterion = MultitaskCriterion(SimpleNamespace(task_types=ANSWERS))
    numbers = model(**net_input)
    losses = [criterion.task_loss(task, numbers[task], labels) for task, labels in TARGET.items()]
    return torch.stack(losses).sum()


def of_dense(options: dict[str, Any], dense: nn.Module) -> nn.Module:
    """One expert per block, a copy of its feed-forward layer; with the paper's combine at gate value 1."""
    return with_experts_of(dense, tag_model(**{**options, "num_experts": 1, "dense_updates": 1}))


def upper_half(name: str) -> bool:
    """The embeddings and the first block are frozen."""
    return name.startswith(("heads.", "encoder.layers.1."))


COMMON = dict(
    dense_twin=lambda: perturb(dense_encoder()), batch=task_batch, output=output, loss=task_losses, trainable=upper_half
)
ROWS = [
    System("mt_dense", dense_encoder, of_dense=lambda dense: with_weights_of(dense, dense_encoder(2)), **COMMON),
    *(
        System(name, partial(tag_model, **options), of_dense=partial(of_dense, options), **COMMON)
        for name, options in OPTIONS.items()
    ),
]
