"""The error sentence of a failed process, and the timeouts of process groups.

gloo and NCCL raise unclear errors when another process is gone. A process that lost another one
ends with a clear sentence instead. The launcher ends the other processes.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any

from torch import distributed as dist
from torch.distributed import distributed_c10d
from torch.multiprocessing.spawn import ProcessRaisedException

from fairseq_mtmoe.core.errors import UserError, chain_of, find_user_error, first_line

# Messages of gloo, of the rendezvous store and of NCCL when another process is gone or silent.
_LOST = re.compile(
    r"gloo/transport|Connection (closed|reset|refused)|Timed out waiting|Broken pipe"
    r"|Socket Timeout|[Ww]ait timeout"
    r"|TCPStore|Application timeout|NCCL (error|communicator)|ncclRemoteError|ncclSystemError"
    r"|collective operation timeout"
)
_seconds: float | None = None  # the last value of `set_timeout`
_between_hosts: dict[Any, Any] = {}  # the group of `between_hosts`, by the group of all processes

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


# ---- groups and their timeout ----


def several_processes() -> bool:
    """Return whether this process is one of several in a process group."""
    return dist.is_initialized() and dist.get_world_size() > 1


def set_timeout(seconds: float | None) -> None:
    """Set the timeout of every process group and of the store; None keeps it."""
    global _seconds
    if seconds is None or not several_processes():
        return
    _seconds = seconds
    timeout = timedelta(seconds=seconds)
    distributed_c10d._get_default_store().set_timeout(timeout)
    for group in list(distributed_c10d._world.pg_map):
        distributed_c10d._set_pg_timeout(timeout, group)


def between_hosts(make: bool = True) -> Any:
    """Return a gloo group of all processes, which never sends through a GPU.

    A collective call. Without `make`, it returns the default group if there is no such group yet.

    Raises:
        UserError: gloo cannot connect the hosts.
    """
    world = dist.group.WORLD
    if dist.get_backend() == "gloo":
        return world
    if make and world not in _between_hosts:
        try:
            _between_hosts.clear()
            _between_hosts[world] = dist.new_group(backend="gloo")
        except RuntimeError as error:
            raise UserError(
                "`GLOO_SOCKET_IFNAME` must name the network interface by which the machines of "
                "the run reach each other; gloo, through which they save together, could not "
                f"connect them. ({first_line(error)})"
            ) from error
    return _between_hosts.get(world, world)


# ---- the end of a command ----


def lost_process(error: BaseException) -> UserError | None:
    """Return the sentence of a lost process if a message means one, else None."""
    for link in chain_of(error):
        if isinstance(link, RuntimeError) and (
            isinstance(link, dist.DistNetworkError) or _LOST.search(str(link))
        ):
            within = "in time"
            if _seconds is not None:
                within = f"within {_seconds:g} seconds (`--distributed-timeout`)"
            who = "This process"
            if dist.is_initialized():
                who = f"Process {dist.get_rank()} of {dist.get_world_size()}"
            return UserError(
                f"{who} lost another process, which failed, was killed or did not answer "
                f"{within}; see the first message of the other processes, and continue from "
                f"checkpoint_last.pt. ({first_line(link)})"
            )
    return None


def spawned_error(error: BaseException) -> UserError | None:
    """Return the `UserError` of a process that fairseq spawned, or None.

    It is in the last line of torch's report.
    """
    if not isinstance(error, ProcessRaisedException):
        return None
    kind, _, sentence = str(error).strip().rpartition("\n")[2].partition(": ")
    return UserError(sentence) if kind.endswith(UserError.__name__) else None


def showing_sentences(previous: Hook) -> Hook:
    """Return a `sys.excepthook` that prints a `UserError` or Ctrl-C without traceback."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sentence = find_user_error(error) or lost_process(error) or spawned_error(error)
        if kind is KeyboardInterrupt:  # a training handles it from its start on
            print("SIGINT ended the command.", file=sys.stderr, flush=True)
        elif sentence is None:
            previous(kind, error, trace)
        else:
            print(f"error: {sentence}", file=sys.stderr, flush=True)
        if several_processes():
            # Exit only after torch's hook around this one has printed its report.
            atexit.register(_leave)

    # Without this, hydra prints exceptions itself, with a stack trace.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    return hook


def _leave() -> None:
    """End this process at once; an orderly exit could wait for the others."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
