"""Starting, killing and resuming a small real training run, and comparing what is left with an uninterrupted one."""

import json
import math
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_flatten_with_path

from fairseq_mtmoe.checkpoints import assemble, sharding
from fairseq_mtmoe.checkpoints.sharding import is_shared_part
from tests.helpers.benchmark import make_benchmark, make_encoder, task_arguments
from tests.helpers.commands import free_address, training_arguments
from tests.helpers.digits import make_digit_corpus
from tests.helpers.pemt import SOURCES, pemt_encoder, source_files
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


class Outcome(NamedTuple):
    """What a killed and resumed run ended with, beside an uninterrupted one."""

    difference: float  # the largest of all parameters and moments, NaN when they are not those of one model
    leftovers: tuple[str, ...]  # files that should not be there, and with a minus files that are missing


def is_equal(case: Case, outcome: Outcome) -> bool:
    """Whether nothing was lost: bit for bit in one process."""
    limit = TOLERANCE if case.processes > 1 else 0.0
    return outcome.difference <= limit and not outcome.leftovers


class References:
    """Uninterrupted runs, one for each kind of case."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._calls: dict[Path, list[dict[str, int]]] = {}

    def data(self, case: Case) -> Path:
        folder = self.folder / case.data
        if folder.exists():
            return folder
        if case.data == "translation":
            return make_digit_corpus(folder, train=600, valid=16, test=5)
        make_benchmark(folder, {"train": 320 if case.data in BORROWING else 80, "dev": 12})
        make_encoder(folder / "encoder.pt")
        for source in source_files(make=pemt_encoder) if case.data in BORROWING else ():
            shutil.copy(source, folder)
        return folder

    def calls(self, case: Case) -> dict[str, int]:
        """How often a case's victim would come to each point."""
        run = self._run(case)
        if run not in self._calls:
            counts = [run.with_suffix(f".{rank}.json") for rank in range(case.processes)]
            _start(self.data(case), run, case, case.processes, None, counts)
            self._calls[run] = [json.loads(file.read_text(encoding="utf-8")) for file in counts]
        return self._calls[run][case.victim]

    def killed(self, case: Case, save_dir: Path) -> Outcome:
        """Train with the kills of a case, each time started again, until the run ends by itself."""
        self.calls(case)  # of the run that nobody kills
        processes = case.processes
        for moment in (*case.moments, None):
            _start(self.data(case), save_dir, case, processes, moment)
            processes = case.resumed_by
        return compare(self._run(case), save_dir)

    def _run(self, case: Case) -> Path:
        return self.folder / f"{case.data}-uninterrupted{case.processes}{case.resumed_by}"


def _start(
    data: Path, save_dir: Path, case: Case, processes: int, moment: Moment | None, counts: Sequence[Path] = ()
) -> None:
    """One start of the command in some processes: all must end well or, with a moment, by the signal and after it."""
    address, workers, logs = free_address(), [], []
    for rank in range(processes):
        arguments = _arguments(data, save_dir, case, processes)
        if processes > 1:
            joined = ("--distributed-world-size", processes, "--distributed-rank", rank, "--distributed-no-spawn",
                      "--distributed-backend", "gloo", "--distributed-init-method", address,
                      "--distributed-timeout", TIMEOUT)  # fmt: skip
            arguments += map(str, joined)
        logs.append(save_dir.with_suffix(f".{rank}.log"))
        chosen = moment if rank == case.victim else None
        options = (arguments, chosen, logs[-1], counts[rank] if counts else None)
        workers.append(FORKED.Process(target=train, args=options))
    ends = _ends(workers)
    if moment is None:
        good = not any(ends)
    else:  # a companion of the killed one ends with an error, by itself
        others = [end for rank, end in enumerate(ends) if rank != case.victim]
        good = ends[case.victim] == -signal.SIGKILL and all(end not in (None, 0) for end in others)
    if not good:
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


def _arguments(data: Path, save_dir: Path, case: Case, processes: int) -> list[str]:
    frequency = ("--update-freq", case.processes // processes)
    alike = ALIKE_IN_ANY_NUMBER if case.resumed_by != case.processes else ()
    options = (*OPTIONS, *frequency, *alike)
    own = ("--init-encoder", data / "encoder.pt", "--batch-size", 16 // case.processes)
    if case.data in BORROWING:
        files = ",".join(str(data / f"{name}.pt") for name in SOURCES)
        stage = ("--pemt-stage", "source") if case.data == "source" else ("--pemt-sources", files)
        return [str(argument) for argument in task_arguments(data, save_dir, *own, *OF_BORROWING, *stage, *frequency)]
    if case.data == "benchmark":
        return [str(argument) for argument in task_arguments(data, save_dir, *own, *options)]
    batch = ("--max-tokens", 400 // case.processes)
    return [str(argument) for argument in training_arguments(data, save_dir, *OF_TRANSLATION, *batch, *options)]


def compare(reference: Path, resumed: Path) -> Outcome:
    expected, found = _checkpoints(reference), _checkpoints(resumed)
    differences = [difference(_load(reference / name), _load(resumed / name)) for name in expected & found]
    worst = float(np.max(differences)) if differences else math.nan
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
    one, other = (dict(tree_flatten_with_path(_state(checkpoint))[0]) for checkpoint in (first, second))
    if one.keys() != other.keys():
        return math.nan
    return float(np.max([_difference(value, other[name]) for name, value in one.items()]))


def _difference(one: Any, other: Any) -> float:
    """Of two tensors or numbers; what is neither is the same or of another run."""
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other)
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return 0.0 if one == other else math.nan
    if one.shape != other.shape or one.dtype != other.dtype:
        return math.nan
    return (one.double() - other.double()).abs().max().item() if one.numel() else 0.0


def _state(checkpoint: dict[str, Any]) -> Any:
    """All that must be equal: not the times, and not the averages that are only shown."""
    if "extra_state" not in checkpoint:  # a source's file
        return checkpoint
    extra = checkpoint["extra_state"]
    iterator = extra["train_iterator"]
    counted = "batches_in_epoch" if "batches_in_epoch" in iterator else "iterations_in_epoch"  # of fairseq's own tasks
    position = {name: iterator[name] for name in ("epoch", counted, "shuffle")}
    last = checkpoint["optimizer_history"][-1]  # fairseq adds an entry at each start
    updates = {name: last[name] for name in ("num_updates", "optimizer_name")}
    scores = {name: extra.get(name) for name in ("val_loss", "best")}
    tensors = [checkpoint["model"], extra.get("ema"), checkpoint["last_optimizer_state"]]
    return [*tensors, position, scores, updates]
