"""The page of a data directory, in HTML and in Markdown."""

from collections.abc import Iterator

from fairseq_mtmoe.core.pages import Part, Section
from fairseq_mtmoe.core.tables import Table
from fairseq_mtmoe.core.tiers import TIER_RULE
from fairseq_mtmoe.corpora.data_dir import flat
from fairseq_mtmoe.corpora.findings import Report, findings, pair_table, shards_of

ABOUT = (
    "Made by `mtmoe prepare corpora`."
    " `report.html` has samples of lines left out, `report.json` all figures."
)
_UNKNOWN = "`unknown`: share of test tokens, both sides, that the vocabulary lacks."
_FIGURES = {"pieces_per_word": ".2f", "characters_per_piece": ".2f", "unknown_share": ".3%"}
# For samples: where their meanings are, and their columns.
_SAMPLES = {
    "samples": ("dropped", ["line", "source", "target"]),
    "bad_samples": ("bad", ["line", "beginning"]),
}
_ROWS = 100  # samples of a rule, if there are fewer corpora; else one of each


def sections_of(report: Report) -> list[Section]:
    """Return the page's sections."""
    pairs: list[Part] = [pair_table(report), TIER_RULE, _UNKNOWN]
    if shards := shards_of(report):
        pairs.append(f"For fairseq's own tasks, DATA is `{shards}`.")
    warnings = findings(report)
    symbols = f"The dictionary has {report['symbols']:,} symbols, fairseq's own four included."
    settings = [f"{name}: {value}" for name, value in flat(report["recipe"]).items()]
    return [
        *([Section("Check first", [warnings])] if warnings else []),
        Section(
            "Language pairs", [*pairs, "`mtmoe suggest DATA` prints a command to train on them."]
        ),
        Section("Vocabulary", [_vocabulary_table(report), symbols]),
        Section("Corpora", [_corpus_table(report)]),
        Section("Recipe", [settings], folded=True),
        *_samples(report),
    ]


def _vocabulary_table(report: Report) -> Table:
    rows = []
    for lang, figures in report["vocabulary"].items():
        cells = []
        for name, form in _FIGURES.items():
            cells.append("" if figures[name] is None else format(figures[name], form))
        rows.append([lang, *cells, figures["warning"] or ""])
    columns = ["language", "pieces per word", "characters per piece", "unknown", "warning"]
    return Table(columns, rows, texts=(0, 4))


def _corpus_table(report: Report) -> Table:
    rows = []
    for name, corpus in report["corpora"].items():
        kind = corpus.get("kind", "")
        if corpus.get("weight", 1) > 1:
            kind = f"{kind} × {corpus['weight']}".strip()
        lost = []
        for reason, count in [*corpus["bad"].items(), *corpus["dropped"].items()]:
            lost.append(f"{count:,} {reason}")
        counts = [f"{corpus.get(column, 0):,}" for column in ("read", "drawn", "kept")]
        rows.append([name, corpus["pair"], corpus["role"], kind, *counts, ", ".join(lost)])
    columns = ["corpus", "pair", "role", "kind", "read", "drawn", "kept", "left out"]
    return Table(columns, rows, texts=(0, 1, 2, 3, 7))


def _samples(report: Report) -> Iterator[Section]:
    """Yield a folded section of samples for each rule and each reason."""
    each = max(1, _ROWS // len(report["corpora"]))
    for key, (kind, columns) in _SAMPLES.items():
        for reason, meaning in report["meanings"][kind].items():
            rows: list[list[str]] = []
            for corpus in report["corpora"].values():
                rows += corpus[key].get(reason, [])[:each]
            if rows:
                table = Table(columns, rows, texts=len(columns))
                yield Section(f"Samples: {reason}", [f"{meaning}.", table], folded=True)
