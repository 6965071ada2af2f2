"""Translating the test sets of 50 directions: batches that mix them against fairseq-generate, one direction at a time.

    python benchmarks/bench_evaluate.py --write

Both have the same loaded model, the same data directory, dictionaries and data sets, so that nobody's start counts;
fairseq-generate's part is its own steps in its own order: iterator, generator, inference step, texts, scorer. Ours
counts its search, its texts, and BLEU and chrF++ of them.

All of 50 directions of 1,000 sentences would take hours. They are there, and their batches are made; in each turn
fairseq-generate's loop translates whole directions, and ours as many of the batches, which are spread evenly over all
of them, from the longest sentences to the shortest. What is compared is the time of a word. Random models do not know
when to stop: each sentence ends after as many words as its source has, in both. Hypotheses of sentences that both
translated are compared.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import numpy as np
import torch
from fairseq import utils
from fairseq.data import Dictionary, indexed_dataset
from fairseq.scoring.bleu import SacrebleuConfig, SacrebleuScorer
from fairseq.search import BeamSearch
from measure import Report, report_name, report_options
from timing import Floor, Ratio
from torch import Tensor
from wmt15_models import FULL, SMALL, RandomTexts, Size

from fairseq_mtmoe.analysis.scores import score_pair
from fairseq_mtmoe.cli._shared import quiet_fairseq
from fairseq_mtmoe.evaluation.decode import Decoder, Decoding
from fairseq_mtmoe.evaluation.translator import PairData, Translator

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.helpers.benchmark import save_before_training
from tests.helpers.untrained import babble

PEER, MIXED = "fairseq-generate's loop", "mtmoe evaluate"
FLOOR = Floor(1.5, at_most=False)
TURNS = 3

Found = dict[tuple[str, int], str]  # hypotheses by direction and sentence


@dataclass(frozen=True)
class Sets:
    """Test sets of one size.

    Attributes:
        sentences: of each direction.
        directions: that the peer translates in a turn.
    """

    sentences: int
    directions: int


SETS = (Sets(1000, 1), Sets(100, 3), Sets(30, 4))


@dataclass
class Spent:
    """What a system did: seconds and words of each turn, and its hypotheses."""

    seconds: list[float] = field(default_factory=list)
    words: list[int] = field(default_factory=list)
    found: Found = field(default_factory=dict)

    def turn(self, work: Callable[[], Found], lengths: dict[tuple[str, int], int]) -> None:
        start = perf_counter()
        found = work()
        self.seconds.append(perf_counter() - start)
        self.words.append(sum(lengths[sentence] for sentence in found))
        self.found |= found

    @property
    def word_times(self) -> list[float]:
        return [seconds / words for seconds, words in zip(self.seconds, self.words, strict=True)]


def make_data(folder: Path, pairs: Sequence[str], count: int, symbols: int) -> None:
    """A data directory of random test sets, with lengths and frequencies of words like those of text."""
    words = Dictionary()
    for index in range(symbols - len(words)):
        words.add_symbol(f"w{index}")
    for lang in {lang for pair in pairs for lang in pair.split("-")}:
        words.save(str(folder / f"dict.{lang}.txt"))
    for seed, pair in enumerate(pairs):
        random = np.random.default_rng(seed)
        source = np.clip(5 + random.exponential(20, count), 5, 150).astype(np.int64)
        target = np.clip(source * random.lognormal(0.05, 0.2, count), 5, 150).astype(np.int64)
        for lang, sizes in zip(pair.split("-"), (source, target), strict=True):
            prefix = folder / f"test.{pair}.{lang}"
            texts = RandomTexts(sizes, words, 2 * seed + (lang == "en"))
            builder = indexed_dataset.make_builder(f"{prefix}.bin", impl="mmap", vocab_size=len(words))
            for index in range(count):
                builder.add_item(texts[index])
            builder.finalize(f"{prefix}.idx")


def make_model(size: Size, data: Path, pairs: Sequence[str]) -> Path:
    """A checkpoint of a sparse model with random weights, which hardly ever ends a sentence by itself."""
    arguments = (
        data, "--task", "translation_heated", "--arch", "base_moe_wmt15", "--num-experts", size.num_experts,
        "--lang-pairs", ",".join(pairs), "--encoder-langtok", "tgt", "--decoder-langtok", *size.options(),
    )  # fmt: skip
    save_before_training(arguments, data / "model.pt", babble)
    return data / "model.pt"


class EndingSearch(BeamSearch):  # type: ignore[misc]
    """fairseq's search, in which each sentence ends after as many words as its source has."""

    needs_src_lengths = True  # the generator tells them before each step

    def set_src_lengths(self, src_lengths: Tensor) -> None:
        """Called by the generator with the lengths (S,) of the sentences that are left."""
        self._limit_S = src_lengths

    def step(self, step: int, lprobs: Tensor, *others: Any, **more: Any) -> Any:
        """As fairseq's; where a sentence is long enough nothing but its end is possible. `lprobs` is (S, B, V)."""
        at_end_S = step >= self._limit_S
        if at_end_S.any():
            end = lprobs[at_end_S, :, self.eos]
            lprobs[at_end_S] = float("-inf")
            lprobs[at_end_S, :, self.eos] = end
        return super().step(step, lprobs, *others, **more)


class Systems:
    def __init__(self, data: Path, checkpoint: Path, pairs: Sequence[str], beam: int) -> None:
        # as many words as the source has
        decoding = Decoding(beam=beam, max_len_a=1.0, max_len_b=0)
        self.translator = Translator(str(data), [str(checkpoint)], decoding, post_process="none")
        self.test_sets = {pair: self.translator.pair_data(pair, "test") for pair in pairs}
        rows = [row for test_set in self.test_sets.values() for row in test_set.rows()]
        self.decoder = Decoder(self.test_sets[pairs[0]].task, self.translator.models, decoding)
        self.batches = self.decoder.batches(rows)
        self.lengths = {row.key: len(row.tokens) for row in rows}

    def mixed(self, share: float, turn: int) -> Found:
        """So much of all sentences, in batches from all lengths."""
        count = len(self.batches)
        number = max(1, round(count * share))
        step = count / (number * TURNS)
        chosen = sorted({int((turn + TURNS * place + 0.5) * step) for place in range(number)})
        found: Found = {}
        for batch in (self.batches[index] for index in chosen):
            for row, (best, *_) in zip(batch, self.decoder.decode(batch), strict=True):
                found[row.key] = self.test_sets[row.key[0]].text(best.tokens)
        references = [self.test_sets[pair].references.lines[index] for pair, index in found]
        score_pair("en-xx", list(found.values()), references)
        return found

    def peer(self, pairs: Sequence[str]) -> Found:
        """Whole directions, one after the other, as fairseq-generate does it."""
        return {(pair, n): text for pair in pairs for n, text in self._generate(self.test_sets[pair]).items()}

    def _generate(self, test_set: PairData) -> dict[int, str]:
        task, models = test_set.task, self.translator.models
        positions = utils.resolve_max_positions(task.max_positions(), *[model.max_positions() for model in models])
        batches = task.get_batch_iterator(
            task.dataset("test"), max_tokens=12000, max_positions=positions, ignore_invalid_inputs=True,
            required_batch_size_multiple=8,
        ).next_epoch_itr(shuffle=False)  # fmt: skip
        generator = task.build_generator(models, self.translator.decoding.generation)
        generator.search, generator.should_set_src_lengths = EndingSearch(generator.tgt_dict), True
        scorer = SacrebleuScorer(SacrebleuConfig())
        found: dict[int, str] = {}
        for sample in batches:
            sample = self.translator.decoding.moved(sample)
            for row, hypotheses in enumerate(task.inference_step(generator, models, sample)):
                found[int(sample["id"][row])] = self._texts(task, generator, sample, row, hypotheses, scorer)
        scorer.result_string()
        return found

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


def measured(systems: Systems, directions: int) -> dict[str, Spent]:
    pairs = list(systems.test_sets)
    spent = {PEER: Spent(), MIXED: Spent()}
    share = directions / len(pairs)
    for turn in range(TURNS):
        chosen = pairs[turn * directions : (turn + 1) * directions]
        works: dict[str, Callable[[], Found]] = {
            PEER: lambda chosen=chosen: systems.peer(chosen),  # type: ignore[misc]
            MIXED: lambda turn=turn: systems.mixed(share, turn),  # type: ignore[misc]
        }
        for name in list(works)[:: -1 if turn % 2 else 1]:
            spent[name].turn(works[name], systems.lengths)
    return spent


def compared(spent: dict[str, Spent]) -> str:
    """Assert that both find the same; says how equal."""
    wanted, found = spent[PEER].found, spent[MIXED].found
    both = wanted.keys() & found.keys()
    same = sum(wanted[one] == found[one].replace("⁇", "<unk>") for one in both)
    # Hypotheses whose scores are the same but for rounding may change places.
    assert both and same >= 0.95 * len(both), f"{same} of {len(both)} hypotheses are fairseq-generate's"
    return f"Of {len(both)} sentences that both translated {same} have the same hypothesis, word for word."


@click.command(context_settings={"show_default": True})
@click.option("--directions", default=50)
@click.option("--beam", default=5)
@report_options("A smaller model.")
def main(directions: int, beam: int, small: bool, check: bool, write: bool) -> None:
    """Print sentences per second, and how many times as fast mixing is as fairseq-generate's loop."""
    size = SMALL if small or check else FULL
    pairs = [f"en-x{number:02}" for number in range(directions)]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    report = Report(report_name("evaluate", size is SMALL, device), "Test sets of many directions, mixed in batches")
    report.text(f"{size}; {directions} directions, beam {beam}; {torch.get_num_threads()} threads, float32.")
    report.text(
        f"Each of {TURNS} turns times whole directions of fairseq-generate's loop, and as many of the batches that mix "
        "all directions, from all lengths; what is compared is the time of a word. Each sentence ends after as many "
        "words as its source has. Ours counts BLEU and chrF++, fairseq-generate BLEU."
    )
    for sets in [Sets(10, 2)] if check else SETS:
        with quiet_fairseq(), tempfile.TemporaryDirectory() as folder:
            make_data(Path(folder), pairs, sets.sentences, size.symbols)
            systems = Systems(Path(folder), make_model(size, Path(folder), pairs), pairs, beam)
            spent = measured(systems, sets.directions)
        report.text(compared(spent))
        mean = sum(systems.lengths.values()) / len(systems.lengths)
        rows = []
        for name, one in spent.items():
            ratio = Ratio.of(spent[PEER].word_times, one.word_times)
            rows.append([name, len(one.found), 1 / (mean * float(np.median(one.word_times))), str(ratio)])
        title = f"{sets.sentences:,} sentences a direction"
        report.figure(f"times as fast, {title}", ratio.median, FLOOR, (ratio.low, ratio.high))
        report.table(title, ["system", "sentences timed", "sentences/s", "times as fast (quartiles)"], rows)
        report.raw(title, {name: {"seconds": one.seconds, "words": one.words} for name, one in spent.items()})
    report.finish(write, check)


if __name__ == "__main__":
    main()
