"""fairseq's trainer on a digit corpus, inside a test's process, alone or as one of several; and losses gone wrong."""

import copy
import itertools
from collections.abc import Container
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from tests.helpers.commands import training_arguments
from tests.helpers.training import configured

NO_NUMBER = "a loss that is no number"
NO_MEMORY = "no memory for a batch"


def trainer_here(data: object, save_dir: object, *options: object, **changes: Any) -> Any:
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


def take(trainer: Any, groups: list[Any], spoiled: Container[int] = (), way: str = NO_NUMBER) -> list[Any]:
    """Train on each group of batches; `spoiled` are the numbers of those that go wrong in their last batch."""
    outputs = []
    for number, samples in enumerate(groups):
        if number in spoiled:
            spoil(trainer, way, call=len(samples) - 1)
        outputs.append(trainer.train_step(copy.deepcopy(samples)))
    return outputs


def groups_of(trainer: Any, count: int) -> list[Any]:
    from fairseq.data import iterators

    epoch = trainer.get_train_iterator(epoch=1)
    trainer.begin_epoch(1)
    grouped = iterators.GroupedIterator(epoch.next_epoch_itr(), trainer.cfg.optimization.update_freq[0])
    return list(itertools.islice(grouped, count))


def updated(arguments: tuple[object, ...], updates: int, update_freq: int = 1, **changes: Any) -> dict[str, Any]:
    """What some updates do to a model in one of two processes, or in one with twice the `update_freq`.

    These are the final model and moving average as numpy arrays; the names of what is `frozen`, and of what of it
    `moved` or has `gradients`; and how many parameters the optimizer `remembered`.
    """
    from fairseq import checkpoint_utils

    trainer = trainer_of(arguments, optimization__update_freq=[update_freq * 2 // dist.get_world_size()], **changes)
    if trainer.cfg.checkpoint.finetune_from_model:
        checkpoint_utils.load_checkpoint(trainer.cfg.checkpoint, trainer)
    norms, clip, model = [], trainer.clip_grad_norm, trainer.get_model()
    trainer.clip_grad_norm = lambda clip_norm: norms.append(clip(clip_norm)) or norms[-1]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    losses = [trainer.train_step(samples)["loss"] for samples in groups_of(trainer, updates)]
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    return {
        "losses": losses,
        "norms": [float(norm) for norm in norms],
        "state": _as_arrays(model),
        "averaged": _as_arrays(trainer.ema.get_model()) if trainer.cfg.ema.store_ema else {},
        "frozen": frozen,
        "moved": [name for name in frozen if not torch.equal(model.get_parameter(name), before[name])],
        "gradients": [name for name in frozen if model.get_parameter(name).grad is not None],
        "remembered": len(trainer.optimizer.state_dict()["state"]),
    }


def _as_arrays(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: value.float().numpy().copy() for name, value in model.state_dict().items()}


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
    NO_NUMBER: lambda loss: loss * float("nan"),
    "an infinite loss with finite gradients": lambda loss: loss + loss.new_full((), float("inf")),
    "infinite gradients of a finite loss": lambda loss: _infinite_gradient(loss),
    NO_MEMORY: lambda loss: _no_memory(),
}


def _no_memory() -> Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def _infinite_gradient(loss: Tensor) -> Tensor:
    scaled = loss.clone()
    scaled.register_hook(lambda grad: grad * float("inf"))
    return scaled


def state_of(trainer: Any) -> dict[str, Tensor]:
    """Copies of what an update changes: parameters, the optimizer's moments, and moving averages if there are."""
    state = {name: value.clone() for name, value in trainer.get_model().state_dict().items()}
    for index, entry in trainer.optimizer.optimizer.state_dict()["state"].items():
        state |= {f"{index}.{key}": torch.as_tensor(value).clone() for key, value in entry.items()}
    if trainer.cfg.ema.store_ema:
        state |= {f"ema.{name}": value.clone() for name, value in trainer.ema.get_model().state_dict().items()}
    return state
