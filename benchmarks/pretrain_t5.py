"""Pretrains a small T5 on plain text by span corruption: a backbone for adapters where no T5's weights are at hand.

    python benchmarks/pretrain_t5.py runs/t5 wmt15/train.en-??.en --benchmarks GLUE_DIR --tasks sst2,qqp,mnli

RUN gets `t5.pt`, a file as `mtmoe import-hf` writes them, and `pretraining.json`, which says how it came about. TEXT
are files with a text in each line, such as a sentence or a passage; `--benchmarks` adds the texts of tasks' training
examples, without labels. Each text counts once, texts are joined in random order, and cut into pieces of one length, as
T5's authors do; which of a piece's words are hidden is drawn anew whenever it comes. The optimizer is theirs,
Adafactor, whose steps are relative to the parameters; the learning rate rises and falls linearly, since a run is short.

A run that is stopped goes on from its last validation, and ends as if it had not been.

With the sizes that are given by default an update takes 1.3 s of a core (AMD EPYC, bfloat16), 3600 tokens of text a
second, and the run 90 minutes, in which it reads 19 million tokens: twice what English news and the tasks' texts have.
"""

from __future__ import annotations

import dataclasses
import io
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import click
import numpy as np
import sentencepiece
import torch
from compare_training import say, surroundings, write_json
from fairseq.data import Dictionary
from numpy.typing import NDArray
from span_corruption import SENTINELS, Lengths, corrupted
from torch import Tensor
from torch.nn import functional as F

from fairseq_mtmoe.backbones.t5.config import T5Config
from fairseq_mtmoe.backbones.t5.model import T5Model, shifted
from fairseq_mtmoe.backbones.t5.model_file import PretrainedT5, bare_state
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.data.nlu.reading import read_split
from fairseq_mtmoe.data.nlu.table import chosen_rows, load_tables
from fairseq_mtmoe.errors import must_be
from fairseq_mtmoe.io.files import replacing, text_lines

PIECES, CHECKPOINT, RESULT, RECORD = "spiece.model", "checkpoint.pt", "t5.pt", "pretraining.json"
HELD_OUT = 0.01  # of the texts
VALIDATION = 256  # pieces of text, of those that there are
PIECES_FROM = 200_000  # texts that SentencePiece is trained on at most
WARMUP = 0.1  # of the updates


@dataclass(frozen=True)
class Settings:
    """What the result depends on besides the text.

    Attributes:
        width, blocks: H, and blocks of encoder and decoder each; a head is 64 wide, a feed-forward layer 4H.
        vocab_size: pieces of SentencePiece and 100 sentinels.
        length: tokens that the encoder reads of a piece of text.
        batch: pieces of an update.
        lr: the highest, as a share of a parameter's root mean square.
        updates, seed: of the run.
        bf16: whether matrix products are in bfloat16.
    """

    width: int
    blocks: int
    vocab_size: int
    length: int
    batch: int
    lr: float
    updates: int
    seed: int
    bf16: bool

    def config(self, dropout_rate: float = 0.0) -> T5Config:
        """The T5's sizes. While it is pretrained on less text than it could learn by heart, nothing is dropped."""
        return T5Config(
            vocab_size=self.vocab_size, d_model=self.width, d_ff=4 * self.width, num_layers=self.blocks,
            num_decoder_layers=self.blocks, num_heads=max(1, self.width // 64), dropout_rate=dropout_rate,
        )  # fmt: skip

    def lr_at(self, update: int) -> float:
        """The learning rate of an update, counted from 0."""
        up = math.ceil(WARMUP * self.updates)
        return self.lr * min((update + 1) / up, (self.updates - update) / (self.updates - up + 1))


# ---- text ----


def texts_of(files: Sequence[Path], benchmarks: Path | None, tasks: Sequence[str]) -> list[str]:
    """Every text once: the files' lines, and what the tasks' training examples are about."""
    lines = (line.strip() for path in files for line in text_lines(path))
    found = dict.fromkeys((*lines, *_texts_of_tasks(benchmarks, tasks))) if benchmarks else dict.fromkeys(lines)
    found.pop("", None)
    if not found:
        must_be("TEXT", "files with a text in some of their lines", ", ".join(map(str, files)))
    return list(found)


def _texts_of_tasks(benchmarks: Path, tasks: Sequence[str]) -> Iterator[str]:
    for row in chosen_rows(load_tables(), tasks).values():
        for example in read_split(benchmarks, row, "train"):
            for texts in example.candidates:
                yield from (" ".join(text.split()) for text in texts)


def train_pieces(texts: Sequence[str], size: int, seed: int) -> bytes:
    """A SentencePiece model with the special pieces of T5's, in T5's places."""
    chosen = np.random.default_rng(seed).permutation(len(texts))[:PIECES_FROM]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([texts[n] for n in chosen]), model_writer=model, model_type="unigram", vocab_size=size,
        character_coverage=0.9999, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, num_threads=1, minloglevel=2,
    )  # fmt: skip
    return model.getvalue()


@dataclass(frozen=True)
class Text:
    """Pieces of text (N, T), some to train on and others to validate with."""

    train: NDArray[np.uint16]
    valid: NDArray[np.uint16]

    @staticmethod
    def of(texts: Sequence[str], pieces: bytes, length: int, seed: int) -> Text:
        """Texts joined in random order, and cut into pieces of `length` tokens."""
        processor = sentencepiece.SentencePieceProcessor(model_proto=pieces)
        order = np.random.default_rng(seed).permutation(len(texts))
        held_out = math.ceil(HELD_OUT * len(texts))

        def cut(numbers: Iterable[int]) -> NDArray[np.uint16]:
            encoded = processor.encode([texts[n] for n in numbers])
            joined = np.concatenate([np.asarray(tokens, dtype=np.uint16) for tokens in encoded])
            return joined[: len(joined) // length * length].reshape(-1, length)

        found = Text(cut(order[held_out:]), cut(order[:held_out])[:VALIDATION])
        if not (len(found.train) and len(found.valid)):
            must_be("TEXT", f"text of at least {length / HELD_OUT:g} tokens", sum(map(len, texts)))
        return found


def batches(train: NDArray[np.uint16], settings: Settings) -> Iterator[NDArray[np.int64]]:
    """The pieces of each update: all of them in random order, then all again in another."""
    generator = np.random.default_rng(settings.seed)
    waiting = np.empty(0, dtype=np.int64)
    while True:
        while len(waiting) < settings.batch:
            waiting = np.concatenate([waiting, generator.permutation(len(train))])
        yield train[waiting[: settings.batch]].astype(np.int64)
        waiting = waiting[settings.batch :]


# ---- model ----


def loss_of(model: T5Model, texts: NDArray[np.int64], settings: Settings, seed: Sequence[int]) -> Tensor:
    """Nats for each token that the decoder writes; the seed names what is hidden."""
    config = model.config
    generator = np.random.default_rng(seed)
    inputs, answers = map(torch.from_numpy, corrupted(texts, config.vocab_size - 1, config.eos_token_id, generator))
    with torch.autocast("cpu", torch.bfloat16, enabled=settings.bf16):
        scores, _ = model(inputs, prev_output_tokens=shifted(answers, config))
    return F.cross_entropy(scores.float().flatten(0, 1), answers.flatten())


@torch.no_grad()
def validate(model: T5Model, valid: NDArray[np.uint16], settings: Settings) -> float:
    """The mean loss of what is held out, of which always the same words are hidden."""
    model.eval()
    parts = np.array_split(valid.astype(np.int64), math.ceil(len(valid) / settings.batch))
    losses = [float(loss_of(model, part, settings, [0, n])) * len(part) for n, part in enumerate(parts)]
    model.train()
    return sum(losses) / len(valid)


def frequencies_loss(text: Text, settings: Settings) -> float:
    """The loss of a model that knows how often tokens are written, and nothing else: what any learning must beat."""
    last, end = settings.vocab_size - 1, 1
    of = [corrupted(part.astype(np.int64), last, end, np.random.default_rng(0))[1] for part in (text.train, text.valid)]
    seen, asked = (np.bincount(answers.reshape(-1), minlength=settings.vocab_size) for answers in of)
    shares = (seen + 1) / (seen + 1).sum()
    return float(-(asked * np.log(shares)).sum() / asked.sum())


@dataclass
class Training:
    """A run: what it has of model, optimizer and losses, and how it goes on."""

    settings: Settings
    folder: Path
    model: T5Model
    optimizer: torch.optim.Optimizer
    curve: list[dict[str, float]]

    @staticmethod
    def start(settings: Settings, folder: Path) -> Training:
        """A new run, or what is there of it.

        Raises:
            UserError: the folder has a run with other settings.
        """
        torch.manual_seed(settings.seed)
        model = T5Model(settings.config(), Dictionary())
        found = Training(settings, folder, model, torch.optim.Adafactor(model.parameters(), lr=settings.lr), [])
        if (folder / CHECKPOINT).exists():
            content = file_io.load(str(folder / CHECKPOINT))
            if content["settings"] != dataclasses.asdict(settings):
                must_be("RUN", f"a run with these settings, or a new folder; {folder} has others", content["settings"])
            found.model.load_state_dict(content["model"])
            found.optimizer.load_state_dict(content["last_optimizer_state"])
            found.curve = content["curve"]
        return found

    @property
    def updates(self) -> int:
        """How many were made and saved."""
        return int(self.curve[-1]["update"]) if self.curve else 0

    def run(self, text: Text, interval: int) -> None:
        """Make the updates that are missing, and save and validate after every `interval` of them."""
        upcoming = islice(batches(text.train, self.settings), self.updates, self.settings.updates)
        losses: list[float] = []
        spent = self.curve[-1]["seconds"] if self.curve else 0.0
        start = time.process_time()
        for update, texts in enumerate(upcoming, start=self.updates):
            losses.append(self.update(texts, update))
            if (update + 1) % interval == 0 or update + 1 == self.settings.updates:
                seconds = spent + time.process_time() - start
                found = {"update": update + 1, "seconds": seconds, "train": sum(losses) / len(losses)}
                self.curve.append({**found, "valid": validate(self.model, text.valid, self.settings)})
                losses.clear()
                self.save()
                say(", ".join(f"{name} {value:.4g}" for name, value in self.curve[-1].items()))

    def update(self, texts: NDArray[np.int64], update: int) -> float:
        """One update, counted from 0; returns its loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.lr_at(update)
        self.optimizer.zero_grad()
        loss = loss_of(self.model, texts, self.settings, [self.settings.seed, update + 1])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return float(loss.detach())

    def save(self) -> None:
        """Write what a stopped run goes on with."""
        state = {"model": self.model.state_dict(), "last_optimizer_state": self.optimizer.state_dict()}
        content = {"settings": dataclasses.asdict(self.settings), **state, "curve": self.curve}
        file_io.save(content, str(self.folder / CHECKPOINT))

    def finish(self, pieces: bytes, text: Text, names: Sequence[str]) -> None:
        """Write the result, and how it came about."""
        config = self.settings.config(dropout_rate=T5Config.dropout_rate)
        PretrainedT5(config, pieces, bare_state(self.model.state_dict(), config)).save(self.folder / RESULT)
        found = {
            **surroundings(),
            "settings": dataclasses.asdict(self.settings),
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "text": list(names),
            "tokens": text.train.size,
            "passes": self.settings.updates * self.settings.batch / len(text.train),
            "loss_of_frequencies": frequencies_loss(text, self.settings),
            "curve": self.curve,
        }
        write_json(self.folder / RECORD, found)


@click.command(context_settings={"show_default": True})
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@click.argument("text", type=click.Path(path_type=Path, exists=True, dir_okay=False), nargs=-1)
@click.option(
    "--benchmarks", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Folder of tasks' files."
)
@click.option(
    "--tasks", default="", metavar="NAME,…", help="Tasks with training examples there, whose texts are added."
)
@click.option("--width", default=256, help="H, a multiple of 64.")
@click.option("--blocks", default=4, help="Of encoder and decoder each.")
@click.option("--vocab-size", default=8192, help="Of SentencePiece's pieces and 100 sentinels.")
@click.option("--length", default=128, help="Tokens that the encoder reads of a piece of text.")
@click.option("--batch", default=32, help="Pieces of text in an update.")
@click.option("--lr", default=0.02, help="Highest learning rate, relative to the parameters.")
@click.option("--updates", default=4200, help="Of the run.")
@click.option("--seed", default=1, help="Of the first weights, of the texts' order, and of what is hidden.")
@click.option("--bf16/--no-bf16", default=True, help="Matrix products in bfloat16.")
@click.option("--interval", default=100, help="Updates from one validation to the next.")
def main(
    run: Path, text: tuple[Path, ...], benchmarks: Path | None, tasks: str, interval: int, **settings: Any
) -> None:
    """Pretrain a T5 on TEXT in the folder RUN, or go on with it, on as many cores as OMP_NUM_THREADS says."""
    run.mkdir(parents=True, exist_ok=True)
    chosen = Settings(**settings)
    names = [*(path.name for path in text), *(name for name in tasks.split(",") if name)]
    texts = texts_of(text, benchmarks, tasks.split(",") if tasks else [])
    if not (run / PIECES).exists():
        say(f"SentencePiece of {len(texts)} texts")
        with replacing(run / PIECES) as partial:
            partial.write_bytes(train_pieces(texts, chosen.vocab_size - SENTINELS, chosen.seed))
    pieces = (run / PIECES).read_bytes()
    prepared = Text.of(texts, pieces, Lengths.filling(chosen.length).tokens, chosen.seed)
    passes = chosen.updates * chosen.batch / len(prepared.train)
    say(f"{prepared.train.size} tokens of text, {passes:.1f} passes")
    training = Training.start(chosen, run)
    training.run(prepared, interval)
    training.finish(pieces, prepared, names)
    say(f"{run / RESULT}: loss {training.curve[-1]['valid']:.3f}")


if __name__ == "__main__":
    sys.exit(main())
