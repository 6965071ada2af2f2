"""The messages between processes: counted in layers, passes and updates, as docs/concepts/communication.md has them.

`python -m tests.helpers.messages` counts updates again, writes the table there and prints the bytes;
`tests/distributed/test_communication.py` compares.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from torch import distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_mtmoe.io.tables import markdown_table
from tests.helpers.waits import DOCUMENT, marked

MARKED = marked("messages")
WORLD_SIZE = 2
BACKWARD = "gradients of what all processes have"
# What a message is for: the function that sends it, of those under way the last that is named here.
PURPOSES = {
    "TokenCounts.among": "numbers of tokens",
    "TokenShuffle.__call__": "shuffled tokens' scores, and the answers",
    "AllToAllDispatcher._counts": "numbers of rows",
    "AllToAllDispatcher.dispatch": "rows to their experts",
    "AllToAllDispatcher.combine": "results back",
    "_Exchanged.backward": "gradients of results, then of rows",
    "summed": "prices, what is logged, signals to stop",
    "clip_all.<locals>.norm_of_all": "the norm of experts' gradients",
}


@dataclass(frozen=True)
class Message:
    """One collective operation: torch's name, its numbers' type, and the bytes that leave this process.

    In an all-reduce they are those of its numbers, as much as leaves each of two processes.
    """

    operation: str
    dtype: str
    num_bytes: int
    purpose: str


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
    return Message(operation.strip("_"), str(numbers.dtype).removeprefix("torch."), num_bytes, _purpose())


def _place(boxed: Any) -> tuple[int, int]:
    group = dist.ProcessGroup.unbox(boxed)
    return group.rank(), group.size()


def _purpose() -> str:
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_qualname in PURPOSES:
            return PURPOSES[frame.f_code.co_qualname]
        frame = frame.f_back
    return BACKWARD


# ---- an update ----

MODELS: Mapping[str, tuple[str, ...]] = {
    "dense": ("--arch", "base_dense_tiny"),
    "BASE": ("--expert-gates", "base"),
    "task": ("--expert-gates", "task"),
    "both": ("--expert-gates", "base,task"),
}


def messages_of_updates(rank: int, data: Path, folder: Path) -> dict[str, list[Message]]:
    """What one of several processes sends in an update of each model, from the forward pass to what is logged."""
    logging.disable(logging.INFO)
    try:
        return {model: _of_update(data, folder / model, *options) for model, options in MODELS.items()}
    finally:
        logging.disable(logging.NOTSET)


def _of_update(data: Path, save_dir: Path, *options: str) -> list[Message]:
    from tests.helpers.trainers import groups_of, trainer_here

    several = ("--ddp-backend", "pytorch_ddp", "--distributed-world-size", WORLD_SIZE)
    ours = ("--criterion", "moe_label_smoothed_cross_entropy", "--optimizer", "fused_adam")
    trainer = trainer_here(data, save_dir, *several, *ours, *options)
    *earlier, last = groups_of(trainer, 3)
    for group in earlier:  # data parallelism makes its buckets there
        trainer.train_step(group)
    with watching() as messages:
        assert trainer.train_step(last)["loss"] > 0
    return messages


def purposes() -> list[str]:
    return list(dict.fromkeys([*PURPOSES.values(), BACKWARD]))


def table(updates: Mapping[str, list[Message]]) -> str:
    """How many messages each purpose has."""
    rows = [[each, *(_of(messages, each, 0) for messages in updates.values())] for each in purposes()]
    return markdown_table(["for", *updates], [*rows, ["all", *map(len, updates.values())]])


def byte_table(processes: Sequence[Mapping[str, list[Message]]]) -> str:
    """How many bytes leave all processes: which rows these are, and so how many, hangs on the routing."""
    models = list(processes[0])
    rows = [
        [each, *(f"{sum(_of(found[model], each, 1) for found in processes):,}" for model in models)]
        for each in purposes()
    ]
    return markdown_table(["for", *models], rows)


def _of(messages: list[Message], purpose: str, what: int) -> int:
    """Their number (0) or bytes (1)."""
    return sum((1, message.num_bytes)[what] for message in messages if message.purpose == purpose)


def counted() -> list[dict[str, list[Message]]]:
    """The messages of an update in each of two processes."""
    from tests.helpers.digits import make_digit_corpus
    from tests.helpers.processes import run_processes

    with tempfile.TemporaryDirectory() as name:
        data = make_digit_corpus(Path(name) / "data", train=400)
        return run_processes(messages_of_updates, WORLD_SIZE, data, Path(name))


if __name__ == "__main__":
    processes = counted()
    print(byte_table(processes))
    text = DOCUMENT.read_text()
    DOCUMENT.write_text(MARKED.sub(lambda found: found[1] + table(processes[0]) + found[3], text))
