"""Findings about a data directory: counts, warnings, and a command to train on it."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from fairseq_mtmoe.core.tables import Table
from fairseq_mtmoe.corpora.blocks import HARMLESS
from fairseq_mtmoe.corpora.recipes.codes import reversed_pair

Report = Mapping[str, Any]  # the value of `report.json`

SPLITS = ("train", "valid", "test")
TRAIN = SPLITS[0]

# Limits from which a report warns
MANY_BAD = 0.01  # share of a corpus' lines that could not be read, at least
FEW_KEPT = 0.5  # share of pairs that a training corpus keeps, below
MANY_UNKNOWN = 0.005  # share of a pair's test tokens that the vocabulary lacks, at least


def unknown_share(pairs: Collection[Report]) -> float:
    """Return the share of test tokens that the vocabulary lacks."""
    counts = Counter[str]()
    for pair in pairs:
        for side in pair["tokens"].get("test", {}).values():
            counts.update(side)
    return counts["unknown"] / max(1, counts["tokens"])


def fine_tuning_command(data: str, model: str) -> str:
    """Return a complete `fairseq-train` command that continues from this translator."""
    lines = [
        f'fairseq-train {data} --user-dir "$(mtmoe user-dir)" --arch base_dense',
        f"--task translation_heated --lang-pairs {data}/lang_pairs.txt --init-model {model}",
        "--sampling-method temperature --sampling-temperature 1.5",
        "--criterion moe_label_smoothed_cross_entropy --label-smoothing 0.1",
        "--optimizer fused_adam --adam-betas '(0.9,0.98)' --lr 1e-4 --lr-scheduler inverse_sqrt "
        "--warmup-updates 500",
        "--max-tokens 8192 --max-epoch 30 --save-dir RUN",
    ]
    return " \\\n    ".join(lines)


def shards_of(report: Report, data: str = "DATA") -> str:
    """Return the data argument for fairseq's own tasks; empty if it is DATA itself."""
    shards = max((pair["shards"] for pair in report["pairs"].values()), default=1)
    if shards == 1:
        return ""
    return ":".join(f"{data}/shard{number}" for number in range(shards))


def findings(report: Report) -> list[str]:
    """Return warnings about the data; empty if there are none."""
    sentences = []
    for lang, figures in report["vocabulary"].items():
        if figures.get("warning"):
            sentences.append(f"Vocabulary, {lang}: {figures['warning']}")
    return [*sentences, *_of_pairs(report), *_of_corpora(report)]


def _of_pairs(report: Report) -> Iterator[str]:
    for name, pair in report["pairs"].items():
        turned = report["pairs"].get(reversed_pair(name), {})  # its files serve this pair, too
        missing = [split for split in SPLITS if not pair[split] and not turned.get(split)]
        if missing:
            yield f"{name} has no sentence pair for {' and '.join(missing)}."
        share = unknown_share([pair])
        if share >= MANY_UNKNOWN:
            yield (
                f"{name}: {share:.1%} of the test tokens are not in the vocabulary,"
                " and no model can write them."
            )


def _of_corpora(report: Report) -> Iterator[str]:
    for name, corpus in report["corpora"].items():
        is_training = corpus["role"] == TRAIN
        name = f"{name} ({corpus['pair']})"
        bad = Counter[str](corpus["bad"])
        lines = corpus["read"] + bad.total()
        kept = corpus["kept"]
        if number := bad["unpaired"]:
            yield f"{name}: one side has {number:,} segments that the other lacks."
        if (number := bad.pop(HARMLESS, 0)) and not is_training:
            yield (
                f"{name}: {number:,} entries are left out,"
                " as they have no text in one of the two languages."
            )
        if lines and (share := bad.total() / lines) >= MANY_BAD:
            reasons = ", ".join(f"{reason} {number:,}" for reason, number in bad.items())
            yield f"{name}: {share:.1%} of its lines could not be read ({reasons})."
        to_train_on = corpus["read"] - corpus.get("drawn", 0)
        if is_training and to_train_on and kept / to_train_on < FEW_KEPT:
            (rule, number), *_ = Counter(corpus["dropped"]).most_common(1) or [("nothing", 0)]
            most = f"; the rule {rule} left out most of the others ({number:,})" if number else ""
            yield f"{name}: {kept / to_train_on:.1%} of its pairs were kept{most}."
        if not corpus["read"]:
            instead = (
                f"; without other {corpus['role']} corpora, sentences are drawn from training text"
            )
            yield f"{name} has no readable sentence pair{'' if is_training else instead}."


def pair_table(report: Report) -> Table:
    """Return the table of language pairs, largest first, with a total."""
    pairs = report["pairs"]
    rows = []
    for name in sorted(pairs, key=lambda name: (-pairs[name][TRAIN], name)):
        rows.append(_pair_row(name, pairs[name]["tier"], [pairs[name]]))
    columns = ["pair", "tier", "directions", *SPLITS, "shards", "unknown"]
    return Table(columns, rows, [_pair_row("total", "", pairs.values())], texts=2)


def _pair_row(name: str, tier: str, pairs: Collection[Report]) -> list[str]:
    sums = Counter[str]()
    shards = 0
    for pair in pairs:
        sums["directions"] += len(pair["directions"])
        for split in SPLITS:
            sums[split] += pair[split]
        shards = max(shards, pair["shards"])
    counts = map("{:,}".format, sums.values())
    return [name, tier, *counts, str(shards), f"{unknown_share(pairs):.2%}"]
