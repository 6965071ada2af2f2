"""The first second of a run in several processes: they meet, compare their options, and choose how to talk.

fairseq's processes wait half an hour for one that does not come, and hang where their options differ. Here they meet at
torch's store first: each writes its options there, and the first one compares them with its own.
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
    """As fairseq's, and what ends this process is told to all others.

    A process that torch started, which has loaded no plugin yet, has among `kwargs` the plugin's `register` and a queue
    `parent`, for its number and the sentence that ends it.
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
    """Join this process with the others of the run, of which `--distributed-backend` can be told by then.

    If another one fails from then on, `report` is called with its sentence, and this process ends.
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
        logger.info(f"processes are joined by {backend}: {wanted} needs a GPU for each of them")
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
    """What this process computes on: a GPU by a name that no other GPU has."""
    if cfg.common.cpu or not torch.cuda.is_available():
        return CPU
    index = torch.cuda.current_device()
    return str(getattr(torch.cuda.get_device_properties(index), "uuid", f"{socket.gethostname()} {index}"))


def choose_backend(wanted: str, devices: list[str]) -> str:
    """NCCL joins processes that have a GPU each; where two share one, or are on CPUs, gloo does."""
    return "gloo" if wanted == "nccl" and (CPU in devices or len(set(devices)) < len(devices)) else wanted


class Rendezvous:
    """The store where all ranks compare their options; it waits for `seconds`, or as long as torch does."""

    def __init__(self, rank: int, world_size: int, seconds: float | None) -> None:
        self.rank, self.world_size = rank, world_size
        self.timeout = default_pg_timeout if seconds is None else timedelta(seconds=seconds)
        option = "" if seconds is None else " (`--distributed-timeout`)"
        self._within = f"within {self.timeout.total_seconds():g} seconds{option}"
        self._end = 0.0

    def store_at(self, method: str) -> Any:
        """The store at an address, as fairseq is given it; a `UserError` where nobody is."""
        # With the true number the first process would wait in here for the others, and could not say for whom.
        size = self.world_size if method.startswith("file:") else 1
        try:
            store, _, _ = next(rendezvous(method, self.rank, size, timeout=self.timeout))
        except (RuntimeError, ValueError) as error:
            if "EADDRINUSE" in str(error):
                raise UserError(
                    f"The address {method} must be free for process 0, but another process has it: choose another "
                    "port, and one `--distributed-rank` for each process."
                ) from error
            raise self.lost(f"process 0 at {method}", error) from error
        store.set_timeout(self.timeout)
        return store

    def take_rank(self, store: Any) -> None:
        """Raise a `UserError` if another process has this one's rank: that one's run may be under way, and goes on."""
        if store.add(f"taken {self.rank}", 1) > 1:
            raise UserError(
                f"`--distributed-rank` must be another one in each process, but two have {self.rank}; or the meeting "
                "place of `--distributed-init-method` is a file that an earlier run left, and must be removed."
            )

    def agree(self, store: Any, options: Options, device: str, wanted: str) -> str:
        """Compare the options of all processes, which call this together; returns the backend that joins them.

        Args:
            device: what this process computes on.
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
        """Wait for a key, asked for again and again: torch logs its own waits that end in vain."""
        while not store.check([key]):
            if (failed := failures.heard()) is not None:
                raise failed
            if time.monotonic() > self._end:
                missing = next((rank for rank in range(self.world_size) if not store.check([f"process {rank}"])), 0)
                raise UserError(
                    f"Process {self.rank} of {self.world_size} waited for process {missing}, which did not come "
                    f"{self._within}: start all of them, with the same `--distributed-world-size`, and see the "
                    "first message of the others."
                )
            time.sleep(_PAUSE)

    def lost(self, whom: str, error: Exception) -> UserError:
        """The sentence for what torch raises when another process cannot be reached."""
        return UserError(
            f"Process {self.rank} of {self.world_size} could not reach {whom} {self._within}: start all of them, with "
            f"the same `--distributed-init-method`, and see the first message of the others. ({first_line(error)})"
        )
