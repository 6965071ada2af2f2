"""One training step of `base_moe_wmt15` against stock fairseq's dense `transformer` of the same active size.

    python benchmarks/bench_step.py --write

Both train in fairseq's own trainer on the same batches, a new one in each repetition: forward and backward pass,
scaling and clipping of the gradients, Adam. The stock model has what its users give it (`adam` and
`label_smoothed_cross_entropy`); ours has this plugin's loss and Adam. Two more rows exchange these, so that a reader
sees what comes from where. Before anything is timed, the sparse model must give the stock model's loss and gradients.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from fairseq.tasks.translation import TranslationTask
from fairseq.trainer import Trainer
from measure import Report, benchmark
from timing import Floor, interleaved
from torch import nn
from wmt15_models import FULL, SMALL, Size, batches, models, sentences, sparse_config, stock_config, translation_task

Sample = dict[str, Any]
COMMON = (
    "--label-smoothing", "0.1", "--adam-betas", "(0.9,0.98)", "--clip-norm", "1.0", "--lr", "0.0007",
    "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "4000",
)  # fmt: skip
STOCKS = ("--criterion", "label_smoothed_cross_entropy", "--optimizer", "adam")
OURS = ("--criterion", "moe_label_smoothed_cross_entropy", "--optimizer", "fused_adam")
STOCK, SPARSE = "stock fairseq transformer", "base_moe_wmt15"
WARMUPS = 2


class System:
    """A model in fairseq's trainer, which takes a step on the next batch whenever it is called."""

    def __init__(self, task: TranslationTask, model: nn.Module, config: Any, samples: list[Sample]) -> None:
        self.trainer = Trainer(config, task, model, task.build_criterion(config.criterion))
        self.samples = iter(samples)
        self.trainer.lr_step_begin_epoch(1)

    def __call__(self) -> None:
        self.trainer.train_step([next(self.samples)])


def systems(
    size: Size, task: TranslationTask, samples: list[Sample], where: Sequence[str] = ("--cpu",)
) -> dict[str, System]:
    """The four rows, on a CPU or by other options. Rows that differ in loss and optimizer alone share a model."""
    pair = models(size, task)
    check_equal(task, pair, samples[0])
    return {
        name: System(task, pair[model], config(size, *COMMON, *where, *chosen), samples)
        for name, model, config, chosen in (
            (STOCK, "stock", stock_config, STOCKS),
            (SPARSE, "sparse", sparse_config, OURS),
            (f"{SPARSE}, fairseq's loss and Adam", "sparse", sparse_config, STOCKS),
            (f"{STOCK}, our loss and Adam", "stock", stock_config, OURS),
        )
    }


def check_equal(task: TranslationTask, pair: dict[str, nn.Module], sample: Sample, sentences: int = 8) -> None:
    """Before any training both models' losses, and their gradients for the words, are the same (dropout is off)."""
    net_input = {name: value[:sentences] for name, value in sample["net_input"].items()}
    target = sample["target"][:sentences]
    few = {"net_input": net_input, "target": target, "ntokens": int(target.ne(task.target_dictionary.pad()).sum())}
    found = {}
    for name, chosen in (("stock", STOCKS), ("sparse", OURS)):
        criterion = task.build_criterion(stock_config(SMALL, *COMMON, *chosen).criterion)
        loss, _, _ = criterion(pair[name].eval(), few)
        loss.backward()
        found[name] = loss.detach(), pair[name].encoder.embed_tokens.weight.grad
        pair[name].zero_grad()
    (loss, gradient), (stock_loss, stock_gradient) = found["sparse"], found["stock"]
    torch.testing.assert_close(loss, stock_loss, rtol=1e-5, atol=0)
    assert (gradient - stock_gradient).norm() < 1e-4 * stock_gradient.norm()


def description(size: Size, found: dict[str, System], samples: list[Sample], max_tokens: int) -> str:
    millions = {name: sum(p.numel() for p in found[name].trainer.model.parameters()) / 1e6 for name in (STOCK, SPARSE)}
    padding = 1 - sum(sample["ntokens"] for sample in samples) / sum(sample["target"].numel() for sample in samples)
    return (
        f"{size.layers}+{size.layers} pre-norm blocks of {size.width} (inner size {size.inner}), {size.symbols:,} "
        f"words, dropout 0.1, label smoothing 0.1: {millions[STOCK]:.0f} million parameters, and "
        f"{millions[SPARSE]:.0f} million with {size.num_experts} experts (BASE gates) in every second block. Random "
        f"sentences of 5 to 60 words in fairseq's batches of at most {max_tokens:,} tokens, of which {padding:.1%} of "
        f"the targets are padding; one batch per repetition, the same for all rows, in fairseq's trainer."
    )


@benchmark("step", "A training step against stock fairseq", "Smaller models and batches.", repetitions=7)
def main(report: Report, small: bool, repetitions: int) -> None:
    """Time a training step of the sparse model and of stock fairseq's dense one."""
    logging.disable(logging.INFO)
    size, max_tokens = (SMALL, 1024) if small else (FULL, 4096)
    task = translation_task(size)
    samples = list(islice(batches(sentences(task), max_tokens), WARMUPS + repetitions))
    found = systems(size, task, samples)
    report.text(description(size, found, samples, max_tokens))
    seconds = interleaved(found, repetitions, WARMUPS)
    tokens = [sample["ntokens"] for sample in samples[WARMUPS:]]
    report.speeds("Speed", seconds, STOCK, tokens, "target tokens")
    floor = Floor(1.0, at_most=False)
    report.ratio("target tokens/s over stock fairseq's", seconds[STOCK], seconds[SPARSE], floor)


if __name__ == "__main__":
    main()
