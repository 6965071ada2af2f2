"""What a reader of a report should look at first, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from fairseq_mtmoe.data.corpora.page.figures import TRAIN, Report, flow_of, unknown_share
from fairseq_mtmoe.data.corpora.readers.errors import HARMLESS, OF_FILES, said_of_unequal

MANY_BAD = 0.01
"""The share of a corpus' lines that could not be read from which on a reader should know."""

FEW_KEPT = 0.5
"""The share of its pairs that a training corpus keeps, below which a reader should know."""

MANY_UNKNOWN = 0.005
"""The share of a pair's test tokens that the vocabulary does not have, from which on a reader should know."""


def findings(report: Report) -> list[str]:
    """Everything that may be wrong; empty if nothing is."""
    return [*_of_vocabulary(report), *_of_pairs(report), *_of_corpora(report)]


def _of_vocabulary(report: Report) -> Iterator[str]:
    if pieces := report.get("fewer_pieces"):
        yield f"Vocabulary: {pieces:,} pieces, as the text allows no more."
    for lang, figures in report["vocabulary"].items():
        if figures.get("warning"):
            yield f"Vocabulary, {lang}: {figures['warning']}"


def _of_pairs(report: Report) -> Iterator[str]:
    for name, pair in report["pairs"].items():
        turned = report["pairs"].get("-".join(reversed(name.split("-"))), {})  # whose files serve this pair, too
        missing = [split for split in (TRAIN, "valid", "test") if not pair[split] and not turned.get(split)]
        if missing:
            yield f"{name} has no sentence pair for {' and '.join(missing)}."
        share = unknown_share(pair)
        if share is not None and share >= MANY_UNKNOWN:
            yield f"{name}: {share:.1%} of the test tokens are not in the vocabulary, and no model can write them."


def _of_corpora(report: Report) -> Iterator[str]:
    for name, corpus in report["corpora"].items():
        flow = flow_of([corpus])
        for reason in sorted(OF_FILES.intersection(corpus["bad"])):
            yield f"{name} ({corpus['pair']}): a file could not be read to its end ({reason}), and the rest is missing."
        if number := corpus["bad"].get("unpaired"):
            yield f"{name} ({corpus['pair']}): one side has {number:,} segments that the other has not."
        for sentence in said_of_unequal(corpus["bad_samples"]):
            yield f"{name} ({corpus['pair']}): {sentence}"
        bad = sum(number for reason, number in flow.bad.items() if reason not in HARMLESS)
        if flow.lines and bad / flow.lines >= MANY_BAD:
            reasons = ", ".join(f"{reason} {number:,}" for reason, number in flow.bad.items() if reason not in HARMLESS)
            yield f"{name} ({corpus['pair']}): {bad / flow.lines:.1%} of its lines could not be read ({reasons})."
        to_train_on = flow.read - flow.drawn
        if corpus["role"] == TRAIN and to_train_on and flow.kept / to_train_on < FEW_KEPT:
            (rule, number), *_ = flow.dropped.most_common(1) or [("nothing", 0)]
            most = f"; most of the others by the rule {rule} ({number:,})" if number else ""
            yield f"{name} ({corpus['pair']}): {flow.kept / to_train_on:.1%} of its pairs were kept{most}."
        if not flow.read:
            instead = f"; where no other corpus has {corpus['role']} text, that is drawn from training text"
            is_train = corpus["role"] == TRAIN
            yield f"{name} ({corpus['pair']}) has no sentence pair that can be read{'' if is_train else instead}."
