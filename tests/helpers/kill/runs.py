"""Starting, killing and resuming a small real training run, and comparing what is left with an uninterrupted one."""

import shutil
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten_with_path

from fairseq_mtmoe.checkpoints import assemble, sharding
from fairseq_mtmoe.checkpoints.sharding import is_shared_part
from tests.helpers.benchmark import make_benchmark, make_encoder, task_arguments
from tests.helpers.commands import free_address, training_arguments
from tests.helpers.digits import make_digit_corpus
from tests.helpers.kill.moments import DENSE_UPDATES, UPDATES, Case, Moment
from tests.helpers.kill.victim import train
from tests.helpers.pemt import SOURCES, pemt_encoder, source_files
from tests.helpers.processes import FORKED

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


class References:
    """Uninterrupted runs, one for each kind of case."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

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

    def kill(self, case: Case, save_dir: Path) -> None:
        """Train with the kills of a case, each time started again, and compare with a run that nobody kills."""
        run = self.folder / f"{case.data}-uninterrupted{case.processes}{case.resumed_by}"
        if not run.exists():
            _start(self.data(case), run, case, case.processes, None)
        processes = case.processes
        for moment in (*case.moments, None):
            _start(self.data(case), save_dir, case, processes, moment)
            processes = case.resumed_by
        tolerance = TOLERANCE if case.processes > 1 else 0.0  # bit for bit in one process
        assert_same_run(save_dir, run, tolerance)


def _start(data: Path, save_dir: Path, case: Case, processes: int, moment: Moment | None) -> None:
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
        workers.append(FORKED.Process(target=train, args=(arguments, chosen, logs[-1])))
    deadline = time.monotonic() + SECONDS
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
        ends = [worker.exitcode for worker in workers]  # None for one that did not end by itself
    finally:
        for worker in workers:
            if worker.pid is not None:
                worker.kill()
    if moment is None:
        good = not any(ends)
    else:  # a companion of the killed one ends with an error, by itself
        others = [end for rank, end in enumerate(ends) if rank != case.victim]
        good = ends[case.victim] == -signal.SIGKILL and all(end not in (None, 0) for end in others)
    if not good:
        shown = "".join(f"\n-- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)
        raise AssertionError(f"{case.phase}, {moment}: the processes ended with {ends}{shown}")


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


def assert_same_run(resumed: Path, reference: Path, tolerance: float) -> None:
    """Both folders have the same checkpoints, equal up to a tolerance, and the resumed run has no further file."""
    names = {path.name for path in reference.glob("[!.]*.pt")}
    assert {path.name for path in resumed.glob("[!.]*.pt")} == names
    expected_files = {resumed / path.name for path in reference.iterdir()}
    for name in names:
        right, found = (dict(tree_flatten_with_path(_state(folder / name))[0]) for folder in (reference, resumed))
        assert found.keys() == right.keys()
        for key, value in right.items():
            if isinstance(value, Tensor | float):
                torch.testing.assert_close(found[key], value, rtol=0, atol=tolerance)
            else:
                assert found[key] == value, f"{name}: {key}"
        shared_part = assemble.load_shared_part(resumed / name)
        if is_shared_part(shared_part):
            expected_files.update(sharding.shards_of(resumed / name, shared_part))
    assert {path for path in resumed.rglob("*") if path.is_file()} <= expected_files


def _state(path: Path) -> Any:
    """Return all that must be equal: not the times, and not the averages that are only shown."""
    checkpoint = assemble.load_shared_part(path)
    if "extra_state" not in checkpoint:  # a source's file
        return checkpoint
    checkpoint = assemble.whole(path, checkpoint)
    extra = checkpoint["extra_state"]
    iterator, last = extra["train_iterator"], checkpoint["optimizer_history"][-1]  # fairseq adds an entry at each start
    position = {name: iterator[name] for name in ("epoch", "batches_in_epoch", "shuffle")}
    updates = {name: last[name] for name in ("num_updates", "optimizer_name")}
    scores = {name: extra.get(name) for name in ("val_loss", "best")}
    return [checkpoint["model"], extra.get("ema"), checkpoint["last_optimizer_state"], position, scores, updates]
