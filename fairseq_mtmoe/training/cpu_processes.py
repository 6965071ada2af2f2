"""Processes that fairseq's start does not provide for: without a GPU, or with one GPU on each of several machines.

With `--ddp-backend pytorch_ddp`, its default, fairseq names a GPU for modules on the CPU, which torch refuses; under
torchrun it divides by the number of GPUs, and overlooks torchrun where one GPU, or none, makes it expect one process;
and what is no tensor goes from process to process by way of GPUs only.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.models import distributed_fairseq_model
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LAUNCHED = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")


def install() -> None:
    """Put these functions in the place of fairseq's. Safe to call any number of times."""
    distributed_fairseq_model.DistributedDataParallel = data_parallel
    if not hasattr(distributed_utils.infer_init_method, "installed_by"):
        distributed_utils.infer_init_method = _with_launcher(distributed_utils.infer_init_method)
        distributed_utils.all_gather_list = _from_cpus(distributed_utils.all_gather_list)


def data_parallel(module: nn.Module, **options: Any) -> DistributedDataParallel:
    """torch's wrapper with fairseq's options; a module on the CPU gets no device."""
    if all(parameter.device.type == "cpu" for parameter in module.parameters()):
        options |= {"device_ids": None, "output_device": None}
    return DistributedDataParallel(module, **options)


def _from_cpus(original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    def all_gather_list(data: Any, group: Any = None, max_size: int = 16384) -> list[Any]:
        """As fairseq's: the data of all processes, which it sends by GPU."""
        if torch.cuda.is_available():
            return original(data, group, max_size)
        gathered: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(gathered, data, group=group)
        return gathered

    return all_gather_list


def _with_launcher(original: Callable[..., None]) -> Callable[..., None]:
    def infer_init_method(cfg: Any, force_distributed: bool = False) -> None:
        """As fairseq's, which finds out how processes meet; what torchrun says counts first."""
        launched = all(name in os.environ for name in LAUNCHED) and int(os.environ["WORLD_SIZE"]) > 1
        if cfg.distributed_init_method is None and launched and not cfg.tpu:
            cfg.distributed_world_size = int(os.environ["WORLD_SIZE"])
            if not torch.cuda.is_available():
                _join_without_gpus(cfg)
        original(cfg, force_distributed)

    infer_init_method.installed_by = __name__  # type: ignore[attr-defined]
    return infer_init_method


def _join_without_gpus(cfg: Any) -> None:
    cfg.distributed_init_method = "env://"
    cfg.distributed_rank = int(os.environ["RANK"])
    cfg.device_id = 0
    cfg.distributed_no_spawn = True
    if cfg.distributed_backend == "nccl":
        cfg.distributed_backend = "gloo"
