"""A tiny T5 with pieces of its own, and training it on a made benchmark through the real commands."""

import dataclasses
import functools
import random
from pathlib import Path

from fairseq_mtmoe.nlu.data.text_split import Pieces
from fairseq_mtmoe.nlu.t5.config import T5Config
from fairseq_mtmoe.nlu.t5.model import bare_state
from fairseq_mtmoe.nlu.t5.pretrained import PretrainedT5
from tests.helpers.benchmark import LETTERS, save_before_training
from tests.helpers.commands import PLUGIN, run
from tests.helpers.piece_models import trained_pieces
from tests.helpers.t5 import SPECIAL_PIECES, TINY, tiny_t5

# One piece each, so that what is to be learned is one choice.
SYMBOLS = [
    *("entailment", "not_entailment", "acceptable", "unacceptable", "True", "False"),
    *("rte", "cola", "stsb", "wic", "sentence:", "sentence1:", "sentence2:", "word:", "question:", "context:"),
]


@functools.cache
def spiece() -> bytes:
    """A model of SentencePiece with T5's first pieces, of letters and of what T5's forms say."""
    draw = random.Random(3)
    texts = [" ".join(draw.choices(LETTERS + LETTERS.upper(), k=9)) for _ in range(100)]
    texts += ["0.123456789 copa choice1: choice2: premise: * , : ? happened cause"] * 3
    return trained_pieces(texts, "unigram", 90, user_defined_symbols=SYMBOLS, **SPECIAL_PIECES)


def tiny_config() -> T5Config:
    """The tiny T5 with as many embeddings as there are pieces, and some that are none."""
    return dataclasses.replace(TINY, vocab_size=len(Pieces(spiece())) + 8)


def pretrained_t5(seed: int = 1) -> PretrainedT5:
    config = tiny_config()
    return PretrainedT5(config, spiece(), bare_state(tiny_t5(config, seed).state_dict(), config))


def make_t5(path: Path, seed: int = 1) -> None:
    pretrained_t5(seed).save(path)


def text_arguments(data: object, save_dir: object, *args: object) -> tuple[object, ...]:
    """The arguments of `fairseq-train` for a tiny T5 on RTE; `args` come last and win."""
    task = () if "--source-task" in args else ("--target-task", "rte")
    return (
        data, *PLUGIN, "--task", "text_to_text", *task, "--save-dir", save_dir, "--cpu", "--seed", 1, "--arch", "t5",
        "--criterion", "cross_entropy", "--optimizer", "adam", "--lr", 0.003, "--batch-size", 16, "--dropout", 0.0,
        "--max-source-positions", 64, "--max-target-positions", 16, "--max-epoch", 100,
        "--best-checkpoint-metric", "all", "--maximize-best-checkpoint-metric", "--no-epoch-checkpoints",
        "--num-workers", 0, "--log-format", "json", "--log-interval", 50, "--no-progress-bar", *args,
    )  # fmt: skip


def train_text(data: object, save_dir: object, *args: object) -> str:
    result = run("fairseq-train", *text_arguments(data, save_dir, *args))
    return str(result.stdout) + str(result.stderr)


def save_untrained_text(data: Path, path: Path, *args: object) -> None:
    """A checkpoint of such a model before its first update, with the T5 `data/t5.pt`; `args` come last."""
    save_before_training(text_arguments(data, path.parent, "--init-model", data / "t5.pt", *args), path)
