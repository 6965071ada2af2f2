"""Figures for a report's tables, its warnings, and the command to train on the data."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairseq_mtmoe.data.corpora.blocks import HARMLESS, OF_FILES, said_of_unequal
from fairseq_mtmoe.data.translation.tiers import TIERS

Report = Mapping[str, Any]

TRAIN = "train"
BAD = "bad lines"  # column for lines that could not be read as pairs

# Limits from which a report warns
MANY_BAD = 0.01  # share of a corpus' lines that could not be read, at least
FEW_KEPT = 0.5  # share of pairs that a training corpus keeps, below
MANY_UNKNOWN = 0.005  # share of a pair's test tokens that the vocabulary lacks, at least


@dataclass
class Flow:
    """Counts of corpora's lines; `drawn` pairs (for validation and test) are neither kept nor dropped."""

    read: int = 0
    drawn: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    bad: Counter[str] = field(default_factory=Counter)

    @property
    def lines(self) -> int:
        """Return the number of lines, bad ones included."""
        return self.read + self.bad.total()

    @property
    def kept_share(self) -> float:
        """Return the share of kept lines among those not drawn for validation and test."""
        return self.kept / max(1, self.lines - self.drawn)

    def count(self, rule: str) -> int:
        """Return the number of lines left out by a rule, or of `BAD` ones."""
        return self.bad.total() if rule == BAD else self.dropped[rule]


def flow_of(corpora: Iterable[Report]) -> Flow:
    """Return the counts of several corpora together."""
    whole = Flow()
    for corpus in corpora:
        whole.read += corpus["read"]
        whole.drawn += corpus.get("drawn", 0)
        whole.kept += corpus["kept"]
        whole.dropped.update(corpus["dropped"])
        whole.bad.update(corpus["bad"])
    return whole


def training(report: Report) -> Flow:
    """Return the counts of all training corpora."""
    return flow_of(corpus for corpus in report["corpora"].values() if corpus["role"] == TRAIN)


def flows(report: Report) -> dict[str, Flow]:
    """Return the counts of each pair's training corpora, the pair with most lines first."""
    found: dict[str, list[Report]] = {}
    for corpus in report["corpora"].values():
        if corpus["role"] == TRAIN:
            found.setdefault(corpus["pair"], []).append(corpus)
    sums = {pair: flow_of(corpora) for pair, corpora in found.items()}
    return dict(sorted(sums.items(), key=lambda item: (-item[1].lines, item[0])))


def rules_of(report: Report) -> list[str]:
    """Return the rules that left training pairs out, in the order of their application, and `BAD`."""
    whole = training(report)
    asked = dict.fromkeys([*report.get("meanings", {}).get("dropped", ()), *whole.dropped, BAD])
    return [rule for rule in asked if whole.count(rule)]


def largest_first(report: Report) -> list[tuple[str, Report]]:
    """Return the data directory's language pairs, the one with most training pairs first."""
    return sorted(report["pairs"].items(), key=lambda item: (-item[1][TRAIN], item[0]))


def tiers_of(report: Report) -> dict[str, list[Report]]:
    """Return the pairs of each tier that occurs; pairs without a tier are last."""
    found: dict[str, list[Report]] = {tier: [] for tier in (*TIERS, "")}
    for pair in report["pairs"].values():
        found[pair["tier"] if pair["tier"] in TIERS else ""].append(pair)
    return {tier: pairs for tier, pairs in found.items() if pairs}


def unknown_share(pairs: Iterable[Report]) -> float | None:
    """Return the share of test tokens, both sides, that the vocabulary lacks; None without test text."""
    sides = [side for pair in pairs for side in pair["tokens"].get("test", {}).values()]
    tokens = sum(side["tokens"] for side in sides)
    return sum(side["unknown"] for side in sides) / tokens if tokens else None


def copies(corpus: Report) -> int:
    """Return a corpus' number of training lines, times its weight."""
    return int(corpus["kept"]) * int(corpus.get("weight", 1)) if corpus["role"] == TRAIN else 0


def by_pair(report: Report) -> dict[str, dict[str, Report]]:
    """Return the corpora of each pair; pairs with training text come first, in the order of `flows`."""
    found: dict[str, dict[str, Report]] = {pair: {} for pair in flows(report)}
    for name, corpus in report["corpora"].items():
        found.setdefault(corpus["pair"], {})[name] = corpus
    return found


def settings_of(recipe: Any, prefix: str = "") -> dict[str, str]:
    """Return a recipe's settings by dotted name, such as `filters.max_ratio`."""
    if isinstance(recipe, Mapping):
        found: dict[str, str] = {}
        for name, value in recipe.items():
            found |= settings_of(value, f"{prefix}.{name}" if prefix else str(name)) if name != "corpora" else {}
        return found
    if isinstance(recipe, list | tuple):
        recipe = ", ".join(map(str, recipe))
    return {prefix or "recipe": "none" if recipe is None or recipe == "" else str(recipe)}


def training_command(report: Report, data: str = "DATA", model: str = "MODEL") -> str:
    """Return a complete `fairseq-train` command, on several lines, with sizes and rates to start from.

    It trains the WMT-15 model, or, with a translator's vocabulary, continues from this `model`.
    """
    recipe = report["recipe"] if isinstance(report["recipe"], Mapping) else {}
    vocabulary, of_translator = recipe.get("vocabulary"), bool(recipe.get("codes"))
    style = " --lang-tok-style mbart" if (vocabulary or {}).get("language_tokens") == "mbart" else ""
    form = [f"--init-model {model}"] if of_translator else [f"--encoder-langtok tgt --decoder-langtok{style}"]
    arch, lr, warmup = ("base_dense", "1e-4", 500) if of_translator else ("base_moe_wmt15", "7e-4", 4000)
    lines = [
        f"fairseq-train {data} --user-dir fairseq_mtmoe --arch {arch} --task translation_heated",
        f"{'' if of_translator else f'--lang-dict {data}/langs.txt '}--lang-pairs {data}/lang_pairs.txt",
        *form,
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
    found = [f"Vocabulary: {pieces:,} pieces, as the text allows no more."] if pieces else []
    warned = [(lang, figures["warning"]) for lang, figures in report["vocabulary"].items() if figures.get("warning")]
    return [*found, *(f"Vocabulary, {lang}: {said}" for lang, said in warned), *_of_pairs(report), *_of_corpora(report)]


def _of_pairs(report: Report) -> Iterator[str]:
    for name, pair in report["pairs"].items():
        turned = report["pairs"].get("-".join(reversed(name.split("-"))), {})  # its files serve this pair, too
        missing = [split for split in (TRAIN, "valid", "test") if not pair[split] and not turned.get(split)]
        if missing:
            yield f"{name} has no sentence pair for {' and '.join(missing)}."
        share = unknown_share([pair])
        if share is not None and share >= MANY_UNKNOWN:
            yield f"{name}: {share:.1%} of the test tokens are not in the vocabulary, and no model can write them."


def _of_corpora(report: Report) -> Iterator[str]:
    for name, corpus in report["corpora"].items():
        flow, is_training, name = flow_of([corpus]), corpus["role"] == TRAIN, f"{name} ({corpus['pair']})"
        for reason in sorted(OF_FILES.intersection(corpus["bad"])):
            yield f"{name}: a file could not be read to its end ({reason}); the rest is missing."
        if number := corpus["bad"].get("unpaired"):
            yield f"{name}: one side has {number:,} segments that the other lacks."
        for sentence in said_of_unequal(corpus["bad_samples"]):
            yield f"{name}: {sentence}"
        if not is_training and (number := sum(flow.bad[reason] for reason in HARMLESS)):
            yield f"{name}: {number:,} entries are left out, as they have no text in one of the two languages."
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
            instead = f"; without other {corpus['role']} corpora, sentences are drawn from training text"
            yield f"{name} has no readable sentence pair{'' if is_training else instead}."
