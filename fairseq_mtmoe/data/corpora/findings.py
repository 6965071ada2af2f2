"""Findings about a data directory: counts, warnings, and a command to train on it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fairseq_mtmoe.data.corpora.blocks import HARMLESS

Report = Mapping[str, Any]  # the value of `report.json`

TRAIN = "train"

# Limits from which a report warns
MANY_BAD = 0.01  # share of a corpus' lines that could not be read, at least
FEW_KEPT = 0.5  # share of pairs that a training corpus keeps, below
MANY_UNKNOWN = 0.005  # share of a pair's test tokens that the vocabulary lacks, at least


@dataclass(frozen=True)
class Flow:
    """Counts of corpora's lines; drawn pairs are neither kept nor dropped."""

    read: int
    drawn: int
    kept: int
    dropped: Counter[str]
    bad: Counter[str]

    @property
    def lines(self) -> int:
        """Return the number of lines, bad ones included."""
        return self.read + self.bad.total()


def flow_of(corpora: Iterable[Report]) -> Flow:
    """Return the counts of several corpora together."""
    sums, dropped, bad = Counter[str](), Counter[str](), Counter[str]()
    for corpus in corpora:
        sums.update({name: corpus.get(name, 0) for name in ("read", "drawn", "kept")})
        dropped.update(corpus["dropped"])
        bad.update(corpus["bad"])
    return Flow(sums["read"], sums["drawn"], sums["kept"], dropped, bad)


def unknown_share(pairs: Iterable[Report]) -> float | None:
    """Return the share of test tokens that the vocabulary lacks; None without text."""
    sides = [side for pair in pairs for side in pair["tokens"].get("test", {}).values()]
    tokens = sum(side["tokens"] for side in sides)
    return sum(side["unknown"] for side in sides) / tokens if tokens else None


def training_command(report: Report, data: str = "DATA", model: str = "MODEL") -> str:
    """Return a complete `fairseq-train` command, on several lines.

    It trains the WMT-15 model, or, with a translator's vocabulary, continues from this `model`.
    """
    recipe = report["recipe"]
    pairs = f"--lang-pairs {data}/lang_pairs.txt"
    if recipe.get("codes"):
        arch, lr, warmup = "base_dense", "1e-4", 500
        form = f"--init-model {model}"
    else:
        arch, lr, warmup = "base_moe_wmt15", "7e-4", 4000
        pairs = f"--lang-dict {data}/langs.txt {pairs}"
        form = "--encoder-langtok tgt --decoder-langtok"
        if recipe.get("vocabulary", {}).get("language_tokens") == "mbart":
            form += " --lang-tok-style mbart"
    lines = [
        f"fairseq-train {data} --user-dir fairseq_mtmoe --arch {arch} --task translation_heated",
        pairs,
        form,
        "--sampling-method temperature --sampling-temperature 1.5",
        "--criterion moe_label_smoothed_cross_entropy --label-smoothing 0.1",
        f"--optimizer fused_adam --adam-betas '(0.9,0.98)' --lr {lr} --lr-scheduler inverse_sqrt "
        f"--warmup-updates {warmup}",
        "--max-tokens 8192 --max-epoch 30 --save-dir RUN",
    ]
    return " \\\n    ".join(lines)


def shards_of(report: Report, data: str = "DATA") -> str:
    """Return the data argument for fairseq's own tasks; empty if it is DATA itself."""
    shards = max((pair["shards"] for pair in report["pairs"].values()), default=1)
    return ":".join(f"{data}/shard{number}" for number in range(shards)) if shards > 1 else ""


def findings(report: Report) -> list[str]:
    """Return warnings about the data; empty if there are none."""
    pieces = report.get("fewer_pieces")
    sentences = [f"Vocabulary: {pieces:,} pieces, as the text allows no more."] if pieces else []
    for lang, figures in report["vocabulary"].items():
        if figures.get("warning"):
            sentences.append(f"Vocabulary, {lang}: {figures['warning']}")
    return [*sentences, *_of_pairs(report), *_of_corpora(report)]


def _of_pairs(report: Report) -> Iterator[str]:
    for name, pair in report["pairs"].items():
        turned = report["pairs"].get(
            "-".join(reversed(name.split("-"))), {}
        )  # its files serve this pair, too
        missing = [
            split for split in (TRAIN, "valid", "test") if not pair[split] and not turned.get(split)
        ]
        if missing:
            yield f"{name} has no sentence pair for {' and '.join(missing)}."
        share = unknown_share([pair])
        if share is not None and share >= MANY_UNKNOWN:
            yield (
                f"{name}: {share:.1%} of the test tokens are not in the vocabulary, and no model"
                " can write them."
            )


def _of_corpora(report: Report) -> Iterator[str]:
    for name, corpus in report["corpora"].items():
        flow, is_training = flow_of([corpus]), corpus["role"] == TRAIN
        name = f"{name} ({corpus['pair']})"
        if number := corpus["bad"].get("unpaired"):
            yield f"{name}: one side has {number:,} segments that the other lacks."
        if not is_training and (number := sum(flow.bad[reason] for reason in HARMLESS)):
            yield (
                f"{name}: {number:,} entries are left out, as they have no text in one of the two"
                " languages."
            )
        faults = {reason: number for reason, number in flow.bad.items() if reason not in HARMLESS}
        if flow.lines and (share := sum(faults.values()) / flow.lines) >= MANY_BAD:
            reasons = ", ".join(f"{reason} {number:,}" for reason, number in faults.items())
            yield f"{name}: {share:.1%} of its lines could not be read ({reasons})."
        to_train_on = flow.read - flow.drawn
        if is_training and to_train_on and flow.kept / to_train_on < FEW_KEPT:
            (rule, number), *_ = flow.dropped.most_common(1) or [("nothing", 0)]
            most = f"; the rule {rule} left out most of the others ({number:,})" if number else ""
            yield f"{name}: {flow.kept / to_train_on:.1%} of its pairs were kept{most}."
        if not flow.read:
            instead = (
                f"; without other {corpus['role']} corpora, sentences are drawn from training text"
            )
            yield f"{name} has no readable sentence pair{'' if is_training else instead}."
