"""Generation with beam 5: `base_moe_wmt15` against stock fairseq's dense `transformer` of the same active size.

    python benchmarks/bench_decode.py --write

All are driven as fairseq-generate does it: the task's own generator and inference step on the same batches of sentences
of like lengths, a new batch in each repetition. Random models do not know when to stop, so all write the same number of
words. Before anything is timed, a sparse model whose experts are copies must find the stock model's hypotheses; it is
timed beside one whose experts differ, and beside ours before it is sparse, so that a reader sees what comes from where.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import chain, cycle
from typing import Any

import torch
from fairseq.data import LanguagePairDataset
from fairseq.dataclass.configs import FairseqConfig, GenerationConfig
from fairseq.tasks.translation import TranslationTask
from measure import Report, benchmark
from omegaconf import OmegaConf
from timing import Floor, interleaved
from torch import nn
from wmt15_models import FULL, SMALL, Size, models, sentences, sparse_config, translation_task

from fairseq_mtmoe.slots import expert_layers

Sample = dict[str, Any]
STOCK, DENSE = "stock fairseq transformer", "base_moe_wmt15, still dense"
COPIES, APART = "base_moe_wmt15, equal experts", "base_moe_wmt15, experts that differ"
BEAM = 5
FLOOR = Floor(0.9, at_most=False)


class System:
    """A model and its generator, which translates the next batch whenever it is called."""

    def __init__(self, task: TranslationTask, model: nn.Module, words: int) -> None:
        generation = GenerationConfig(beam=BEAM, lenpen=1.0, max_len_a=0.0, max_len_b=words, min_len=words)
        model.prepare_for_inference_(OmegaConf.structured(FairseqConfig(generation=generation)))
        self.task, self.model = task, model
        self.generator = task.build_generator([model], generation)
        self.samples: Iterator[Sample] = iter(())

    def __call__(self) -> list[list[dict[str, Any]]]:
        found: list[list[dict[str, Any]]] = self.task.inference_step(self.generator, [self.model], next(self.samples))
        return found


def systems(size: Size, task: TranslationTask, words: int) -> dict[str, System]:
    """Stock fairseq's model, and ours: still dense, with experts that are copies, and with experts that differ."""
    pair = models(size, task)
    dense = task.build_model(sparse_config(size, "--dense-updates", "1").model)
    dense.load_state_dict(pair["stock"].state_dict())
    apart = copy.deepcopy(pair["sparse"])
    with torch.no_grad():
        for layer in expert_layers(apart).values():
            layer.blend.fill_(0.5)
            for weight in layer.experts.parameters():
                weight += 0.5 * weight.std() * torch.randn_like(weight)
    built = {STOCK: pair["stock"], DENSE: dense, COPIES: pair["sparse"], APART: apart}
    return {name: System(task, model, words) for name, model in built.items()}


def batches(data: LanguagePairDataset, words: int, batch_size: int, count: int) -> list[Sample]:
    order = data.ordered_indices()
    first = int(sum(data.src_sizes[order] < words))
    chosen = order[first : first + batch_size * count]
    return [data.collater([data[int(i)] for i in chosen[at::count]]) for at in range(count)]


def check_equal(running: dict[str, System], sample: Sample) -> str:
    """Assert that equal models find equal hypotheses; says how equal."""
    for system in running.values():
        system.samples = cycle([sample])
    wanted = [*chain.from_iterable(running[STOCK]())]
    same: dict[str, int] = {}
    for name in (DENSE, COPIES):
        found = [*chain.from_iterable(running[name]())]
        scores = [torch.stack([hypothesis["score"] for hypothesis in hypotheses]) for hypotheses in (found, wanted)]
        torch.testing.assert_close(*scores, rtol=1e-4, atol=1e-4)
        same[name] = sum(torch.equal(a["tokens"], b["tokens"]) for a, b in zip(found, wanted, strict=True))
        # Hypotheses whose scores are the same but for rounding may change places.
        assert same[name] >= 0.95 * len(wanted), f"{name}: {same[name]} of {len(wanted)} hypotheses are stock fairseq's"
    equal = ", ".join(f"{name}: {count} of {len(wanted)}" for name, count in same.items())
    return f"Hypotheses that are stock fairseq's, word for word: {equal}."


@benchmark(
    "decode", "Generation, sparse against stock fairseq's dense model", "Smaller models and batches.", repetitions=7
)
def main(report: Report, small: bool, repetitions: int) -> None:
    """Print sentences per second and their ratios to stock fairseq's."""
    size, batch_sizes, words = (SMALL, (16,), 12) if small else (FULL, (8, 32, 64), 24)
    task = translation_task(size)
    data = sentences(task, count=20_000)
    running = systems(size, task, words)
    report.text(
        f"{size}; beam {BEAM}, {words} words per hypothesis, as many steps for every system; {torch.get_num_threads()} "
        "threads, float32, BASE gates (greedy)."
    )
    report.text(check_equal(running, batches(data, words, batch_sizes[0], 1)[0]))
    for batch_size in batch_sizes:
        samples = batches(data, words, batch_size, repetitions)
        for system in running.values():
            system.samples = cycle(samples)
        seconds = interleaved(running, repetitions, warmups=1)
        title = f"{batch_size} sentences a batch"
        report.speeds(title, seconds, STOCK, [batch_size] * repetitions, "sentences")
        for name in (COPIES, APART):
            what = f"sentences/s, {name} / {STOCK}, {batch_size} sentences"
            report.ratio(what, seconds[STOCK], seconds[name], FLOOR)


if __name__ == "__main__":
    main()
