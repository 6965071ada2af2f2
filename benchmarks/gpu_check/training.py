"""Part `training`: fairseq's own commands on the device, in half precision: trained, resumed and generated from.

The task is the tests' (digits copied, reversed and shifted), the model tiny; the losses are compared with those of a
CPU in float32, and the translations on the device with those on a CPU.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import mean

from timing import ROOT

from gpu_check.rows import Check, Row, Setting, passed

UPDATES, DENSE_UPDATES = 400, 100
TOY_UPDATES, TOY_DENSE_UPDATES = 8, 2
FIRST = 10  # updates, in which losses differ by rounding alone
NEAR, FURTHER = 0.03, 0.15  # of the loss: at first, and after hundreds of updates of experts that chose differently
SAME = 0.9  # of the translations
TARGET = "bb"


def checks(setting: Setting) -> Iterator[Check]:
    yield Check("data and the CPU's run", partial(reference, setting))
    for option in ("--bf16",) if setting.toy else ("--bf16", "--fp16"):
        kind = option.removeprefix("--")
        yield Check(f"{kind}: trained", partial(trained, setting, kind))
        yield Check(f"{kind}: resumed", partial(resumed, setting, kind))
        yield Check(f"{kind}: generated from", partial(generated, setting, kind))


def reference(setting: Setting) -> list[Row]:
    from tests.helpers.digits import make_digit_corpus

    shutil.rmtree(folder_of(setting), ignore_errors=True)
    make_digit_corpus(folder_of(setting) / "data", train=300 if setting.toy else 3000)
    losses = train(setting, "cpu", "--cpu")
    return [passed("trained on the CPU in float32", f"losses {losses[0]:.2f} … {losses[-1]:.2f}")]


def trained(setting: Setting, kind: str) -> list[Row]:
    """Losses near the CPU's, at first and at the end; the model becomes sparse on the way."""
    shutil.rmtree(folder_of(setting) / kind, ignore_errors=True)  # of a run that was interrupted
    return near(kind, train(setting, kind, *options(setting, kind)), losses_of(setting, "cpu"))


def near(kind: str, losses: list[float], right: list[float]) -> list[Row]:
    assert len(losses) == len(right), f"{len(losses)} updates were logged, and {len(right)} on the CPU"
    start = [apart(one, other) for one, other in zip(losses[:FIRST], right[:FIRST], strict=True)]
    assert max(start) <= NEAR, f"one of the first {FIRST} losses differs by {max(start):.1%} from the CPU's"
    return [passed(f"{kind}: trained", f"{max(start):.2%} apart at first, {at_the_end(losses, right):.1%} at the end")]


def resumed(setting: Setting, kind: str) -> list[Row]:
    """Half of the updates, and in another process the rest: as without a break."""
    half = total(setting) // 2
    chosen = options(setting, kind)
    shutil.rmtree(folder_of(setting) / f"{kind}-resumed", ignore_errors=True)
    first = train(setting, f"{kind}-resumed", *chosen, "--max-update", half)
    rest = train(setting, f"{kind}-resumed", *chosen)
    assert len(rest) == total(setting) - half, f"{len(rest)} updates were made after {half}"
    whole = losses_of(setting, kind)
    start = [apart(one, other) for one, other in zip(rest[:FIRST], whole[half:], strict=False)]
    assert mean(start) <= FURTHER, f"after resuming, losses differ by {mean(start):.1%}"
    end = at_the_end(first + rest, whole)
    return [passed(f"{kind}: resumed", f"{mean(start):.2%} apart at first, {end:.1%} at the end")]


def generated(setting: Setting, kind: str) -> list[Row]:
    """The checkpoint's translations on the device are those on a CPU."""
    device = [option for option in options(setting, kind) if option in ("--cpu", "--fp16")]
    found, right = (translations(setting, kind, *where) for where in (device, ["--cpu"]))
    same = sum(found[number] == right[number] for number in right) / len(right)
    assert found.keys() == right.keys() and same >= SAME, f"only {same:.0%} of the translations are the CPU's"
    return [passed(f"{kind}: generated from", f"{same:.0%} of {len(right)} translations are the CPU's")]


def apart(one: float, other: float) -> float:
    return abs(one - other) / other


def at_the_end(losses: list[float], right: list[float]) -> float:
    """How far the means of the last quarter are apart; raises AssertionError if too far."""
    last = len(right) // 4
    found = apart(mean(losses[-last:]), mean(right[-last:]))
    assert found <= FURTHER, f"the losses of the last {last} updates differ by {found:.1%}"
    return found


def total(setting: Setting) -> int:
    return TOY_UPDATES if setting.toy else UPDATES


def folder_of(setting: Setting) -> Path:
    return setting.folder / "training"


def options(setting: Setting, kind: str) -> list[str]:
    return [f"--{kind}", *(["--cpu"] if setting.device == "cpu" else [])]


def train(setting: Setting, name: str, *chosen: object) -> list[float]:
    from tests.helpers.commands import training_arguments

    folder = folder_of(setting)
    dense = TOY_DENSE_UPDATES if setting.toy else DENSE_UPDATES
    given = [argument for argument in training_arguments(folder / "data", folder / name) if argument != "--cpu"]
    given += ["--dense-updates", dense, "--log-format", "json", "--log-interval", 1, "--max-update", total(setting)]
    return losses_by(given, chosen, folder / f"{name}.json")


def losses_by(given: Sequence[object], chosen: Sequence[object], path: Path) -> list[float]:
    """Run `fairseq-train` with `--log-interval 1`; the loss of each update, which is written to a file, too."""
    said = run_command("fairseq_cli.train", [*given, *chosen], hides_gpu="--cpu" in chosen)
    losses = [float(json.loads(line)["loss"]) for line in re.findall(r"train_inner \| (\{.*\})", said)]
    path.write_text(json.dumps(losses), encoding="utf-8")
    return losses


def losses_of(setting: Setting, name: str) -> list[float]:
    found: list[float] = json.loads((folder_of(setting) / f"{name}.json").read_text(encoding="utf-8"))
    return found


def translations(setting: Setting, name: str, *chosen: str) -> dict[str, str]:
    from tests.helpers.commands import PLUGIN

    folder = folder_of(setting)
    given = [
        folder / "data", *PLUGIN, "--task", "translation_heated", "--source-lang", "en", "--target-lang", TARGET,
        "--path", folder / name / "checkpoint_last.pt", "--encoder-langtok", "tgt", "--decoder-langtok", "--beam", 5,
        "--max-tokens", 4000, "--no-progress-bar", *chosen,
    ]  # fmt: skip
    said = run_command("fairseq_cli.generate", given, hides_gpu="--cpu" in chosen)
    return dict(re.findall(r"^H-(\d+)\t[^\t]*\t(.*)$", said, re.M))


def run_command(module: str, arguments: list[object], hides_gpu: bool) -> str:
    """What a command of fairseq's says; raises RuntimeError with its last words if it fails."""
    environment = {**os.environ, **({"CUDA_VISIBLE_DEVICES": ""} if hides_gpu else {})}
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout, done.stderr, file=sys.stderr)
        raise RuntimeError(f"{module} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout + done.stderr
