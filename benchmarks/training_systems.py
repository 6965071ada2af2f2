"""What `compare_training.py` compares: the systems of "Tricks for Training Sparse Translation Models", as commands.

A system is a difference in options; a setting (one for each data set) is everything that the systems share. Every run
is one `fairseq-train` (on another clock), so that a reader can repeat it by hand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TEMPERATURE = 1.5
STOCK = "stock_dense"
BASE = "base"


@dataclass(frozen=True)
class Setting:
    """Sizes and schedule of all runs on one data set. Speeds are BASE's, on one core, validation included."""

    data: str  # what the data directory was made of
    minutes: float  # of the whole process on one core, validation included
    updates: int = 0  # of each run; 0: as many as the minutes allow
    layers: int = 4  # of encoder and decoder each: two of them have experts, so that two kinds of gates can alternate
    width: int = 64
    inner: int = 256
    heads: int = 4
    num_experts: int = 8
    expert_interval: int = 2
    dropout: float = 0.1
    max_tokens: int = 1500
    criterion: str = "label_smoothed_cross_entropy"
    optimizer: str = "adam"
    lr: float = 8e-3
    warmup_updates: int = 200
    epoch_sentences: int = 2000
    updates_per_minute: float = 300.0
    sentences_per_update: float = 50.0
    validations: int = 15  # in the whole run, at a fixed number of updates
    dense_share: float = 0.4  # of the expected updates, before sparsification
    heating_coefficient: float = 3.0
    tells_decoder: bool = False  # the target language as its first token, as the encoder's is

    @property
    def expected_updates(self) -> int:
        """How many updates a run has, or BASE makes within the minutes."""
        return self.updates or round(self.updates_per_minute * self.minutes)

    @property
    def budget(self) -> str:
        """What every run is given."""
        if self.updates:
            return f"{self.updates} updates"
        return f"{self.minutes:g} minutes of one core's processor time, validations included"

    @property
    def expected_epochs(self) -> int:
        """How many virtual epochs that is: where heating ends."""
        return max(1, round(self.expected_updates * self.sentences_per_update / self.epoch_sentences))

    def dense_updates(self, share: float | None = None) -> int:
        """Updates before sparsification, in runs that start dense: the setting's share of them, or another."""
        return max(1, round((self.dense_share if share is None else share) * self.expected_updates))

    @property
    def validate_every(self) -> int:
        """Updates between two validations."""
        return max(5, round(self.expected_updates / self.validations / 5) * 5)


SETTINGS = {
    "multi30k": Setting(
        "Multi30k captions, English to de 29,000 (high), fr 12,000 (mid), cs 3,000 (low); validation: the first "
        "300 sentences of each pair; `mtmoe prepare text --vocab-size 4000`",
        minutes=4,
    ),
    # More than an epoch of everything, and a larger vocabulary: a lower learning rate, and slower updates.
    "wmt15_small": Setting(
        "news and short sentences, English to de 8,000, cs 5,000, fr 3,500 (high), tr 2,500, hi 1,500, et 800 (low); "
        "`mtmoe prepare text --vocab-size 6000`",
        minutes=2,
        lr=6e-3,
        updates_per_minute=230,
        sentences_per_update=42,
    ),
    # Interface messages are short: more of them in a batch.
    "catalogs": Setting(
        "the demo's gettext catalogs, English to 14 languages",
        minutes=1.5,
        lr=6e-3,
        updates_per_minute=230,
        sentences_per_update=83,
    ),
}


@dataclass(frozen=True)
class System:
    """One row of the comparison."""

    name: str
    title: str
    arch: str
    expert_options: tuple[str, ...] = ()
    starts_dense: bool = False
    heats: bool = False
    dense_share: float | None = None  # of the expected updates, if not the setting's
    options: tuple[str, ...] = ()  # further ones, which win

    @property
    def is_stock(self) -> bool:
        """Whether it is fairseq alone, without the plugin."""
        return self.arch == "transformer"


STOCKS_TOOLS = ("label_smoothed_cross_entropy", "adam")  # the plugin's are not known without it
# The paper trains BASE from scratch with its own combine; a model that was dense goes on with the preserving one.
PAPER = ("--expert-combine", "paper")
SYSTEMS = (
    System(STOCK, "stock fairseq, dense", "transformer"),
    System("dense", "dense", "base_dense"),
    System(BASE, "BASE", "base_moe", PAPER),
    System("base_heated", "BASE + heating", "base_moe", PAPER, heats=True),
    System("pretrained", "dense → BASE", "base_moe", starts_dense=True),
    System("pretrained_heated", "dense → BASE + heating", "base_moe", starts_dense=True, heats=True),
    System("alternating", "alternating base,task", "base_moe", (*PAPER, "--expert-gates", "base,task")),
)
BY_NAME = {system.name: system for system in SYSTEMS}


def language_pairs(data: Path) -> list[str]:
    """The pairs with training data in a data directory, sorted."""
    names = (re.fullmatch(r"train\.([^.-]+-[^.-]+)\.[^.]+\.idx", path.name) for path in data.iterdir())
    return sorted({name.group(1) for name in names if name})


def train_command(system: System, setting: Setting, data: Path, run: Path, seed: int, minutes: float) -> list[str]:
    """The whole training command of one run, to be started in the repository's root.

    `fairseq-train` takes the same options; its clock is the one on the wall.
    """
    stack = [
        option
        for side in ("encoder", "decoder")
        for name, value in (
            ("layers", setting.layers),
            ("embed-dim", setting.width),
            ("ffn-embed-dim", setting.inner),
            ("attention-heads", setting.heads),
        )
        for option in (f"--{side}-{name}", value)
    ]
    every = setting.validate_every
    criterion, optimizer = STOCKS_TOOLS if system.is_stock else (setting.criterion, setting.optimizer)
    return _strings(
        *("python", "benchmarks/train_on_cpu_clock.py", data, "--save-dir", run),
        *("--cpu", "--seed", seed),
        *(("--max-update", setting.updates) if setting.updates else ("--stop-time-hours", f"{minutes / 60:.5f}")),
        *_task_options(system, language_pairs(data)),
        *("--sampling-method", "temperature", "--sampling-temperature", TEMPERATURE),
        *("--virtual-epoch-size", setting.epoch_sentences, "--encoder-langtok", "tgt"),
        *(("--decoder-langtok",) if setting.tells_decoder else ()),
        *_model_options(system, setting), *stack,
        *("--encoder-normalize-before", "--decoder-normalize-before", "--share-all-embeddings"),
        *("--dropout", setting.dropout, "--criterion", criterion, "--label-smoothing", 0.1),
        *("--optimizer", optimizer, "--adam-betas", "(0.9, 0.98)", "--clip-norm", 1, "--lr", setting.lr),
        *("--lr-scheduler", "inverse_sqrt", "--warmup-updates", setting.warmup_updates),
        *("--max-tokens", setting.max_tokens, "--num-workers", 0, "--log-format", "json", "--log-interval", 25),
        *("--validate-interval", 10**6, "--save-interval", 10**6, "--no-epoch-checkpoints"),
        *("--validate-interval-updates", every, "--save-interval-updates", every),
        # The checkpoints of stock fairseq are kept: their perplexity per tier is found out afterwards.
        *("--keep-interval-updates", -1 if system.is_stock else 1, "--no-save-optimizer-state"),
        *system.options,
    )  # fmt: skip


def twin_command(setting: Setting, data: Path, run: Path) -> list[str]:
    """The options with which the dense twin reads the checkpoints of a stock run."""
    return train_command(BY_NAME["dense"], setting, data, run, seed=1, minutes=0)[2:]


def score_command(data: Path, run: Path) -> list[str]:
    """The command that translates and scores every test set with a run's best checkpoint."""
    return _strings(
        "mtmoe", "evaluate", data, "--path", run / "checkpoint_best.pt", "--out", run / "scores", "--cpu",
        *("--beam", 4, "--max-len-a", 1.5, "--max-len-b", 10, "--max-tokens", 6000),
    )  # fmt: skip


def _task_options(system: System, pairs: Sequence[str]) -> list[str]:
    plugin = [] if system.is_stock else ["--user-dir", "fairseq_mtmoe"]
    task = "translation_multi_simple_epoch" if system.is_stock else "translation_heated"
    languages = sorted({language for pair in pairs for language in pair.split("-")})
    return [*plugin, "--task", task, "--lang-pairs", ",".join(pairs), "--langs", ",".join(languages)]


def _model_options(system: System, setting: Setting) -> list[object]:
    options: list[object] = ["--arch", system.arch]
    if system.arch == "base_moe":
        options += ["--num-experts", setting.num_experts]
        options += ["--expert-interval", setting.expert_interval] if setting.expert_interval != 2 else []
        options += system.expert_options
    if system.starts_dense:
        options += ["--dense-updates", setting.dense_updates(system.dense_share)]
    if system.heats:
        options += ["--heating-coefficient", setting.heating_coefficient]
        options += _heating_duration(setting)
    return options


def _heating_duration(setting: Setting) -> list[object]:
    if setting.updates:
        return ["--heating-updates", setting.updates]
    return ["--heating-epochs", setting.expected_epochs]


def _strings(*values: object) -> list[str]:
    return [str(value) for value in values]
