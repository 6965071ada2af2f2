"""The same report in Markdown, without samples: tables that a terminal and a repository show."""

from __future__ import annotations

from collections.abc import Iterable

from fairseq_mtmoe.data.corpora.page import figures
from fairseq_mtmoe.data.corpora.page.figures import Report
from fairseq_mtmoe.data.corpora.page.findings import findings
from fairseq_mtmoe.data.corpora.page.training import shards_of, training_command
from fairseq_mtmoe.io.markdown import markdown_table
from fairseq_mtmoe.io.pages import visible

SPLITS = ("train", "valid", "test")
_SIGNS = str.maketrans({sign: f"\\{sign}" for sign in "\\`*_<>[]"})


def markdown_of(report: Report) -> str:
    """A report in Markdown: the same bytes whenever and wherever it is made."""
    settings = figures.settings_of(report["recipe"])
    title = f"# What became of the corpora of {_plain(settings.get('name', 'a recipe'))}"
    warned = [f"- {_plain(sentence)}" for sentence in findings(report)]
    parts = [
        title,
        f"Made by `mtmoe prepare {report['command']}`. Samples of what was left out are in `report.html`, "
        "all figures in `report.json`.",
        *(["To look at first:", "\n".join(warned)] if warned else []),
        *_flows(report),
        "## Language pairs to train on", _pairs(report),
        "`unknown`: the share of test tokens, both sides, that the vocabulary does not have.",
        *_training(report),
        *(["## Vocabulary", _vocabulary(report)] if report["vocabulary"] else []),
        "## Corpora", _corpora(report),
        "## Recipe", "\n".join(f"- {_plain(name)}: {_plain(value)}" for name, value in settings.items()),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _plain(text: object) -> str:
    """Text that stands for itself in Markdown."""
    return visible(text).translate(_SIGNS)


def _flows(report: Report) -> Iterable[str]:
    rules, whole = figures.rules_of(report), figures.training(report)
    drawn = ["drawn"] if whole.drawn else []
    meanings = report.get("meanings", {}).get("dropped", {})
    rows = [
        [
            name,
            f"{flow.lines:,}",
            *(f"{flow.drawn:,}" for _ in drawn),
            f"{flow.kept:,}",
            f"{flow.kept_share:.0%}",
            *(f"{flow.count(rule):,}" for rule in rules),
        ]
        for name, flow in {**figures.flows(report), "**all**": whole}.items()
    ]
    yield "## What was kept of the raw training text"
    yield markdown_table(["pair", "lines", *drawn, "kept", "%", *(f"−{rule}" for rule in rules)], rows)
    named = [f"- `drawn`: {figures.MEANING_OF_DRAWN}." for _ in drawn]
    named += [f"- `−{rule}`: {meanings[rule]}." for rule in rules if rule in meanings]
    if named:
        yield "\n".join(named)


def _pairs(report: Report) -> str:
    pairs = figures.largest_first(report)
    rows = [
        [
            name,
            pair["tier"],
            *(f"{pair[split]:,}" for split in SPLITS),
            pair["shards"],
            _percent(figures.unknown_share(pair)),
        ]
        for name, pair in pairs
    ]
    for tier, of in figures.tiers_of(report).items():
        sums = [f"**{sum(pair[split] for pair in of):,}**" for split in SPLITS]
        trained = sum(pair["train"] > 0 for pair in of)  # others have validation and test text alone
        rows.append([f"**{tier or 'no tier'}**", f"{trained} pair" + "s" * (trained != 1), *sums, "", ""])
    return markdown_table(["pair", "tier", *SPLITS, "shards", "unknown"], rows, texts=2)


def _training(report: Report) -> Iterable[str]:
    if report["pairs"]:
        yield "## Training on it"
        yield f"```\n{training_command(report)}\n```"
    if shards := shards_of(report):
        yield f"fairseq's own tasks are given `{shards}` in the place of the first `DATA`."


def _vocabulary(report: Report) -> str:
    rows = []
    for lang, of in report["vocabulary"].items():
        pieces = [of.get(name) for name in ("pieces_per_word", "characters_per_piece")]
        shares = [_percent(of.get(name), 3) for name in ("unknown_share", "coverage")]
        numbers = ["" if number is None else f"{number:.2f}" for number in pieces]
        rows.append([lang, *numbers, *shares, _plain(of.get("warning") or "")])
    head = ["language", "pieces per word", "characters per piece", "unknown", "characters covered", "to look at"]
    return markdown_table(head, rows, texts=(0, 5))


def _percent(share: float | None, digits: int = 2) -> str:
    return "" if share is None else f"{share:.{digits}%}"


def _corpora(report: Report) -> str:
    rows = []
    for pair, corpora in figures.by_pair(report).items():
        for name, corpus in corpora.items():
            bad = ", ".join(f"{number:,} {reason}" for reason, number in corpus["bad"].items())
            dropped = ", ".join(f"{number:,} {rule}" for rule, number in corpus["dropped"].items())
            numbers = [f"{corpus.get(key, 0):,}" for key in ("drawn", "kept")]
            rows.append([_plain(name), pair, corpus["role"], f"{corpus['read']:,}", bad, dropped, *numbers])
    head = ["corpus", "pair", "role", "read", "bad lines", "left out", "drawn", "kept"]
    return markdown_table(head, rows, texts=(0, 1, 2, 4, 5))
