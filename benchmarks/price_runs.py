"""What `bench_prices.py` trains: data sets, ways of training, and the command of each run.

Every run is one `fairseq-train` that also writes down the prices of every update (`train_keeping_prices.py`). The
demo's options are read from its own script.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from timing import ROOT
from training_systems import TEMPERATURE, language_pairs

DEMO = ROOT / "examples" / "translation" / "catalogs" / "train.sh"
BALANCED, PRICED, DENSE = "balanced", "prices", "dense"  # ways of training
KINDS = (BALANCED, PRICED, DENSE)
GREEDY, PRICES, WITHIN = "greedy", "prices", "balanced within the batch"  # ways of evaluation; dense models: DENSE
SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Sizes:
    """Model and schedule of the runs whose options are ours; layers are of encoder and decoder each."""

    num_experts: int
    lr: float
    layers: int = 4
    width: int = 64
    inner: int = 256
    heads: int = 4
    max_tokens: int = 1500
    warmup_updates: int = 200
    epoch_sentences: int = 2000

    def options(self, kind: str, data: Path) -> list[object]:
        """What a way of training says to fairseq-train, but for folders, seed and number of updates."""
        pairs = language_pairs(data)
        languages = sorted({language for pair in pairs for language in pair.split("-")})
        sides = [
            option
            for side in ("encoder", "decoder")
            for option in (
                *(f"--{side}-layers", self.layers, f"--{side}-embed-dim", self.width),
                *(f"--{side}-ffn-embed-dim", self.inner, f"--{side}-attention-heads", self.heads),
                f"--{side}-normalize-before",
            )
        ]
        return [
            *("--task", "translation_heated", "--lang-pairs", ",".join(pairs), "--langs", ",".join(languages)),
            *("--encoder-langtok", "tgt", "--virtual-epoch-size", self.epoch_sentences),
            *("--sampling-method", "temperature", "--sampling-temperature", TEMPERATURE),
            *self._model_options(kind), *sides, "--share-all-embeddings", "--dropout", 0.1,
            *("--criterion", "moe_label_smoothed_cross_entropy", "--label-smoothing", 0.1),
            *("--optimizer", "fused_adam", "--adam-betas", "(0.9, 0.98)", "--clip-norm", 1, "--lr", self.lr),
            *("--lr-scheduler", "inverse_sqrt", "--warmup-updates", self.warmup_updates),
            *("--max-tokens", self.max_tokens, "--num-workers", 0, "--validate-interval", 10**6),
        ]  # fmt: skip

    def _model_options(self, kind: str) -> list[object]:
        if kind == DENSE:
            return ["--arch", "base_dense"]
        # From scratch, and combined as in the paper.
        sparse = ["--arch", "base_moe", "--num-experts", self.num_experts, "--expert-combine", "paper"]
        return [*sparse, "--base-training", kind]


@dataclass(frozen=True)
class DataSet:
    """One of the benchmark's data sets. Checkpoints are `every` so many updates; `sizes` None: the demo's options."""

    name: str
    title: str
    text: str  # what the data are, and how they were prepared
    updates: int
    every: int
    sizes: Sizes | None
    is_translated: bool = True
    kinds: tuple[str, ...] = KINDS

    @property
    def model(self) -> str:
        """What is trained, in words."""
        if self.sizes is None:
            return "the demo's own options (dense, then 16 experts in every second block)"
        sizes = self.sizes
        return (
            f"{sizes.layers}+{sizes.layers} blocks of {sizes.width} (inner {sizes.inner}), {sizes.num_experts} experts "
            "in every second block, from scratch, combined as in the paper"
        )


DATA_SETS = (
    DataSet(
        "captions",
        "captions",
        "Multi30k captions, English to de 29,000 (high), fr 12,000 (mid), cs 3,000 (low); validation: the first 300 "
        "sentences of each pair, test: 1,000; `mtmoe prepare text --vocab-size 4000`",
        updates=800,
        every=100,
        sizes=Sizes(num_experts=8, lr=8e-3),
    ),
    DataSet(
        "english15",
        "English→15",
        "news and short sentences, English to 15 languages, 1,000 to 60,000 pairs each, eight of them high and seven "
        "low; validation: the first 50 sentences of each pair; `mtmoe prepare text --vocab-size 8000`",
        updates=1000,
        every=125,
        sizes=Sizes(num_experts=16, lr=6e-3, layers=2),
        is_translated=False,
    ),
    DataSet(
        "demo",
        "demo",
        "the demo's gettext catalogs, English to 14 languages; `examples/translation/catalogs/prepare.sh`",
        updates=1700,
        every=100,
        sizes=None,
        kinds=(BALANCED,),
    ),
)
BY_NAME = {data_set.name: data_set for data_set in DATA_SETS}


@dataclass(frozen=True)
class PriceRun:
    """One run: a data set, a way of training, a seed."""

    data_set: DataSet
    kind: str
    seed: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.data_set.name}-{self.kind}-{self.seed}"

    def train_command(self, data: Path, run: Path) -> list[str]:
        """The whole training command, to be started in the repository's root; it goes on where `run` stopped."""
        what = self.data_set
        options = demo_options(data) if what.sizes is None else what.sizes.options(self.kind, data)
        command = [
            *("python", "benchmarks/train_keeping_prices.py", data, "--user-dir", "fairseq_mtmoe", *options),
            *("--cpu", "--seed", self.seed, "--save-dir", run, "--max-update", what.updates, "--disable-validation"),
            *("--save-interval", 10**6, "--save-interval-updates", what.every, "--keep-interval-updates", -1),
            *("--no-epoch-checkpoints", "--log-format", "json", "--log-interval", 25),
        ]
        return [str(value) for value in command]


def runs_in_order(names: Sequence[str], kinds: Sequence[str], seeds: Sequence[int]) -> list[PriceRun]:
    """The runs of these data sets, what matters most first: one way of training after the other."""
    return [
        PriceRun(BY_NAME[name], kind, seed)
        for kind in kinds
        for name in names
        for seed in seeds
        if kind in BY_NAME[name].kinds
    ]


def demo_options(data: Path) -> list[object]:
    """The options that the demo's `train.sh` gives to fairseq-train, with this data directory."""
    command = DEMO.read_text(encoding="utf-8").split("\nfairseq-train ", 1)[1].replace("\\\n", " ")
    command = re.sub(r"\$DATA|\$\{RUNS:-runs\}/catalogs/data", str(data), command)
    words = shlex.split(command)[1:]  # the first is the data directory
    left_out = {"--user-dir", "--save-dir", "--seed", "--max-update", "--log-format", "--log-interval"}
    left_out |= {word for word in words if word.startswith(("--save-interval", "--keep-interval", "--no-epoch"))}
    kept: list[object] = []
    for index, word in enumerate(words):
        name = word if word.startswith("--") else words[index - 1]
        if name not in left_out and word != "$@":
            kept.append(word)
    return kept
