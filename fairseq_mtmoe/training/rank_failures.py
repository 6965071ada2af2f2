"""What a process says, and that it ends, when another process of the run is lost or does not answer.

gloo and NCCL raise in the middle of whatever they did, in words of their own, and a process that leaves through the
interpreter's ordinary exit can wait there for the others for ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch import distributed as dist
from torch.distributed import distributed_c10d

from fairseq_mtmoe.errors import UserError, find_user_error, first_line

# What gloo, the store that processes meet at, and NCCL say when another process is gone or silent.
_LOST = re.compile(
    r"gloo/transport|Connection (closed|reset|refused)|Timed out waiting|Broken pipe|Socket Timeout|[Ww]ait timeout"
    r"|TCPStore|Application timeout|NCCL (error|communicator)|ncclRemoteError|ncclSystemError"
    r"|collective operation timeout"
)

_seconds: float | None = None  # what `set_timeout` set last
_between_hosts: dict[Any, Any] = {}  # by the group of all processes, the one that `between_hosts` made beside it


class LostProcess(UserError):
    """Another process is gone or silent; why, it says itself, if it can."""


def several_processes() -> bool:
    """Whether this process is one of several that are joined."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def set_timeout(seconds: float) -> None:
    """Let every exchange between processes, of every group there is, fail after `seconds` without an answer."""
    global _seconds
    if not several_processes():
        return
    _seconds = seconds
    timeout = timedelta(seconds=seconds)
    distributed_c10d._get_default_store().set_timeout(timeout)
    for group in list(distributed_c10d._world.pg_map):
        distributed_c10d._set_pg_timeout(timeout, group)


def between_hosts() -> Any:
    """A group of all processes that sends between their hosts, and never by way of a GPU or its queue of work.

    The first call makes it, and must be made by all processes together.

    Raises:
        UserError: the hosts cannot reach each other in this way.
    """
    world = dist.group.WORLD
    if _backend() == "gloo":
        return world
    if world not in _between_hosts:
        try:
            _between_hosts.clear()
            _between_hosts[world] = dist.new_group(backend="gloo")
        except RuntimeError as error:
            words = first_line(error)
            raise UserError(
                "`GLOO_SOCKET_IFNAME` must name the network interface by which the machines of the run reach each "
                f"other, for what they agree on when they save; gloo could not join them. ({words})"
            ) from error
    return _between_hosts[world]


def made_between_hosts() -> Any:
    """The group of `between_hosts` where there is one already; else that of all processes."""
    return _between_hosts.get(dist.group.WORLD, dist.group.WORLD)


def _backend() -> str:
    return dist.get_backend()


@contextmanager
def naming_lost_processes() -> Iterator[None]:
    """Turn what the libraries raise when another process is lost into a sentence.

    Raises:
        UserError: another process is lost, or did not answer in time.
    """
    try:
        yield
    except Exception as error:
        lost = lost_process(error)
        if lost is None:
            raise
        raise lost from error


def lost_process(error: BaseException) -> LostProcess | None:
    """The sentence for an error that comes from losing another process; None for all other errors."""
    words = _words_of_loss(error)
    if words is None or not several_processes() or find_user_error(error) is not None:
        return None
    return lost_with(words)


def lost_with(words: str) -> LostProcess:
    """The sentence for losing another process, of which something is known."""
    within = "in time" if _seconds is None else f"within {_seconds:g} seconds (`--distributed-timeout`)"
    return LostProcess(
        f"Process {dist.get_rank()} of {dist.get_world_size()} lost another process, which failed, was killed or did "
        f"not answer {within}: see the first message of the others, and go on from checkpoint_last.pt. ({words})"
    )


def is_loss(error: BaseException) -> bool:
    """Whether an error comes from losing another process, as a sentence already or as a library said it."""
    return isinstance(find_user_error(error), LostProcess) or lost_process(error) is not None


def _words_of_loss(error: BaseException) -> str | None:
    """The first line of what a library says of losing another process, in a chain of errors; None for all else."""
    seen: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in seen:
        if isinstance(link, RuntimeError) and (isinstance(link, dist.DistNetworkError) or _LOST.search(str(link))):
            return first_line(link)
        seen.append(link)
        link = link.__cause__ or link.__context__
    return None
