"""Rendezvous of a run's processes: at start-up all ranks compare their options and report missing ranks.

In fairseq, processes wait half an hour for a missing one, and hang if their options differ. Here each rank first writes
its options to torch's store, and rank 0 compares them with its own. Then they choose the backend.
"""

import json
import logging
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.queues import SimpleQueue
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils
from torch import distributed as dist
from torch.distributed.constants import default_pg_timeout
from torch.distributed.rendezvous import rendezvous

from fairseq_mtmoe.errors import UserError, find_user_error, first_line, raise_invalid
from fairseq_mtmoe.training import failures, screen, stopping
from fairseq_mtmoe.training.option_check import Options, check_run_options, expect_same, shared_options

logger = logging.getLogger(__name__)

CPU = "a CPU"
_PAUSE = 0.05  # seconds


def distributed_main(i: int, main: Any, cfg: Any, kwargs: dict[str, Any]) -> None:
    """Run fairseq's `distributed_main`, and send an error to all other processes.

    In a process that torch spawned, `kwargs` has the plugin's `register`, which must be called first, and a queue
    `parent` for the process's number and error.
    """
    if register := kwargs.pop("register", None):
        register()
    parent: SimpleQueue[tuple[int, str]] | None = kwargs.pop("parent", None)
    report = failures.print_error if parent is None else lambda sentence: parent.put((i, sentence))
    with stopping.as_command(main):
        options = cfg.distributed_training
        if options.distributed_rank is None:
            options.distributed_rank = kwargs.pop("start_rank", 0) + i
        if _device(cfg) != CPU:
            torch.cuda.set_device(i)
        try:
            if not dist.is_initialized():
                join(cfg, report)
            distributed_utils.distributed_main(i, main, cfg, kwargs)
        except Exception as error:
            failures.tell(error)
            reason = failures.reason_of(error)
            sentence = find_user_error(reason)
            if parent is not None and sentence is not None:
                report(str(sentence))
            if reason is error:
                raise
            raise reason from error
        finally:
            screen.close()
            failures.stop()


def join(cfg: Any, report: Callable[[str], None]) -> None:
    """Join this process with the others of the run, and set `--distributed-backend`.

    If another process fails later, `report` is called with its sentence, and this process ends.
    """
    options = cfg.distributed_training
    rank, world_size, method = options.distributed_rank, options.distributed_world_size, options.distributed_init_method
    if not 0 <= rank < world_size:
        raise_invalid("--distributed-rank", f"from 0 to {world_size - 1} in {world_size} processes", rank)
    model = getattr(cfg, "model", None)
    check_run_options(model)
    seconds: int | None = getattr(model, "distributed_timeout", None)
    meeting = Rendezvous(rank, world_size, seconds)
    logger.info(f"distributed init (rank {rank}): {method}")
    store = meeting.store_at(method)
    ours = dist.PrefixStore("fairseq_mtmoe", store)  # type: ignore[attr-defined]
    meeting.take_rank(ours)
    failures.start(store, rank, world_size, report)
    wanted = options.distributed_backend
    options.distributed_backend = meeting.agree(ours, shared_options(cfg), _device(cfg), wanted)
    if options.distributed_backend != wanted and rank == 0:
        backend = options.distributed_backend
        logger.info(f"processes communicate by {backend}: {wanted} needs a GPU for each of them")
    try:
        dist.init_process_group(
            options.distributed_backend, store=store, rank=rank, world_size=world_size, timeout=meeting.timeout
        )
        failures.set_timeout(seconds)
        if _device(cfg) != CPU:
            dist.all_reduce(torch.zeros(1).cuda())  # as fairseq does, for NCCL to connect
    except RuntimeError as error:
        raise meeting.lost("another process", error) from error
    logger.info(f"initialized host {socket.gethostname()} as rank {rank}")


def _device(cfg: Any) -> str:
    """Return the device of this process: `a CPU`, or a unique name of the GPU."""
    if cfg.common.cpu or not torch.cuda.is_available():
        return CPU
    index = torch.cuda.current_device()
    return str(getattr(torch.cuda.get_device_properties(index), "uuid", f"{socket.gethostname()} {index}"))


def choose_backend(wanted: str, devices: list[str]) -> str:
    """Return gloo instead of NCCL if processes share a GPU or run on CPUs, else `wanted`."""
    return "gloo" if wanted == "nccl" and (CPU in devices or len(set(devices)) < len(devices)) else wanted


class Rendezvous:
    """Comparison of options by all ranks; waits `seconds`, by default torch's timeout."""

    def __init__(self, rank: int, world_size: int, seconds: float | None) -> None:
        self.rank, self.world_size = rank, world_size
        self.timeout = default_pg_timeout if seconds is None else timedelta(seconds=seconds)
        option = "" if seconds is None else " (`--distributed-timeout`)"
        self._within = f"within {self.timeout.total_seconds():g} seconds{option}"
        self._end = 0.0

    def store_at(self, method: str) -> Any:
        """Return the store at an address in fairseq's form (UserError: nobody answers)."""
        # With the true number, rank 0 would wait in here for the others, and could not report who is missing.
        size = self.world_size if method.startswith("file:") else 1
        try:
            store, _, _ = next(rendezvous(method, self.rank, size, timeout=self.timeout))
        except (RuntimeError, ValueError) as error:
            if "EADDRINUSE" in str(error):
                raise UserError(
                    f"The address {method} must be free for process 0, but another process uses it; choose another "
                    "port, and a different `--distributed-rank` for each process."
                ) from error
            raise self.lost(f"process 0 at {method}", error) from error
        store.set_timeout(self.timeout)
        return store

    def take_rank(self, store: Any) -> None:
        """Raise a `UserError` if another process has this one's rank; that process continues."""
        if store.add(f"taken {self.rank}", 1) > 1:
            raise UserError(
                f"`--distributed-rank` must be different in each process, but two have {self.rank}; or "
                "`--distributed-init-method` names a file that an earlier run left, which must be removed."
            )

    def agree(self, store: Any, options: Options, device: str, wanted: str) -> str:
        """Compare the options of all ranks, and return the backend; a collective call.

        Args:
            device: the device of this process.
            wanted: `--distributed-backend`.
        """
        self._end = time.monotonic() + self.timeout.total_seconds()
        try:
            store.set(f"process {self.rank}", json.dumps([options, device]))
            if self.rank == 0:
                store.set("backend", choose_backend(wanted, self._devices_of_all(store, options)))
            self._wait(store, "backend")
            return str(store.get("backend").decode())
        except RuntimeError as error:
            raise self.lost("process 0", error) from error

    def _devices_of_all(self, store: Any, options: Options) -> list[str]:
        devices = []
        for rank in range(self.world_size):
            self._wait(store, f"process {rank}")
            other, device = json.loads(store.get(f"process {rank}"))
            expect_same(options, other, rank)
            devices.append(device)
        return devices

    def _wait(self, store: Any, key: str) -> None:
        """Poll the store for a key: torch would log its own waits that time out."""
        while not store.check([key]):
            if (failed := failures.heard()) is not None:
                raise failed
            if time.monotonic() > self._end:
                missing = next((rank for rank in range(self.world_size) if not store.check([f"process {rank}"])), 0)
                raise UserError(
                    f"Process {self.rank} of {self.world_size} waited for process {missing}, which did not start "
                    f"{self._within}; start all processes, with the same `--distributed-world-size`, and see the "
                    "first message of the others."
                )
            time.sleep(_PAUSE)

    def lost(self, other: str, error: Exception) -> UserError:
        """Return the error of a process that cannot be reached; `error` is torch's."""
        return UserError(
            f"Process {self.rank} of {self.world_size} could not reach {other} {self._within}; start all processes, "
            f"with the same `--distributed-init-method`, and see the first message of the others. ({first_line(error)})"
        )
