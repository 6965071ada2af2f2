"""fairseq's trainer on a digit corpus, inside a test's process, alone or as one of several; and losses gone wrong."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from tests.helpers.commands import training_arguments
from tests.helpers.training import configured


def trainer_here(data: object, save_dir: object, *options: object, **changes: Any) -> Any:
    """`trainer_of` the tests' tiny multilingual model with these options."""
    return trainer_of(training_arguments(data, save_dir, *options), **changes)


def trainer_of(arguments: tuple[object, ...], **changes: Any) -> Any:
    """What `fairseq-train` builds; `changes` are made to the configuration, `common__bf16=True`."""
    from fairseq import tasks, utils
    from fairseq.logging import metrics
    from fairseq.trainer import Trainer
    from omegaconf import OmegaConf

    cfg = configured(arguments)
    for name, value in changes.items():
        OmegaConf.update(cfg, name.replace("__", "."), value)
    metrics.reset()
    utils.set_torch_seed(cfg.common.seed)
    task = tasks.setup_task(cfg.task)
    return Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))


def groups_of(trainer: Any, count: int) -> list[Any]:
    """The batches of the first `count` updates."""
    from fairseq.data import iterators

    epoch = trainer.get_train_iterator(epoch=1)
    trainer.begin_epoch(1)
    grouped = iterators.GroupedIterator(epoch.next_epoch_itr(), trainer.cfg.optimization.update_freq[0])
    return list(itertools.islice(grouped, count))


def spoil(trainer: Any, way: str, call: int = 0) -> None:
    """Make the criterion's loss go wrong in its call number `call` from now, in this process alone."""
    count = itertools.count()

    def hook(module: Any, inputs: Any, output: Any) -> Any:
        if next(count) != call:
            return output
        handle.remove()
        loss, *others = output
        return (WAYS[way](loss), *others)

    handle = trainer.get_criterion().register_forward_hook(hook, prepend=True)


WAYS = {
    "a loss that is no number": lambda loss: loss * float("nan"),
    "an infinite loss with finite gradients": lambda loss: loss + loss.new_full((), float("inf")),
    "infinite gradients of a finite loss": lambda loss: _infinite_gradient(loss),
}


def _infinite_gradient(loss: Tensor) -> Tensor:
    copy = loss.clone()
    copy.register_hook(lambda grad: grad * float("inf"))
    return copy


def state_of(trainer: Any) -> dict[str, Tensor]:
    """Copies of what an update changes: parameters, the optimizer's moments, and moving averages if there are."""
    state = {name: value.clone() for name, value in trainer.get_model().state_dict().items()}
    for index, entry in trainer.optimizer.optimizer.state_dict()["state"].items():
        state |= {f"{index}.{key}": torch.as_tensor(value).clone() for key, value in entry.items()}
    if trainer.cfg.ema.store_ema:
        state |= {f"ema.{name}": value.clone() for name, value in trainer.ema.get_model().state_dict().items()}
    return state
