"""Part `glue`: a benchmark's tasks trained together, in half precision: an update's speed, and whole runs.

The updates are fairseq's trainer's, of the paper's encoders with random weights and batches of random sentences of
GLUE's eight tasks: `mt_dense`, one gate for all tasks (`mt_switch`) and a gate for each (`mt_tag`), four experts in
every block. The runs are fairseq's own commands on the tests' made benchmark, a CPU's in float32 beside them.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterator
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

import torch
from timing import Ratio, interleaved

from fairseq_mtmoe.backbones.bert.config import BERT_BASE, MINILM, EncoderConfig
from fairseq_mtmoe.backbones.bert.encoder import BertEncoder
from gpu_check.device import count_waits, free, peak_bytes
from gpu_check.encoder import SMALL
from gpu_check.rows import Check, Row, Setting, measured, passed
from gpu_check.training import losses_by, near, options, run_command

ARCHS = ("mt_dense", "mt_switch", "mt_tag")
MINILM_ARCH, BERT_ARCH = "_minilm", "_bert_base"
PLANS = ((MINILM_ARCH, MINILM, 32), (MINILM_ARCH, MINILM, 256), (BERT_ARCH, BERT_BASE, 32))
TOY_PLANS = (("", SMALL, 4),)
SHORTEST, LONGEST, TOY_LONGEST = 8, 128, 24  # tokens of an example
REPETITIONS, WARMUPS = 15, 4
UPDATES, TOY_UPDATES = 200, 8
SAME = 2.0  # points of a metric between the device and a CPU: of 200 examples each


def checks(setting: Setting) -> Iterator[Check]:
    for suffix, config, batch_size in TOY_PLANS if setting.toy else PLANS:
        yield Check(f"mt_tag{suffix}, {batch_size} examples", partial(compared, setting, suffix, config, batch_size))
    yield Check("data and the CPU's run", partial(reference, setting))
    for option in ("--bf16",) if setting.toy else ("--bf16", "--fp16"):
        kind = option.removeprefix("--")
        yield Check(f"{kind}: trained", partial(trained, setting, kind))
        yield Check(f"{kind}: validated", partial(validated, setting, kind))


# ---- updates ----


def compared(setting: Setting, suffix: str, config: EncoderConfig, batch_size: int) -> list[Row]:
    """Examples per second, waits and memory of an update of each model."""
    logging.disable(logging.INFO)
    repetitions, warmups = (2, 1) if setting.toy else (REPETITIONS, WARMUPS)
    samples = batches(config, batch_size, TOY_LONGEST if setting.toy else LONGEST, warmups + repetitions)
    again = list(islice(cycle(samples), len(samples) + 2))  # of the last two waits are counted, and memory
    systems = {arch: system_of(setting, arch + suffix, config, again) for arch in ARCHS}
    seconds = interleaved(systems, repetitions, warmups, setting.device)
    tokens = [sample["ntokens"] for sample in samples[warmups:]]
    rows = []
    for arch, own in seconds.items():
        what, ratio = f"{arch}{suffix}, {batch_size} examples", Ratio.of(seconds[ARCHS[0]], own)
        speed = median(count / each for count, each in zip(tokens, own, strict=True))
        note = f"{batch_size / median(own):,.0f} examples/s; {ratio} of {ARCHS[0]}'s speed"
        rows.append(measured(what, speed, "tokens/s", note))
        rows.append(measured(f"{what}: waits", count_waits(setting.device, systems[arch]), "waits", "of an update"))
        peak = peak_bytes(setting.device, systems[arch])
        if peak is not None:
            note = "of an update, beyond weights and the optimizer's state"
            rows.append(measured(f"{what}: memory", peak / 2**30, "GiB", note))
    del systems
    free(setting)
    return rows


def system_of(setting: Setting, arch: str, config: EncoderConfig, samples: list[dict[str, Any]]) -> Any:
    """A model in fairseq's trainer, which takes a step on the next batch when it is called."""
    from bench_step import System
    from fairseq import tasks
    from wmt15_models import training_config

    where = ("--cpu",) if setting.device == "cpu" else ("--bf16",)
    cfg = training_config(
        str(setting.folder), "--task", "glue", "--arch", arch, "--criterion", "multitask", "--optimizer", "adam",
        "--adam-betas", "(0.9,0.999)", "--lr", "5e-5", "--clip-norm", "1.0", "--num-workers", "0", *where,
        "--init-encoder", str(encoder_file(setting, config)), "--max-positions", str(config.max_positions),
        "--save-dir", str(setting.folder / "glue-updates"),
    )  # fmt: skip
    torch.manual_seed(1)
    task = tasks.setup_task(cfg.task)
    return System(task, task.build_model(cfg.model), cfg, samples)


def encoder_file(setting: Setting, config: EncoderConfig) -> Path:
    """A file of `mtmoe import-hf` with random weights, whose tokenizer nobody asks."""
    from fairseq_mtmoe.backbones.bert.pretrained import PretrainedEncoder

    torch.manual_seed(0)
    path = setting.folder / "random_encoder.pt"
    PretrainedEncoder(config, {"tokenizer.json": "{}"}, BertEncoder(config).state_dict()).save(path)
    return path


def batches(config: EncoderConfig, batch_size: int, longest: int, count: int) -> list[dict[str, Any]]:
    """Batches as the data sets make them: random sentences, each of a task of GLUE's in turn."""
    import numpy as np

    from fairseq_mtmoe.data.mixtures.dataset import MixtureDataset
    from fairseq_mtmoe.data.nlu.dataset import TaskCollate
    from fairseq_mtmoe.data.nlu.table import chosen_rows, load_tables

    rows = chosen_rows(load_tables(), ["all"])
    names, draw = list(rows), np.random.default_rng(1)
    mixture = MixtureDataset(range(len(names)), TaskCollate(config.pad_token_id, names))

    def example(number: int) -> tuple[int, dict[str, Any]]:
        task, length = number % len(names), int(draw.integers(SHORTEST, longest + 1))
        tokens = draw.integers(config.pad_token_id + 1, config.vocab_size, length)
        label = float(draw.integers(0, len(rows[names[task]].labels) or 1))
        spans = np.empty((0, 2), dtype=np.int64)
        return task, {"id": number, "tokens": [tokens], "seconds": [length // 2], "label": label, "spans": spans}

    return [mixture.collater([example(number) for number in range(batch_size)]) for _ in range(count)]


# ---- runs ----


def reference(setting: Setting) -> list[Row]:
    from tests.helpers.benchmark import make_benchmark, make_encoder

    shutil.rmtree(folder_of(setting), ignore_errors=True)
    make_benchmark(
        folder_of(setting) / "data", {"train": 100 if setting.toy else 1000, "dev": 20 if setting.toy else 200}
    )
    make_encoder(folder_of(setting) / "encoder.pt")
    losses = train(setting, "cpu", "--cpu")
    return [passed("trained on the CPU in float32", f"losses {losses[0]:.2f} … {losses[-1]:.2f}")]


def trained(setting: Setting, kind: str) -> list[Row]:
    """Losses near the CPU's, at first and at the end."""
    shutil.rmtree(folder_of(setting) / kind, ignore_errors=True)  # of a run that was interrupted
    right = json.loads((folder_of(setting) / "cpu.json").read_text(encoding="utf-8"))
    return near(kind, train(setting, kind, *options(setting, kind)), right)


def validated(setting: Setting, kind: str) -> list[Row]:
    """The checkpoint's metrics on the device are those on a CPU."""
    device = [option for option in options(setting, kind) if option in ("--cpu", "--fp16")]
    found, right = (figures(setting, kind, *where) for where in (device, ["--cpu"]))
    worst = max(right, key=lambda name: abs(found[name] - right[name]))
    difference = abs(found[worst] - right[worst])
    assert difference <= SAME, f"{worst} is {found[worst]:.2f}, and {right[worst]:.2f} on a CPU"
    shown = ", ".join(f"{name} {value:.1f}" for name, value in found.items())
    return [passed(f"{kind}: validated", f"at most {difference:.2f} points apart: {shown}")]


def folder_of(setting: Setting) -> Path:
    return setting.folder / "glue"


def train(setting: Setting, name: str, *chosen: object) -> list[float]:
    from tests.helpers.benchmark import task_arguments

    folder = folder_of(setting)
    given = [argument for argument in task_arguments(folder / "data", folder / name) if argument != "--cpu"]
    given += ["--init-encoder", folder / "encoder.pt", "--log-interval", 1, "--sampling-method", "uniform"]
    given += ["--max-update", TOY_UPDATES if setting.toy else UPDATES]
    return losses_by(given, chosen, folder / f"{name}.json")


def figures(setting: Setting, name: str, *chosen: str) -> dict[str, float]:
    from tests.helpers.commands import PLUGIN

    folder = folder_of(setting)
    given = [
        folder / "data", *PLUGIN, "--task", "glue", "--path", folder / name / "checkpoint_last.pt", "--batch-size", 16,
        "--log-format", "json", "--no-progress-bar", *chosen,
    ]  # fmt: skip
    said = run_command("fairseq_cli.validate", given, hides_gpu="--cpu" in chosen)
    line = next(line for line in reversed(said.splitlines()) if '"valid_all"' in line)
    values = {name.removeprefix("valid_"): value for name, value in json.loads(re.search(r"{.*}", line)[0]).items()}  # type: ignore[index]
    metrics = ("accuracy", "matthews", "spearman", "f1")
    return {name: float(value) for name, value in values.items() if name.rpartition("_")[2] in metrics}
