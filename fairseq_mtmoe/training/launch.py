"""Start of a run in processes of torchrun, of SLURM or of fairseq.

fairseq starts a process for each GPU.
fairseq counts GPUs, even with `--cpu`, and ignores torchrun on a machine without them.
"""

import functools
import logging
import os
from collections.abc import Callable, MutableMapping
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils
from torch import distributed as dist
from torch.distributed.constants import default_pg_timeout

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.core.errors import UserError, first_line, raise_invalid
from fairseq_mtmoe.core.options import check_rules
from fairseq_mtmoe.slots.options import RunOptions
from fairseq_mtmoe.training import failures, screen, stopping
from fairseq_mtmoe.training.option_check import refuse_full_sharding, refuse_what_needs_cuda

logger = logging.getLogger(__name__)

_LAUNCHED = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
_SLURM = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")


def starting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap fairseq's `call_main`: take over the launcher's processes, and join them."""

    @functools.wraps(original)
    def call_main(cfg: Any, main: Callable[..., Any], **kwargs: Any) -> Any:
        # With `--bf16` fairseq assumes a TPU.
        if cfg.common.bf16 and cfg.common.tpu and find_spec("torch_xla") is None:
            for options in cfg.values():
                if isinstance(options, MutableMapping) and "tpu" in options:
                    options["tpu"] = False
        with stopping.as_command(main), screen.training_log(cfg, main):
            if not cfg.common.tpu:
                _prepare(cfg, main)
            runs = main
            if stopping.is_training(main):
                runs = functools.partial(stopping.main_of_spawned, main)
            return original(cfg, runs, **kwargs)

    return call_main


def _prepare(cfg: Any, main: Callable[..., Any]) -> None:
    """Set the options of the start, check them, and join a launcher's processes."""
    options = cfg.distributed_training
    if not options.pipeline_model_parallel:
        take_launcher(options, _count_gpus(cfg))
    distributed_utils.infer_init_method(options)  # under SLURM this sets the process's rank
    if options.distributed_world_size == 0:  # by SLURM, with one task on each node without GPUs
        raise UserError(
            "`srun` must start two or more processes on each node without GPUs "
            "(`--ntasks-per-node`, and their number as `--distributed-world-size`), but starts "
            "one, and fairseq starts a process for each GPU; or start one torchrun on each node."
        )
    if stopping.is_training(main):
        refuse_what_needs_cuda(cfg)
        refuse_full_sharding(cfg)
        if options.distributed_rank == 0:
            file_io.expect_writable(cfg.checkpoint.save_dir)
    if options.distributed_init_method is not None and options.distributed_no_spawn:
        join(cfg)


def _count_gpus(cfg: Any) -> int:
    return 0 if cfg.common.cpu else torch.cuda.device_count()


def take_launcher(options: Any, num_gpus: int) -> None:
    """Set fairseq's options of processes by their launcher.

    A given address takes precedence, then torchrun's environment. fairseq reads SLURM's.

    Raises `UserError` if more processes are wanted than fairseq starts.
    """
    is_launched = (
        all(name in os.environ for name in _LAUNCHED) and int(os.environ["WORLD_SIZE"]) > 1
    )
    has_address = options.distributed_init_method is not None
    by_slurm = any(name in os.environ for name in _SLURM) and options.distributed_port > 0
    if has_address:
        if num_gpus == 0:  # fairseq would start no process
            options.distributed_no_spawn = True
            options.device_id = 0
    elif is_launched:
        rank = int(os.environ["RANK"])
        options.distributed_world_size = int(os.environ["WORLD_SIZE"])
        options.distributed_rank = rank
        options.distributed_init_method = "env://"
        options.distributed_no_spawn = True
        local_rank = int(os.environ.get("LOCAL_RANK", rank))
        options.device_id = local_rank % max(num_gpus, 1)
    elif by_slurm:
        return
    elif num_gpus == 0:
        if options.distributed_world_size not in (1, torch.cuda.device_count()):
            rule = "1 without GPUs; torchrun starts more processes"
            raise_invalid("--distributed-world-size", rule, options.distributed_world_size)
        options.distributed_world_size = 1
    elif options.distributed_world_size > num_gpus:
        rule = (
            f"at most {num_gpus}, the number of this machine's GPUs; torchrun starts more processes"
        )
        raise_invalid("--distributed-world-size", rule, options.distributed_world_size)


def join(cfg: Any) -> None:
    """Join this process with the others of the run (UserError: one is late)."""
    options = cfg.distributed_training
    model = getattr(cfg, "model", None)
    check_rules(model, RunOptions)
    seconds: int | None = getattr(model, "distributed_timeout", None)
    num_gpus = _count_gpus(cfg)
    if num_gpus:
        torch.cuda.set_device(options.device_id)
    rank = options.distributed_rank
    world_size = options.distributed_world_size
    method = options.distributed_init_method
    has_gpu_each = 0 < int(os.environ.get("LOCAL_WORLD_SIZE", 1)) <= num_gpus
    if options.distributed_backend == "nccl" and not has_gpu_each:
        options.distributed_backend = "gloo"
    timeout = default_pg_timeout if seconds is None else timedelta(seconds=seconds)
    logger.info(f"distributed init (rank {rank}): {method} by {options.distributed_backend}")
    try:
        dist.init_process_group(
            options.distributed_backend, method, rank=rank, world_size=world_size, timeout=timeout
        )
        failures.set_timeout(seconds)
        if num_gpus:
            dist.all_reduce(torch.zeros(1).cuda())  # as fairseq does, for NCCL to connect
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"Process {rank} of {world_size} could not join the others at {method} within "
            f"{timeout.total_seconds():g} seconds (`--distributed-timeout`); start all processes, "
            "with the same number and address and a different rank each, and see the first "
            f"message of the others. ({first_line(error)})"
        ) from error
