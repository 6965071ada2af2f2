"""What adapting to tasks costs: training steps of `ca_mtl_minilm`, with all parts, each alone, and a frozen half.

    python benchmarks/bench_conditional.py --write

A step is the forward and backward pass and the update, with our criterion and optimizer, on the batches of
`bench_glue.py`: 32 examples of like lengths, drawn uniformly from 8 tasks as long as GLUE's. Before they train, all
systems have the same loss.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
from itertools import islice
from pathlib import Path

import click
import torch
from bench_glue import FULL, LONGEST, OWN, SMALL, WARMUPS, Size, Turns, described
from fairseq.tasks import setup_task
from glue_systems import System, batches, check_equal, configuration, full, made_encoder, system_of
from glue_texts import lengths, serialized_tokenizer, write_benchmark
from measure import Report, interleaved, report_name, report_options
from timing import Floor, Ratio

from fairseq_mtmoe.conditioning import PARTS

PLAIN, FROZEN = "mt_dense", "mt_dense, half frozen"
ADAPTED, ADAPTED_FROZEN = "ca_mtl, nothing frozen", "ca_mtl, half frozen"
ALL = ",".join(PARTS)
MOST_OF_FROZEN = 0.80  # of the step of what is not frozen
SHARE = 0.02  # of GLUE's training examples, of which the batches are drawn

# A system's name -> its architecture and its options.
SYSTEMS = {
    PLAIN: ("mt_dense", ("--freeze-layers", "0")),
    FROZEN: ("mt_dense", ("--freeze-layers", "half")),
    **{f"{part} alone": ("ca_mtl", ("--conditional", part, "--freeze-layers", "0")) for part in PARTS},
    ADAPTED: ("ca_mtl", ("--conditional", ALL, "--freeze-layers", "0")),
    ADAPTED_FROZEN: ("ca_mtl", ("--conditional", ALL, "--freeze-layers", "half")),
}


def systems(data: Path, encoder: Path, size: str) -> dict[str, System]:
    """All of them, with the same weights where a plain encoder has any."""
    found: dict[str, System] = {}
    for name, (arch, options) in SYSTEMS.items():
        config = configuration(data, encoder, arch + size, "--sampling-method", "uniform", *options)
        task = setup_task(config.task)
        torch.manual_seed(1)
        model = task.build_model(config.model)
        if found:
            model.heads.load_state_dict(found[PLAIN].model.heads.state_dict())  # type: ignore[union-attr,operator]
        found[name] = system_of(task, model, config)
    return found


def show(report: Report, kind: str, times: dict[str, list[float]], tokens: list[int], note: str) -> None:
    rows = [
        [name, statistics.median(seconds), sum(tokens) / sum(seconds), str(Ratio.of(seconds, times[PLAIN]))]
        for name, seconds in times.items()
    ]
    report.table(f"A training step, {kind}", ["system", "s", "tokens/s", "time / mt_dense's (quartiles)"], rows, note)
    for own, other in ((FROZEN, PLAIN), (ADAPTED_FROZEN, ADAPTED)):
        ratio = Ratio.of(times[own], times[other])
        report.figure(f"step, {kind}: {own} / {other}", ratio.median, Floor(MOST_OF_FROZEN), (ratio.low, ratio.high))


def run(size: Size, repetitions: int, folder: Path, report: Report) -> None:
    data, encoder = folder / "data", folder / "encoder.pt"
    write_benchmark(data, size.share)
    made_encoder(encoder, size.encoder, serialized_tokenizer())
    found = systems(data, encoder, size.arch)
    blocks, width = size.encoder.num_hidden_layers, size.encoder.hidden_size
    report.text(f"{blocks} blocks of {width}; {len(lengths())} tasks. {parameters(found)}")
    task = found[PLAIN].task
    task.load_dataset("train")
    mixture = task.datasets["train"]
    samples = list(islice(batches(mixture, size.batch, size.tasks), WARMUPS + repetitions))
    check_equal(found, samples[0])
    few = islice(batches(mixture, size.longest), WARMUPS + repetitions)
    longest = [full(sample, size.length, size.encoder.vocab_size) for sample in few]
    for kind, chosen in ((OWN, samples), (LONGEST, longest)):
        times = interleaved({name: Turns(system, chosen) for name, system in found.items()}, repetitions, WARMUPS)
        report.raw(f"seconds, {kind}", times)
        show(report, kind, times, [sample["ntokens"] for sample in chosen[WARMUPS:]], described(chosen))


def parameters(found: dict[str, System]) -> str:
    counts = {}
    for name in (PLAIN, ADAPTED_FROZEN):
        encoder = found[name].model.encoder
        sizes = [(one.numel(), one.requires_grad) for one in encoder.parameters()]  # type: ignore[union-attr,operator]
        counts[name] = sum(size for size, _ in sizes), sum(size for size, trains in sizes if trains)
    (plain, _), (adapted, trained) = counts[PLAIN], counts[ADAPTED_FROZEN]
    return f"The encoder has {plain:,} parameters, and with all parts {adapted:,}, of which {trained:,} train."


@click.command(context_settings={"show_default": True})
@click.option("--repetitions", type=click.IntRange(5), default=9)
@report_options("Shorter batches.")
def main(repetitions: int, small: bool, check: bool, write: bool) -> None:
    """Time training steps of encoders that adapt to tasks."""
    logging.disable(logging.WARNING)
    size = Size(SHARE, longest=(SMALL if small or check else FULL).longest)
    with tempfile.TemporaryDirectory() as folder:
        report = Report(report_name("conditional", small or check), "Adapting to tasks")
        run(size, repetitions, Path(folder), report)
        report.finish(write, check)


if __name__ == "__main__":
    main()
