"""Running the real commands, as a user does."""

import os
import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.helpers.warm_start import Forked, run_forked

REPOSITORY = Path(__file__).parents[2]
DEFAULT_SAVE_DIR = REPOSITORY / "checkpoints"  # fairseq's: nobody wants it in a checkout
BIN = Path(sys.executable).parent
PLUGIN = ("--user-dir", str(REPOSITORY / "fairseq_mtmoe"))
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def run(command: str, *args: object, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess:
    """Run a command of the environment that the tests run in; its output is shown when it fails."""
    was_there = DEFAULT_SAVE_DIR.exists()
    result = run_forked(command, list(map(str, args)), stdin, REPOSITORY, ENVIRONMENT, seconds=600)
    assert not check or result.returncode == 0, f"{command} {args}\n{result.stdout[-3000:]}\n{result.stderr[-5000:]}"
    assert was_there or not DEFAULT_SAVE_DIR.exists(), f"{command} {args} needs a --save-dir"
    return result


def start_command(command: str, *args: object, before: str = "", environment: dict[str, str] | None = None) -> Forked:
    """Such a command, beside the test until it ends or the context does; `before` is code that it executes first."""
    return Forked(command, list(map(str, args)), REPOSITORY, {**ENVIRONMENT, **(environment or {})}, before=before)


def run_joined(world_size: int, command: str, *args: object) -> subprocess.CompletedProcess:
    """Run a command in processes that the environment joins, as torchrun does; what they wrote, one after the other."""
    port = free_address().rpartition(":")[2]
    joined = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world_size)}
    with ExitStack() as running:
        started = (start_command(command, *args, environment={**joined, "RANK": str(n)}) for n in range(world_size))
        processes = [running.enter_context(process) for process in started]
        codes = [process.wait(100) for process in processes]
        out, err = ("".join(texts) for texts in zip(*((one.out(), one.err()) for one in processes), strict=True))
    assert codes == [0] * world_size, f"{command} {args}\n{out[-3000:]}\n{err[-5000:]}"
    return subprocess.CompletedProcess([command], 0, out, err)


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def train(data: object, save_dir: object, *args: object, check: bool = True) -> subprocess.CompletedProcess:
    """`fairseq-train` of a tiny multilingual model on the digits corpus; `args` come last and win."""
    return run("fairseq-train", *training_arguments(data, save_dir, *args), check=check)


def training_arguments(data: object, save_dir: object, *args: object) -> tuple[object, ...]:
    """The arguments of `fairseq-train` for that; another `--arch` or `--task` among `args` gets no options of ours."""
    experts = () if "--arch" in args else ("--expert-interval", 1)
    heated = (
        "--task", "translation_heated", "--lang-pairs", "en-aa,en-bb,en-cc", "--encoder-langtok", "tgt",
        "--decoder-langtok", "--sampling-method", "temperature", "--sampling-temperature", 1.5,
    )  # fmt: skip
    return (
        data, *PLUGIN, *(() if "--task" in args else heated), "--save-dir", save_dir, "--cpu", "--seed", 1,
        "--arch", "base_moe_tiny", "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", 0.1,
        "--optimizer", "adam", "--adam-betas", "(0.9,0.98)", "--lr", 0.005, "--lr-scheduler", "polynomial_decay",
        "--total-num-update", 700, "--warmup-updates", 100, "--clip-norm", 1.0, "--encoder-normalize-before",
        "--decoder-normalize-before", *experts, "--dropout", 0.0, "--max-tokens", 1000,
        "--log-format", "simple", "--log-interval", 50, "--no-epoch-checkpoints", "--num-workers", 0,
        "--no-progress-bar", *args,
    )  # fmt: skip


def generate(data: object, checkpoint: object, target: str, *args: object) -> str:
    """The output of `fairseq-generate` into one language, with stock options."""
    return run(
        "fairseq-generate", data, *PLUGIN, "--task", "translation_heated", "--source-lang", "en",
        "--target-lang", target, "--path", checkpoint,
        "--encoder-langtok", "tgt", "--decoder-langtok", "--scoring", "sacrebleu", "--beam", 5,
        "--max-tokens", 4000, "--cpu", "--no-progress-bar", *args,
    ).stdout  # fmt: skip


def bleu_of(output: str) -> float:
    match = re.search(r"BLEU\S* = ([\d.]+)", output)
    assert match, output[-1000:]
    return float(match[1])
