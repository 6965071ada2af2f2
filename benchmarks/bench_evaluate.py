"""Translating test sets of 50 directions: mixed in batches, against fairseq-generate's loop.

    python benchmarks/bench_evaluate.py --write

Both have the same loaded models, the same data directory and the same batches' limits. fairseq-generate's part is its
own steps in its own order, one direction after the other: iterator, generator, inference step, texts, scorer. Ours
counts its search, its texts, and BLEU and chrF++. Random models do not know when to stop, so all translations have
the same number of words.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.scoring.bleu import SacrebleuConfig, SacrebleuScorer
from measure import Report, benchmark
from timing import ROOT, Floor, interleaved
from wmt15_models import FULL, SMALL, RandomTexts, Size

from fairseq_mtmoe.cli._shared import quiet_fairseq
from fairseq_mtmoe.report.scores import score_pair
from fairseq_mtmoe.translation.decode.decode import MOST_TOKENS, Decoding
from fairseq_mtmoe.translation.decode.translator import Translator

sys.path.insert(0, str(ROOT))

from tests.helpers.benchmark import save_before_training
from tests.helpers.binarized import write_ids
from tests.helpers.untrained import babble

PEER, MIXED = "fairseq-generate's loop", "mtmoe evaluate"
FLOOR = Floor(1.5, at_most=False)
DIRECTIONS, BEAM = 50, 5
WORDS = 20  # of a translation
Hypotheses = dict[str, list[str]]  # by direction


def make_data(folder: Path, pairs: Sequence[str], count: int, symbols: int) -> None:
    """Write random test sets, whose lengths and frequencies of words are like those of text."""
    words = Dictionary()
    for index in range(symbols - len(words)):
        words.add_symbol(f"w{index}")
    for seed, pair in enumerate(pairs):
        lengths = 5 + np.random.default_rng(seed).exponential(20, count)
        texts = RandomTexts(np.minimum(lengths, 150).astype(np.int64), words, seed)
        for lang in pair.split("-"):
            words.save(str(folder / f"dict.{lang}.txt"))
            write_ids(folder / f"test.{pair}.{lang}", map(texts.__getitem__, range(count)), symbols)


def make_model(size: Size, data: Path, pairs: Sequence[str]) -> Path:
    """Save a sparse model with random weights, which hardly ever ends a sentence by itself."""
    arguments = (
        data, "--task", "translation_heated", "--arch", "base_moe_wmt15",
        "--num-experts", size.num_experts, "--lang-pairs", ",".join(pairs),
        "--encoder-langtok", "tgt", "--decoder-langtok", *size.options(),
    )  # fmt: skip
    save_before_training(arguments, data / "model.pt", babble)
    return data / "model.pt"


def evaluated(translator: Translator, pairs: Sequence[str]) -> Hypotheses:
    """Translate and score all directions as `mtmoe evaluate` does."""
    hypotheses = {}
    for translation in translator.translations(pairs, "test"):
        score_pair(translation.pair, translation.hypotheses, translation.references.lines)
        hypotheses[translation.pair] = translation.hypotheses
    return hypotheses


def generated(translator: Translator, pairs: Sequence[str]) -> Hypotheses:
    """Translate and score one direction after the other as fairseq-generate does."""
    return {pair: _generated_pair(translator, pair) for pair in pairs}


def _generated_pair(translator: Translator, pair: str) -> list[str]:
    task, models = translator.pair_data(pair, "test").task, translator.models
    model_positions = [model.max_positions() for model in models]
    batches = task.get_batch_iterator(
        task.dataset("test"),
        max_tokens=MOST_TOKENS,
        max_positions=utils.resolve_max_positions(task.max_positions(), *model_positions),
        ignore_invalid_inputs=True,
        required_batch_size_multiple=8,
    ).next_epoch_itr(shuffle=False)
    generator = task.build_generator(models, translator.decoding.generation)
    words, ignored = task.target_dictionary, generator.symbols_to_strip_from_output
    scorer = SacrebleuScorer(SacrebleuConfig())
    texts: dict[int, str] = {}
    for batch in batches:
        sample = translator.decoding.to_device(batch)
        outputs = task.inference_step(generator, models, sample)
        for number, target, hypotheses in zip(sample["id"].tolist(), sample["target"], outputs, strict=True):
            tokens = hypotheses[0]["tokens"].int().cpu()
            _, text, _ = utils.post_process_prediction(tokens, "", None, None, words, extra_symbols_to_ignore=ignored)
            reference = utils.strip_pad(target, words.pad()).int().cpu()
            scorer.add_string(words.string(reference, None, escape_unk=True, extra_symbols_to_ignore=ignored), text)
            texts[number] = text
    scorer.result_string()
    return [texts[number] for number in sorted(texts)]


@benchmark(
    "evaluate_cuda" if torch.cuda.is_available() else "evaluate",
    "Test sets of many directions, mixed in batches",
    "A smaller model, and 10 instead of 30 sentences of each direction.",
    repetitions=3,
)
def main(report: Report, small: bool, repetitions: int) -> None:
    """Print sentences per second, and the ratio to fairseq-generate's loop."""
    size, sentences = (SMALL, 10) if small else (FULL, 30)
    pairs = [f"en-x{number:02}" for number in range(DIRECTIONS)]
    report.text(
        f"{size}; {DIRECTIONS} directions of {sentences} sentences, beam {BEAM}, {WORDS} words of each translation; "
        f"{torch.get_num_threads()} threads, float32."
    )
    with quiet_fairseq(), tempfile.TemporaryDirectory() as folder:
        make_data(Path(folder), pairs, sentences, size.symbols)
        model = make_model(size, Path(folder), pairs)
        decoding = Decoding(beam=BEAM, max_len_b=WORDS)
        translator = Translator(folder, [str(model)], decoding, "none", references="fairseq")
        wanted, found = generated(translator, pairs), evaluated(translator, pairs)
        same = fmean(one == other for pair in pairs for one, other in zip(wanted[pair], found[pair], strict=True))
        # Hypotheses whose scores are the same but for rounding may change places.
        assert same >= 0.95, f"{same:.1%} of the hypotheses are fairseq-generate's"
        report.text(f"{same:.1%} of the hypotheses are fairseq-generate's, word for word.")
        works = {PEER: partial(generated, translator, pairs), MIXED: partial(evaluated, translator, pairs)}
        seconds = interleaved(works, repetitions, warmups=0)
    report.speeds("Speed", seconds, PEER, [len(pairs) * sentences] * repetitions, "sentences")
    report.ratio("times as fast", seconds[PEER], seconds[MIXED], FLOOR)


if __name__ == "__main__":
    main()
