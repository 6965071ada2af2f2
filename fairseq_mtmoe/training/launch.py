"""Start of a run's processes: their number, their launcher, and the device of each.

fairseq counts GPUs, even with `--cpu`. Without a GPU it starts no process, and ignores torchrun.
"""

import functools
import multiprocessing
import os
import socket
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils
from torch.multiprocessing.spawn import ProcessException, spawn

from fairseq_mtmoe import known_warnings
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.training import rendezvous, screen, stopping
from fairseq_mtmoe.training.option_check import refuse_full_sharding, refuse_what_needs_cuda

_LAUNCHED = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
_SLURM = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
register: Callable[[], None] | None = None  # `fairseq_mtmoe.register`, for the processes that this one starts


@dataclass(frozen=True)
class Launch:
    """Values of fairseq's options, and the number of processes to start on CPUs."""

    distributed_world_size: int
    distributed_rank: int
    distributed_init_method: str | None
    distributed_no_spawn: bool
    device_id: int
    spawn_on_cpus: int = 0


def resolve(options: Any, cpu: bool, num_gpus: int, environment: Mapping[str, str]) -> Launch:
    """Return how the processes of a run start.

    A given address takes precedence, then torchrun's environment. Without either, fairseq starts one process per GPU.
    On CPUs one process trains, unless `--distributed-world-size` differs from its default, the number of GPUs. A
    `UserError` is raised for more processes than GPUs without a launcher.
    """
    cpu = cpu or num_gpus == 0
    world_size, rank = options.distributed_world_size, options.distributed_rank
    method, no_spawn = options.distributed_init_method, options.distributed_no_spawn
    as_given = Launch(world_size, rank, method, no_spawn, options.device_id)
    if method is not None:  # without a GPU fairseq would start no process
        return Launch(world_size, rank, method, True, 0) if cpu else as_given
    if all(name in environment for name in _LAUNCHED) and int(environment["WORLD_SIZE"]) > 1:
        rank = int(environment["RANK"])
        device = 0 if cpu else int(environment.get("LOCAL_RANK", rank)) % num_gpus
        return Launch(int(environment["WORLD_SIZE"]), rank, "env://", True, device)
    if any(name in environment for name in _SLURM) and options.distributed_port > 0:
        return as_given
    if cpu:
        num_processes = 0 if world_size in (1, num_gpus) else world_size
        return Launch(num_processes or 1, rank, None, no_spawn, 0, spawn_on_cpus=num_processes)
    if world_size > num_gpus:
        rule = f"at most {num_gpus}, the number of this machine's GPUs, or the number of processes that torchrun starts"
        raise_invalid("--distributed-world-size", rule, world_size)
    return as_given


def starting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap fairseq's `call_main`: start processes as `resolve` says.

    Each of several processes begins with `rendezvous.distributed_main`.
    """

    @functools.wraps(original)
    def call_main(cfg: Any, main: Callable[..., Any], **kwargs: Any) -> Any:
        # With `--bf16` fairseq assumes a TPU.
        if cfg.common.bf16 and cfg.common.tpu and find_spec("torch_xla") is None:
            for options in cfg.values():
                if isinstance(options, MutableMapping) and "tpu" in options:
                    options["tpu"] = False
        with stopping.as_command(main), screen.of_command(cfg, main):
            return original(cfg, main, **kwargs) if cfg.common.tpu else _start(cfg, main, kwargs)

    return call_main


def _start(cfg: Any, main: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    """Call `main` in this process, or in newly started ones."""
    options = cfg.distributed_training
    spawned = 0
    if not options.pipeline_model_parallel:
        launch = resolve(options, cfg.common.cpu, torch.cuda.device_count(), os.environ)
        options.update({name: value for name, value in vars(launch).items() if name in options})
        spawned = launch.spawn_on_cpus
    if spawned:
        options.distributed_init_method = _local_address(options)
    distributed_utils.infer_init_method(options)  # under SLURM this sets the process's rank
    if stopping.is_training(main):
        refuse_what_needs_cuda(cfg)
        refuse_full_sharding(cfg)
        if options.distributed_rank == 0:
            file_io.expect_writable(cfg.checkpoint.save_dir)
    if spawned:
        return _spawn(cfg, main, {**kwargs, "start_rank": 0}, spawned)
    if options.distributed_init_method is None:
        return main(cfg, **kwargs)
    if options.distributed_no_spawn:
        return rendezvous.distributed_main(options.device_id, main, cfg, kwargs)
    spawned = min(torch.cuda.device_count(), options.distributed_world_size)
    return _spawn(cfg, main, {**kwargs, "start_rank": options.distributed_rank}, spawned)


def _spawn(cfg: Any, main: Callable[..., Any], kwargs: dict[str, Any], num_processes: int) -> None:
    """Start processes, wait for them, and raise the `UserError` of the first that failed."""
    cfg.distributed_training.distributed_rank = None
    # They import fairseq before the plugin. The user's own filters come later, and take precedence.
    asked = os.environ.get("PYTHONWARNINGS", "")
    if known_warnings.IN_SPAWNED not in asked:
        os.environ["PYTHONWARNINGS"] = f"{known_warnings.IN_SPAWNED},{asked}".rstrip(",")
    errors = multiprocessing.get_context("spawn").SimpleQueue()
    kwargs = {**kwargs, "parent": errors, "register": register}
    try:
        spawn(rendezvous.distributed_main, (main, cfg, kwargs), num_processes)
    except ProcessException as error:
        sentences: dict[int, str] = {}
        while not errors.empty():
            index, sentence = errors.get()
            sentences.setdefault(index, sentence)
        if error.error_index not in sentences:
            raise
        raise UserError(sentences[error.error_index]) from error


def _local_address(options: Any) -> str:
    if options.distributed_port > 0:
        return f"tcp://localhost:{options.distributed_port}"
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return f"tcp://localhost:{free.getsockname()[1]}"
