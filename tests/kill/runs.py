"""Starting, killing and resuming a small real training run, and comparing what is left with an uninterrupted one."""

from __future__ import annotations

import json
import math
import shutil
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fairseq_mtmoe.checkpoints import assemble, sharding
from fairseq_mtmoe.checkpoints.sharding import is_shared_part
from tests.helpers.benchmark import make_benchmark, make_encoder, task_arguments
from tests.helpers.commands import training_arguments
from tests.helpers.digits import make_digit_corpus
from tests.helpers.pemt import SOURCES, source_files
from tests.helpers.pemt_bert import pemt_encoder
from tests.helpers.processes import FORKED
from tests.kill.moments import DENSE_UPDATES, UPDATES, Case, Moment
from tests.kill.victim import train

TOLERANCE = 1e-6  # of several processes, whose sums are made in another order when their number changes
SECONDS = 400  # for one start, which takes about 10 on an idle machine
TIMEOUT = 60  # after which the others of a killed process must have ended
# Three epochs and a few saves in each.
OPTIONS = (
    "--num-experts", 2, "--dense-updates", DENSE_UPDATES, "--dropout", 0.1, "--max-update", UPDATES,
    "--optimizer", "fused_adam", "--save-interval-updates", 16, "--store-ema", "--ema-decay", 0.9,
)  # fmt: skip
OF_TRANSLATION = (
    "--encoder-embed-dim", 32, "--encoder-ffn-embed-dim", 32, "--encoder-layers", 2, "--decoder-layers", 2,
    "--criterion", "moe_label_smoothed_cross_entropy", "--conditional", "attention,norm",
)  # fmt: skip
BORROWING = ("source", "target")  # the kinds of PEMT's stages
OF_BORROWING = (
    "--arch", "pemt_bert", "--glue-tasks", "wic", "--criterion", "pemt", "--adapter-rank", 3, "--adapter-alpha", 6,
    "--dropout", 0.1, "--max-update", UPDATES, "--optimizer", "fused_adam", "--save-interval-updates", 16,
)  # fmt: skip
# Dropout and BASE's balanced groups of tokens are other ones in another number of processes. So is rounding, which is
# all of the gradient of the keys' biases (softmax takes no notice of them): Adam's usual epsilon makes steps of it.
ALIKE_IN_ANY_NUMBER = ("--dropout", 0.0, "--expert-gates", "task", "--adam-eps", 1e-3)
BATCH = 400  # tokens of all processes
EXAMPLES = 16  # the same of a benchmark


@dataclass(frozen=True)
class Outcome:
    """What a killed and resumed run ended with, beside an uninterrupted one.

    Args:
        difference: the largest of all parameters and moments, NaN when they are not those of one model.
        leftovers: files that should not be there, and with a minus files that are missing.
    """

    difference: float
    leftovers: tuple[str, ...]


def is_equal(case: Case, outcome: Outcome) -> bool:
    """Whether nothing was lost: bit for bit in one process."""
    limit = TOLERANCE if case.processes > 1 else 0.0
    return outcome.difference <= limit and not outcome.leftovers


def make_data(folder: Path, kind: str) -> Path:
    if kind in BORROWING:
        make_benchmark(folder, {"train": 320, "dev": 12})
        for source in source_files(make=pemt_encoder):
            shutil.copy(source, folder)
    elif kind == "benchmark":
        make_benchmark(folder, {"train": 80, "dev": 12})
    if kind != "translation":
        make_encoder(folder / "encoder.pt")
        return folder
    return make_digit_corpus(folder, train=600, valid=16, test=5)


def uninterrupted(data: Path, save_dir: Path, case: Case) -> list[dict[str, int]]:
    """Train to the end as a case does without kills; returns how often each process came to each place."""
    counts = [save_dir.with_suffix(f".{rank}.json") for rank in range(case.processes)]
    _start(data, save_dir, case, case.processes, None, counts)
    return [json.loads(file.read_text(encoding="utf-8")) for file in counts]


class References:
    """Uninterrupted runs, one for each kind of case."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._calls: dict[Path, list[dict[str, int]]] = {}

    def data(self, case: Case) -> Path:
        folder = self.folder / case.data
        return folder if folder.exists() else make_data(folder, case.data)

    def place(self, case: Case) -> Path:
        """Where the run is that a case's must end like."""
        return self.folder / f"{case.data}-uninterrupted{case.processes}{case.resumed_by}"

    def calls(self, case: Case) -> dict[str, int]:
        """How often a case's victim would come to each place."""
        place = self.place(case)
        if place not in self._calls:
            self._calls[place] = uninterrupted(self.data(case), place, case)
        return self._calls[place][case.victim]


def killed(data: Path, save_dir: Path, reference: Path, case: Case) -> Outcome:
    """Train with the kills of a case, each time started again, until the run ends by itself."""
    processes = case.processes
    for moment in case.moments:
        _start(data, save_dir, case, processes, moment)
        processes = case.resumed_by
    _start(data, save_dir, case, processes, None)
    return compare(reference, save_dir)


def _start(
    data: Path, save_dir: Path, case: Case, processes: int, moment: Moment | None, counts: Sequence[Path] = ()
) -> None:
    """One start of the command in some processes: all must end well or, with a moment, by the signal and after it."""
    address, workers, logs = free_address(), [], []
    for rank in range(processes):
        arguments = _arguments(data, save_dir, case, processes)
        if processes > 1:
            arguments += _joined(processes, rank, address)
        logs.append(save_dir.with_suffix(f".{rank}.log"))
        chosen = moment if rank == case.victim else None
        options = (arguments, chosen, logs[-1], counts[rank] if counts else None)
        workers.append(FORKED.Process(target=train, args=options))
    ends = _ends(workers)
    good = [end == 0 for end in ends] if moment is None else _ended_by_the_kill(ends, case.victim)
    if not all(good):
        shown = "".join(f"\n-- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)
        raise AssertionError(f"{case.phase}, {moment}: the processes ended with {ends}{shown}")


def _ends(workers: list[Any]) -> list[int | None]:
    """Start processes and wait; returns how they ended, None for one that did not end by itself."""
    deadline = time.monotonic() + SECONDS
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
        return [worker.exitcode for worker in workers]
    finally:
        for worker in workers:
            if worker.pid is not None:
                worker.kill()


def _ended_by_the_kill(ends: list[int | None], victim: int) -> list[bool]:
    """For each process whether it was killed or, if it is another's companion, ended with an error by itself."""
    return [end == -signal.SIGKILL if rank == victim else end not in (None, 0) for rank, end in enumerate(ends)]


def _arguments(data: Path, save_dir: Path, case: Case, processes: int) -> list[str]:
    frequency = ("--update-freq", case.processes // processes)
    alike = ALIKE_IN_ANY_NUMBER if case.resumed_by != case.processes else ()
    options = (*OPTIONS, *frequency, *alike)
    own = ("--init-encoder", data / "encoder.pt", "--batch-size", EXAMPLES // case.processes)
    if case.data in BORROWING:
        files = ",".join(str(data / f"{name}.pt") for name in SOURCES)
        stage = ("--pemt-stage", "source") if case.data == "source" else ("--pemt-sources", files)
        return [str(argument) for argument in task_arguments(data, save_dir, *own, *OF_BORROWING, *stage, *frequency)]
    if case.data == "benchmark":
        return [str(argument) for argument in task_arguments(data, save_dir, *own, *options)]
    batch = ("--max-tokens", BATCH // case.processes)
    return [str(argument) for argument in training_arguments(data, save_dir, *OF_TRANSLATION, *batch, *options)]


def _joined(processes: int, rank: int, address: str) -> list[str]:
    return [
        "--distributed-world-size", str(processes), "--distributed-rank", str(rank), "--distributed-no-spawn",
        "--distributed-backend", "gloo", "--distributed-init-method", address, "--distributed-timeout", str(TIMEOUT),
    ]  # fmt: skip


def free_address() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{listener.getsockname()[1]}"


def compare(reference: Path, resumed: Path) -> Outcome:
    expected, found = _checkpoints(reference), _checkpoints(resumed)
    differences = [difference(_load(reference / name), _load(resumed / name)) for name in expected & found]
    worst = math.nan if not differences or any(map(math.isnan, differences)) else max(differences)
    named = {f"{path.relative_to(resumed)}" for name in found for path in _files(resumed / name)}
    there = {f"{path.relative_to(resumed)}" for path in resumed.rglob("*") if path.is_file()}
    extra = there - named - {path.name for path in reference.iterdir()} | (found - expected)
    return Outcome(worst, (*sorted(extra), *(f"-{name}" for name in sorted(expected - found))))


def _checkpoints(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("[!.]*.pt")}


def _files(checkpoint: Path) -> Iterator[Path]:
    yield checkpoint
    state = assemble.load_shared_part(checkpoint)
    yield from sharding.shards_of(checkpoint, state) if is_shared_part(state) else ()


def _load(checkpoint: Path) -> dict[str, Any]:
    state = assemble.load_shared_part(checkpoint)
    return assemble.whole(checkpoint, state) if "extra_state" in state else state


def difference(first: dict[str, Any], second: dict[str, Any]) -> float:
    """The largest difference of two checkpoints' parameters, moments, and places in the training; NaN if of others."""
    one, other = dict(_state(first)), dict(_state(second))
    if one.keys() != other.keys():
        return math.nan
    differences = [_difference(value, other[name]) for name, value in one.items()]
    return math.nan if any(map(math.isnan, differences)) else max(differences)


def _difference(one: Any, other: Any) -> float:
    """Of two tensors or numbers; what is neither is the same or of another run."""
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other)
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return 0.0 if one == other else math.nan
    if one.shape != other.shape or one.dtype != other.dtype:
        return math.nan
    return (one.double() - other.double()).abs().max().item() if one.numel() else 0.0


def _state(checkpoint: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """All that must be equal, with its names: not the times, and not the averages that are only shown."""
    if "extra_state" not in checkpoint:  # a source's file
        yield from _leaves("", checkpoint)
        return
    extra = checkpoint["extra_state"]
    iterator = extra["train_iterator"]
    counted = "batches_in_epoch" if "batches_in_epoch" in iterator else "iterations_in_epoch"  # of fairseq's own tasks
    place = {name: iterator[name] for name in ("epoch", counted, "shuffle")}
    last = checkpoint["optimizer_history"][-1]  # fairseq adds an entry at each start
    updates = {name: last[name] for name in ("num_updates", "optimizer_name")}
    scores = {name: extra.get(name) for name in ("val_loss", "best")}
    tensors = [checkpoint["model"], extra.get("ema"), checkpoint["last_optimizer_state"]]
    yield from _leaves("", [*tensors, place, scores, updates])


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else None
    )
    if entries is None:
        yield name, value
    else:
        for key, entry in entries:
            yield from _leaves(f"{name}/{key}", entry)
