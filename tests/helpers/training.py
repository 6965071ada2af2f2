"""fairseq's training command inside a test's process, alone or as one of several, with what its updates computed."""

import copy
import functools
import itertools
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import distributed as dist

from tests.helpers.commands import training_arguments


def train_here(data: object, save_dir: object, *options: object) -> dict[str, Any]:
    return run_here(training_arguments(data, save_dir, *options))


def run_here(options: Iterable[object]) -> dict[str, Any]:
    """Run `fairseq-train` with these options as the process of this rank, if processes are joined.

    Returns:
        `norms` and `losses` of each update, and the final `parameters` and `prices` of this process, by name, as numpy
        arrays;
        `validations`: the losses of the validations, or what `--best-checkpoint-metric` names.
    """
    from fairseq import checkpoint_utils
    from fairseq.logging import metrics

    cfg = configured(options)
    from fairseq_cli import train

    from fairseq_mtmoe.training import stopping

    logging.disable(logging.INFO)
    result: dict[str, Any] = {"norms": [], "losses": [], "validations": []}
    metrics.reset()
    vars(checkpoint_utils.save_checkpoint).pop("best", None)  # another run's of this process
    with stopping.watched(), _watched(result):
        train.main(cfg)
    return result


def configured(options: Iterable[object]) -> Any:
    """fairseq's configuration of these options of `fairseq-train` for the process of this rank."""
    cfg = copy.deepcopy(_parsed(tuple(map(str, options))))
    if dist.is_initialized():
        cfg.distributed_training.distributed_world_size = dist.get_world_size()
        cfg.distributed_training.distributed_rank = dist.get_rank()
    return cfg


@functools.cache
def _parsed(options: tuple[str, ...]) -> Any:
    from fairseq import options as fairseq_options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    from fairseq_mtmoe import register

    register()
    arguments = fairseq_options.parse_args_and_arch(fairseq_options.get_training_parser(), list(options))
    return convert_namespace_to_omegaconf(arguments)


@contextmanager
def interrupted(number: signal.Signals, method: str, when: int) -> Iterator[Any]:
    """Send this process a signal as `signalled` does, and expect it to exit."""
    with signalled(number, method, when), pytest.raises(SystemExit) as ended:
        yield ended


@contextmanager
def signalled(number: signal.Signals, method: str, when: int, at_calls: bool = True) -> Iterator[None]:
    """Send this process a signal when a method of the trainer begins.

    This is in its call number `when`, or with `at_calls=False` after as many updates.
    """
    from fairseq_mtmoe.training import stopping
    from fairseq_mtmoe.training.trainer import SparseTrainer

    original, calls = getattr(SparseTrainer, method), itertools.count(1)

    def interrupting(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        if when == (next(calls) if at_calls else trainer.get_num_updates()):
            os.kill(os.getpid(), number)
            wait_for(stopping.received)
        return original(trainer, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(SparseTrainer, method, interrupting)
        yield


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextmanager
def _watched(result: dict[str, Any]) -> Iterator[None]:
    """Note what the trainer's steps return, and its model at the end."""
    from fairseq_cli import train

    from fairseq_mtmoe.training.trainer import SparseTrainer

    def noted(name: str, value: Any) -> Any:
        result[name].append(float(value) if torch.is_tensor(value) else value)
        return value

    def watched_step(trainer: Any, samples: Any, *args: Any, **kwargs: Any) -> Any:
        output = train_step(trainer, samples, *args, **kwargs)
        if output is not None:
            result["losses"].append(float(output["loss"]))
        model = trainer.get_model()
        named, buffers = model.named_parameters(), model.named_buffers()
        result["parameters"] = {name: parameter.detach().float().numpy().copy() for name, parameter in named}
        result["prices"] = {name: buffer.numpy().copy() for name, buffer in buffers if ".prices." in name}
        return output

    train_step, clip_grad_norm, validate = SparseTrainer.train_step, SparseTrainer.clip_grad_norm, train.validate
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(SparseTrainer, "train_step", watched_step)
        patches.setattr(SparseTrainer, "clip_grad_norm", lambda *args: noted("norms", clip_grad_norm(*args)))
        patches.setattr(train, "validate", lambda *args: noted("validations", validate(*args)))
        yield
