"""What borrowing from source tasks costs: PEMT's steps, memory and generation on T5, beside plain LoRA of `peft`.

    python benchmarks/bench_adapters.py --write

All systems have the same backbone, and adapters of rank 64 on the same matrices. The encoder has as many
positions in all of them: where a prompt takes some, texts are as much shorter, so that the adapters are
compared. The paper's figures (table 5, CoLA, 6 sources, over LoRA) are 1.41 times the time of training,
2.4 times the memory and 1.46 times the time of generation.
"""

from __future__ import annotations

import dataclasses
import logging

import torch
from adapter_systems import MERGED, OURS, PEER, SIX, Size, System, systems
from layer_systems import peak_memory
from measure import Report, benchmark
from timing import Floor, interleaved

from fairseq_mtmoe.nlu.t5.config import T5_BASE

TRAINED = (PEER, OURS, SIX)
WRITTEN = (*TRAINED, MERGED)
LARGE = Size(T5_BASE)
SMALL = Size(dataclasses.replace(T5_BASE, num_layers=4, num_decoder_layers=4), batch=4, positions=96)


def check_equal(found: dict[str, System]) -> None:
    """Both LoRAs have the same loss, and a merged mixture gives the scores that it gave before."""
    with torch.no_grad():
        for system in found.values():
            system.module.eval()
        torch.testing.assert_close(found[OURS].loss(), found[PEER].loss(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found[MERGED].loss(), found[SIX].loss(), rtol=1e-4, atol=1e-5)


def compare(report: Report, size: Size, repetitions: int) -> None:
    found = systems(size)
    check_equal(found)
    sizes = f"{size.config.num_layers} + {size.config.num_decoder_layers} blocks of {size.config.d_model}"
    report.text(
        f"T5 with {sizes}; {size.batch} texts of {size.positions} positions, {size.prompt} of these a prompt's where "
        f"there is one; answers of {size.answer} words; {size.written} words are written with a beam of 4."
    )
    works = {name: found[name].step for name in TRAINED}
    steps = interleaved(works, repetitions, prepare={name: found[name].prepare for name in TRAINED})
    report.speeds("A training step", steps, PEER, [size.batch] * repetitions, "texts")
    passing = {name: peak_memory(found[name]) for name in TRAINED}
    held = {name: found[name].held + passing[name] for name in TRAINED}
    rows = []
    for name in TRAINED:
        rows.append([name, found[name].trained, passing[name] / 2**20, held[name] / 2**20, held[name] / held[PEER]])
    note = "Memory: parameters, gradients and Adam's moments, and with them the most that passes during a step."
    report.table("Memory", ["system", "trained", "passing MB", "MB", "memory / peft's"], rows, note)
    writing = interleaved({name: found[name].write for name in WRITTEN}, repetitions)
    report.speeds("Generation", writing, PEER, [size.batch] * repetitions, "texts")
    report.ratio(f"step: {SIX} / {PEER}", steps[SIX], steps[PEER], Floor(1.25))
    report.figure(f"memory: {SIX} / {PEER}", held[SIX] / held[PEER], Floor(1.2))
    report.ratio(f"generation: {SIX} / {PEER}", writing[SIX], writing[PEER], Floor(1.2))
    report.ratio(f"generation: {MERGED} / {PEER}", writing[MERGED], writing[PEER], Floor(1.0))


@benchmark("adapters", "Borrowing from source tasks", "Four blocks in each stack, and shorter texts.")
def main(report: Report, small: bool, repetitions: int) -> None:
    """Time training steps and generation of T5s with adapters."""
    logging.disable(logging.WARNING)
    compare(report, SMALL if small else LARGE, repetitions)


if __name__ == "__main__":
    main()
