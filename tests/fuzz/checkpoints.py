"""Checkpoints in which one value is another, in the hands of the commands that read checkpoints."""

from __future__ import annotations

import atexit
import functools
import os
import random
import shutil
import tempfile
from pathlib import Path

from fairseq_mtmoe.checkpoints import file_io
from tests.fuzz.commands import fairseq, mtmoe
from tests.fuzz.harness import Reader
from tests.fuzz.odd_values import ODD, TENSORS, replace_one
from tests.golden.old_runs import OLD, RUNS
from tests.helpers.benchmark import make_benchmark, make_encoder, task_arguments
from tests.helpers.commands import PLUGIN, training_arguments
from tests.helpers.text_to_text import make_t5, text_arguments
from tests.helpers.training import run_here

GOLDEN = tuple(RUNS)
OTHERS = {
    "mt_tag": ("glue", task_arguments, "--glue-tasks", "cola,copa", "--init-encoder", "encoder.pt"),
    "ca_mtl": ("glue", task_arguments, "--arch", "ca_mtl", "--glue-tasks", "cola,stsb", "--init-encoder", "encoder.pt"),
    "t5": ("text_to_text", text_arguments, "--init-model", "t5.pt"),
}
UPDATES = 2
_PARTS = ("cfg", "cfg", "task_state", "extra_state", "optimizer_history", "last_optimizer_state", "model", None)


@functools.cache
def place() -> Path:
    """The folder of the checkpoints that tries begin with, made once, in a process of its own."""
    folder = Path(tempfile.mkdtemp(prefix="fuzzed-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # tries end without it
    child = os.fork()
    if not child:
        try:
            _make_all(folder)
        finally:
            os._exit(not (folder / "done").exists())
    assert os.waitpid(child, 0)[1] == 0, "no checkpoints to fuzz"
    return folder


def _make_all(folder: Path) -> None:
    for name in (*GOLDEN, "data"):
        shutil.copytree(OLD / name, folder / name)
    make_benchmark(folder / "nlu", {"train": 16, "dev": 8, "test": 4})
    os.chdir(folder / "nlu")
    make_encoder(Path("encoder.pt"))
    make_t5(Path("t5.pt"))
    for name in OTHERS:
        run_here(_trained(folder, name, folder / name, UPDATES, "--disable-validation"))
    (folder / "done").touch()


def _trained(folder: Path, name: str, save_dir: Path, updates: int, *more: object) -> tuple[object, ...]:
    if name in GOLDEN:
        return training_arguments(folder / "data", save_dir, *RUNS[name], "--max-update", updates, *more)
    _, arguments, *options = OTHERS[name]
    end = ("--restore-file", more[-1]) if "--restore-file" in more else ()
    options = options[:-2] if end else options
    return arguments(folder / "nlu", save_dir, *options, "--max-update", updates, *more)


def make(draw: random.Random, folder: Path) -> None:
    """Write `checkpoint.pt`, one of the checkpoints with one value changed, and what it is of."""
    name = draw.choice((*GOLDEN, *OTHERS))
    shutil.copytree(place() / name, folder, dirs_exist_ok=True)
    path = folder / "checkpoint_last.pt"
    state = file_io.load(str(path))
    part = draw.choice(_PARTS)
    if part == "cfg":
        part = draw.choice(("model", "task", "criterion", "optimizer", "lr_scheduler", "cfg", "cfg"))
        inside = state["cfg"] if part == "cfg" else state["cfg"][part]
    else:
        inside = state.get(part) if part else state
    change = replace_one(draw, inside or state, ODD + TENSORS)
    (folder / "change.txt").write_text(f"{name} {part or ''}{change}", errors="replace")
    file_io.save(state, str(path))


def read(folder: Path, draw: random.Random) -> object:
    name = (folder / "change.txt").read_text().split()[0]
    path, out, base = folder / "checkpoint_last.pt", folder / "out.pt", place()
    data = base / "data" if name in GOLDEN else base / "nlu"
    task = "translation_heated" if name in GOLDEN else OTHERS[name][0]
    ways = {
        "train": lambda: fairseq("train", *_trained(base, name, folder / "run", (9 if name in GOLDEN else UPDATES + 1),
                                  "--save-interval-updates", 0, "--disable-validation", "--restore-file", path)),
        "begin": lambda: fairseq("train", *_trained(base, name, folder / "run", 1, "--disable-validation",
                                  "--finetune-from-model", path)),
        "validate": lambda: fairseq("validate", data, *PLUGIN, "--task", task, "--path", path, "--cpu",
                                     "--batch-size", 16, "--no-progress-bar", "--num-workers", 0),
        "average": lambda: mtmoe("average", "--inputs", path, "--output", out),
        "evaluate": lambda: mtmoe("evaluate", data, "--path", path, "--cpu"),
    }  # fmt: skip
    if name in GOLDEN:
        ways["generate"] = lambda: fairseq(
            "generate", data, *PLUGIN, "--task", task, "-s", "en", "-t", "aa", "--path", path, "--cpu", "--beam", 2,
            "--max-len-b", 5,
        )  # fmt: skip
        ways["reshard"] = lambda: mtmoe("reshard", path, out, "--single-file")
        ways["add-task"] = lambda: mtmoe("add-task", path, out, "--task", "dd")
        ways["calibrate"] = lambda: mtmoe("calibrate", path, out, data, "--updates", 1, "--cpu")
        if name == "dense":
            ways["upcycle"] = lambda: mtmoe("upcycle", path, out, "--num-experts", 2)
    else:
        ways["predict"] = lambda: mtmoe("predict", data, "--path", path, "--subset", "valid", "--cpu")
    way = draw.choice(list(ways))
    (folder / "way.txt").write_text(way)
    return ways[way]()


def readers() -> list[Reader]:
    return [Reader("checkpoint", make, read, seconds=60, begin=place)]
