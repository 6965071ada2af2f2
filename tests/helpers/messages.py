"""The messages between processes, watched as torch sends them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch import distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True)
class Message:
    """One collective operation: torch's name, its numbers' type, and the bytes that leave this process."""

    operation: str
    dtype: str
    num_bytes: int


@contextmanager
def watching() -> Iterator[list[Message]]:
    """Collect the messages that this process takes part in; those of torch's own data parallelism, too."""
    with _Watch() as watch:
        yield watch.messages


class _Watch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Message] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "c10d":
            self.messages.append(_described(function.overloadpacket.__name__, args))
        return function(*args, **(kwargs or {}))


def _described(operation: str, args: tuple[Any, ...]) -> Message:
    sent = args[1] if isinstance(args[1], (Tensor, list)) else args[0]  # a sum or a broadcast takes its operand's place
    numbers: Tensor = sent[0] if isinstance(sent, list) else sent
    num_bytes = numbers.nbytes
    if operation == "alltoall_base_":
        _, _, boxed, _, parts, *_ = args
        rank, size = _place(boxed)
        stays = parts[rank] if parts else len(numbers) // size
        num_bytes = numbers[: len(numbers) - stays].nbytes
    elif operation.startswith(("allgather_", "_allgather_base_")):
        num_bytes *= _place(args[2])[1] - 1
    return Message(operation.strip("_"), str(numbers.dtype).removeprefix("torch."), num_bytes)


def _place(boxed: Any) -> tuple[int, int]:
    group = dist.ProcessGroup.unbox(boxed)
    return group.rank(), group.size()
