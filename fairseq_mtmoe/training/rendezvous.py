"""The first second of a run in several processes: they meet, compare their options, and choose how to talk.

fairseq's processes wait half an hour for one that does not come, without a word, and find out in the middle of a step,
by hanging or by a traceback, that their options differ. Here they meet at torch's store first, where nothing has to be
the same in all of them: each writes its options there, and compares those of all others with the first one's.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from datetime import timedelta
from multiprocessing.queues import SimpleQueue
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils
from torch import distributed as dist
from torch.distributed.constants import default_pg_timeout
from torch.distributed.rendezvous import rendezvous

from fairseq_mtmoe.errors import UserError, first_line, raise_invalid
from fairseq_mtmoe.training import failures, screen, stopping
from fairseq_mtmoe.training.option_check import Options, check_run_options, differing, first_difference, shared_options

logger = logging.getLogger(__name__)

CPU = "a CPU"
_GRACE = 2  # seconds that the store stays for the others after the first process found what is wrong
WRONG = "wrong"  # the key of what process 0 found to be wrong
_PAUSE = 0.05  # seconds


def distributed_main(i: int, main: Any, cfg: Any, kwargs: dict[str, Any]) -> None:
    """As fairseq's, also in a process that torch started, which has loaded no plugin yet.

    Such a process has `register` among `kwargs`. What ends one process is told to all others, which it ends, too, and
    to the one that started them, by the queue `parent`.

    Raises:
        UserError: another process does not come, cannot be reached, or has other options.
    """
    if register := kwargs.pop("register", None):
        register()
    parent = kwargs.pop("parent", None)

    def telling(cfg: Any, **kwargs: Any) -> None:
        try:
            main(cfg, **kwargs)
        except Exception as error:
            failures.tell(error)
            reason = failures.reason_of(error)
            if reason is error:
                raise
            raise reason from error
        finally:
            screen.close()
            failures.stop()

    with stopping.watched_if_training(main):
        options = cfg.distributed_training
        if options.distributed_rank is None:
            options.distributed_rank = kwargs.pop("start_rank", 0) + i
        if _place(cfg) != CPU:
            torch.cuda.set_device(i)
        if not dist.is_initialized():
            join(cfg, parent)
        distributed_utils.distributed_main(i, telling, cfg, kwargs)


def join(cfg: Any, parent: SimpleQueue[str] | None = None) -> None:
    """Join this process with the others of the run, of which `--distributed-backend` can be told by then.

    What then ends this process because another one failed, it says to its `parent`, or prints it without one.
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
    place = _place(cfg)
    ours = dist.PrefixStore("fairseq_mtmoe", store)  # type: ignore[attr-defined]
    wanted = options.distributed_backend
    options.distributed_backend = choose_backend(wanted, meeting.agree(ours, shared_options(cfg), place))
    if options.distributed_backend != wanted and rank == 0:
        backend = options.distributed_backend
        logger.info(f"processes are joined by {backend}: {wanted} needs a GPU for each of them")
    try:
        dist.init_process_group(
            options.distributed_backend, store=store, rank=rank, world_size=world_size, timeout=meeting.timeout
        )
        if seconds is not None:
            failures.set_timeout(seconds)
        if place != CPU:
            dist.all_reduce(torch.zeros(1).cuda())  # as fairseq does, for NCCL to connect
    except RuntimeError as error:
        raise meeting.lost("another process", error) from error
    failures.start(store, parent)
    logger.info(f"initialized host {socket.gethostname()} as rank {rank}")


def choose_backend(wanted: str, places: list[str]) -> str:
    """NCCL joins processes that have a GPU each; where two share one, or are on CPUs, gloo does.

    Args:
        wanted: `--distributed-backend`.
        places: the GPU of each process, or `CPU`.
    """
    if wanted != "nccl" or (CPU not in places and len(set(places)) == len(places)):
        return wanted
    return "gloo"


def _place(cfg: Any) -> str:
    """What this process computes on: a GPU by a name that no other GPU has."""
    if cfg.common.cpu or not torch.cuda.is_available():
        return CPU
    index = torch.cuda.current_device()
    return str(getattr(torch.cuda.get_device_properties(index), "uuid", f"{socket.gethostname()} {index}"))


class Rendezvous:
    """The store where all ranks compare their options before they do anything together.

    Args:
        rank: of this process.
        world_size: number of ranks.
        seconds: `--distributed-timeout`, how long to wait for them; None as long as torch does.
    """

    def __init__(self, rank: int, world_size: int, seconds: float | None) -> None:
        self.rank, self.world_size = rank, world_size
        self.timeout = default_pg_timeout if seconds is None else timedelta(seconds=seconds)
        option = "" if seconds is None else " (`--distributed-timeout`)"
        self._within = f"within {self.timeout.total_seconds():g} seconds{option}"

    def store_at(self, method: str) -> Any:
        """The store at an address, as fairseq is given it.

        Raises:
            UserError: nobody is there.
        """
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

    def agree(self, store: Any, options: Options, place: str) -> list[str]:
        """Compare the options with those of all processes, which call this together; returns the places of all.

        Raises:
            UserError: options differ, two processes have one rank, or not all come in time.
        """
        if store.add(f"taken {self.rank}", 1) > 1:
            raise UserError(
                f"`--distributed-rank` must be another one in each process, but two have {self.rank}; or the meeting "
                "place of `--distributed-init-method` is a file that an earlier run left, and must be removed."
            )
        store.set(f"process {self.rank}", json.dumps({"options": options, "place": place}))
        end = time.monotonic() + self.timeout.total_seconds()
        try:
            found: list[dict[str, Any]] = []
            for rank in range(self.world_size):
                found.append(self._wait(store, rank, end))
                first, other = found[0]["options"], found[-1]["options"]
                name = first_difference(first, other)
                if name is not None:
                    raise UserError(differing(name, first.get(name), rank, other.get(name)))
            return [process["place"] for process in found]
        except UserError as error:
            if self.rank == 0:
                store.set(WRONG, str(error))
                time.sleep(_GRACE)  # the store goes with this process
            raise

    def _wait(self, store: Any, rank: int, end: float) -> Any:
        """What a process wrote. Asked for again and again: torch logs its own waits that end in vain."""
        try:
            while not store.check([f"process {rank}"]):
                if store.check([WRONG]):  # process 0 began to wait earlier
                    raise UserError(store.get(WRONG).decode())
                if time.monotonic() > end:
                    raise UserError(
                        f"Process {self.rank} of {self.world_size} waited for process {rank}, which did not come "
                        f"{self._within}: start all of them, with the same `--distributed-world-size`, and see the "
                        "first message of the others."
                    )
                time.sleep(_PAUSE)
            return json.loads(store.get(f"process {rank}"))
        except RuntimeError as error:
            raise self.lost(f"process {rank}", error) from error

    def lost(self, whom: str, error: Exception) -> UserError:
        """The sentence for what torch raises when another process cannot be reached."""
        return UserError(
            f"Process {self.rank} of {self.world_size} could not reach {whom} {self._within}: start all of them, with "
            f"the same `--distributed-init-method`, and see the first message of the others. ({first_line(error)})"
        )
