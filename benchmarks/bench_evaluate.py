"""Translating the test sets of 50 directions: batches that mix them against fairseq-generate, one direction at a time.

    python benchmarks/bench_evaluate.py --write

Both have the same loaded model, the same data directory, dictionaries and data sets, so that nobody's start counts;
fairseq-generate's part is its own steps in its own order: iterator, generator, inference step, texts, scorer. Random
models do not know when to stop, so all write as many words as their source has (`--match-source-len`). Before anything
is timed, the hypotheses are compared.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from fairseq import tasks, utils
from fairseq.data import Dictionary, indexed_dataset
from fairseq.scoring.bleu import SacrebleuConfig, SacrebleuScorer
from measure import Report, interleaved, report_name
from omegaconf import OmegaConf
from timing import Floor, Ratio
from wmt15_models import FULL, SMALL, RandomTexts, Size, training_config

from fairseq_mtmoe.cli._quiet import quiet_fairseq
from fairseq_mtmoe.evaluation.mixing import Mixture
from fairseq_mtmoe.evaluation.translator import Decoding, Direction, Translator

PEER, MIXED = "fairseq-generate's loop", "mtmoe evaluate"
FLOOR = Floor(1.5, at_most=False)


def make_data(folder: Path, pairs: Sequence[str], count: int, symbols: int) -> None:
    """A data directory of random test sets, with lengths and frequencies of words like those of text."""
    words = Dictionary()
    for index in range(symbols - len(words)):
        words.add_symbol(f"w{index}")
    for lang in {lang for pair in pairs for lang in pair.split("-")}:
        words.save(str(folder / f"dict.{lang}.txt"))
    for seed, pair in enumerate(pairs):
        random = np.random.default_rng(seed)
        source = np.clip(5 + random.exponential(18, count), 5, 60).astype(np.int64)
        target = np.clip(source * random.lognormal(0.05, 0.2, count), 5, 60).astype(np.int64)
        for lang, sizes in zip(pair.split("-"), (source, target), strict=True):
            prefix = folder / f"test.{pair}.{lang}"
            texts = RandomTexts(sizes, words, 2 * seed + (lang == "en"))
            builder = indexed_dataset.make_builder(f"{prefix}.bin", impl="mmap", vocab_size=len(words))
            for index in range(count):
                builder.add_item(texts[index])
            builder.finalize(f"{prefix}.idx")


def make_model(size: Size, data: Path, pairs: Sequence[str]) -> Path:
    """A checkpoint of a sparse model with random weights."""
    config = training_config(
        str(data), "--task", "translation_heated", "--arch", "base_moe_wmt15", "--num-experts", str(size.num_experts),
        "--lang-pairs", ",".join(pairs), "--encoder-langtok", "tgt", "--decoder-langtok", *size.options(),
    )  # fmt: skip
    torch.manual_seed(1)
    task = tasks.setup_task(config.task)
    model = task.build_model(config.model)
    path = data / "model.pt"
    history = [{"num_updates": 1, "optimizer_name": "adam", "lr_scheduler_state": {}}]
    state = {
        "args": None,
        "cfg": OmegaConf.to_container(config, resolve=True),
        "model": model.state_dict(),
        "task_state": task.state_dict(),
    }
    torch.save({**state, "optimizer_history": history, "extra_state": {}}, path)
    return path


class Systems:
    """What is timed: a loaded model with its directions."""

    def __init__(self, data: Path, checkpoint: Path, pairs: Sequence[str], beam: int) -> None:
        self.translator = Translator(str(data), [str(checkpoint)], Decoding(beam=beam), post_process="none")
        self.translator.generation.match_source_len = True
        self.pairs = list(pairs)
        self.directions = {pair: self.translator.direction(pair, "test") for pair in pairs}
        self.translator.direction = self._ready  # type: ignore[method-assign]

    def _ready(self, pair: str, subset: str) -> Direction:
        return self.directions[pair]

    def mixed(self) -> dict[str, list[str]]:
        """All test sets, mixed."""
        return {text.pair: text.hypotheses for text in Mixture(self.translator, self.pairs, "test").translate()}

    def peer(self) -> dict[str, list[str]]:
        """One after the other, as fairseq-generate does it."""
        return {pair: self._generate(self.directions[pair]) for pair in self.pairs}

    def _generate(self, direction: Direction) -> list[str]:
        task, models = direction.task, self.translator.models
        positions = utils.resolve_max_positions(task.max_positions(), *[model.max_positions() for model in models])
        batches = task.get_batch_iterator(
            task.dataset("test"), max_tokens=12000, max_positions=positions, ignore_invalid_inputs=True,
            required_batch_size_multiple=8,
        ).next_epoch_itr(shuffle=False)  # fmt: skip
        generator = task.build_generator(models, self.translator.generation)
        scorer = SacrebleuScorer(SacrebleuConfig())
        found: dict[int, str] = {}
        for sample in batches:
            sample = self.translator.moved(sample)
            for row, hypotheses in enumerate(task.inference_step(generator, models, sample)):
                found[int(sample["id"][row])] = self._texts(task, generator, sample, row, hypotheses, scorer)
        scorer.result_string()
        return [found[number] for number in sorted(found)]

    @staticmethod
    def _texts(task: Any, generator: Any, sample: Any, row: int, hypotheses: Any, scorer: Any) -> str:
        source = utils.strip_pad(sample["net_input"]["src_tokens"][row], task.target_dictionary.pad())
        target = utils.strip_pad(sample["target"][row], task.target_dictionary.pad()).int().cpu()
        strip = generator.symbols_to_strip_from_output
        text = task.source_dictionary.string(source, None)
        reference = task.target_dictionary.string(target, None, escape_unk=True, extra_symbols_to_ignore=strip)
        _, hypothesis, _ = utils.post_process_prediction(
            hypotheses[0]["tokens"].int().cpu(), text, None, None, task.target_dictionary,
            extra_symbols_to_ignore=strip,
        )  # fmt: skip
        scorer.add_string(reference, hypothesis)
        return str(hypothesis)


def check(systems: Systems) -> str:
    """Assert that all find the same; says how equal."""
    wanted, found = systems.peer(), systems.mixed()
    pairs = [(a, b.replace("⁇", "<unk>")) for name in wanted for a, b in zip(wanted[name], found[name], strict=True)]
    same = sum(a == b for a, b in pairs)
    # Hypotheses whose scores are the same but for rounding may change places.
    assert same >= 0.95 * len(pairs), f"{same} of {len(pairs)} hypotheses are fairseq-generate's"
    return f"Hypotheses that are fairseq-generate's, word for word: {same} of {len(pairs)}."


@click.command(context_settings={"show_default": True})
@click.option("--directions", default=50)
@click.option("--sentences", default="30,100", help="Of each test set, a table for each.")
@click.option("--beam", default=5)
@click.option("--repetitions", default=3, type=click.IntRange(1))
@click.option("--small", is_flag=True, help="A smaller model.")
@click.option("--check", "check_floors", is_flag=True, help="Small, and status 1 if a floor is missed by over 20%.")
@click.option("--write", is_flag=True, help="Write the report to benchmarks/results.")
def main(
    directions: int, sentences: str, beam: int, repetitions: int, small: bool, check_floors: bool, write: bool
) -> None:
    """Print sentences per second, and how many times as fast mixing is as fairseq-generate's loop."""
    size = SMALL if small or check_floors else FULL
    sentences = "10" if check_floors else sentences
    pairs = [f"en-x{number:02}" for number in range(directions)]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    report = Report(report_name("evaluate", size is SMALL, device), "Test sets of many directions, mixed in batches")
    report.text(f"{size}; {directions} directions, beam {beam}; {torch.get_num_threads()} threads, float32.")
    for count in map(int, sentences.split(",")):
        with quiet_fairseq(), tempfile.TemporaryDirectory() as folder:
            make_data(Path(folder), pairs, count, size.symbols)
            systems = Systems(Path(folder), make_model(size, Path(folder), pairs), pairs, beam)
            report.text(check(systems))
            works: dict[str, Callable[[], object]] = {PEER: systems.peer, MIXED: systems.mixed}
            seconds = interleaved(works, repetitions, warmups=0)
        rows = []
        for name in works:
            ratio = Ratio.of(seconds[PEER], seconds[name])
            rows.append([name, directions * count / float(np.median(seconds[name])), str(ratio)])
        report.figure(f"times as fast, {count} sentences each", ratio.median, FLOOR, (ratio.low, ratio.high))
        report.table(f"{count} sentences a direction", ["system", "sentences/s", "times as fast (quartiles)"], rows)
        report.raw(f"seconds, {count} sentences", seconds)
    report.finish(write, check_floors)


if __name__ == "__main__":
    main()
