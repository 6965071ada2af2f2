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
import statistics

import click
import torch
from adapter_systems import MERGED, OURS, PEER, SIX, Size, System, systems
from layer_costs import peak_memory
from measure import Report, report_name, report_options
from timing import Floor, Ratio, interleaved

from fairseq_mtmoe.backbones.t5.config import T5_BASE

MOST_TIME, MOST_MEMORY, MOST_WRITING, MOST_MERGED = 1.25, 1.2, 1.2, 1.0
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


def run(size: Size, repetitions: int, report: Report) -> None:
    found = systems(size)
    check_equal(found)
    sizes = f"{size.config.num_layers} + {size.config.num_decoder_layers} blocks of {size.config.d_model}"
    report.text(
        f"T5 with {sizes}; {size.batch} texts of {size.positions} positions, {size.prompt} of these a prompt's where "
        f"there is one; answers of {size.answer} words; {size.written} words are written with a beam of 4."
    )
    steps = interleaved(
        {name: found[name].step for name in TRAINED}, repetitions,
        prepare={name: found[name].prepare for name in TRAINED},
    )  # fmt: skip
    report.raw("seconds of a step", steps)
    memory = {name: peak_memory(found[name]) for name in TRAINED}  # type: ignore[arg-type]
    held = {name: found[name].held + memory[name] for name in TRAINED}
    rows = [
        [name, found[name].trained, statistics.median(steps[name]), str(Ratio.of(steps[name], steps[PEER])),
         memory[name] / 2**20, held[name] / 2**20, held[name] / held[PEER]]
        for name in TRAINED
    ]  # fmt: skip
    columns = ["system", "trained", "s", "time / peft's (quartiles)", "passing MB", "MB", "memory / peft's"]
    note = "Memory: parameters, gradients and Adam's moments, and with them the most that passes during a step."
    report.table("A training step", columns, rows, note)
    writing = interleaved({name: found[name].write for name in WRITTEN}, repetitions)
    report.raw("seconds of generation", writing)
    rows = [[name, statistics.median(writing[name]), str(Ratio.of(writing[name], writing[PEER]))] for name in WRITTEN]
    report.table("Generation", ["system", "s", "time / peft's (quartiles)"], rows)
    _floors(report, steps, held, writing)


def _floors(
    report: Report, steps: dict[str, list[float]], held: dict[str, int], writing: dict[str, list[float]]
) -> None:
    step, written, merged = (
        Ratio.of(seconds[name], seconds[PEER]) for seconds, name in ((steps, SIX), (writing, SIX), (writing, MERGED))
    )
    report.figure(f"step: {SIX} / {PEER}", step.median, Floor(MOST_TIME), (step.low, step.high))
    report.figure(f"memory: {SIX} / {PEER}", held[SIX] / held[PEER], Floor(MOST_MEMORY))
    report.figure(f"generation: {SIX} / {PEER}", written.median, Floor(MOST_WRITING), (written.low, written.high))
    report.figure(f"generation: {MERGED} / {PEER}", merged.median, Floor(MOST_MERGED), (merged.low, merged.high))


@click.command(context_settings={"show_default": True})
@click.option("--repetitions", type=click.IntRange(5), default=9)
@report_options("Four blocks in each stack, and shorter texts.")
def main(repetitions: int, small: bool, check: bool, write: bool) -> None:
    """Time training steps and generation of T5s with adapters."""
    logging.disable(logging.WARNING)
    report = Report(report_name("adapters", small or check), "Borrowing from source tasks")
    run(SMALL if small or check else LARGE, repetitions, report)
    report.finish(write, check)


if __name__ == "__main__":
    main()
