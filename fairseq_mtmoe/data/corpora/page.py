"""The page of a data directory, in HTML and in Markdown."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice, zip_longest

from fairseq_mtmoe.data.corpora.data_dir import flat
from fairseq_mtmoe.data.corpora.findings import (
    TRAIN,
    Report,
    findings,
    flow_of,
    shards_of,
    training_command,
    unknown_share,
)
from fairseq_mtmoe.data.translation.tiers import TIER_RULE
from fairseq_mtmoe.errors import visible
from fairseq_mtmoe.io.pages import Part, Section, page_of
from fairseq_mtmoe.io.tables import Table

SPLITS = ("train", "valid", "test")
PER_PAIR = 5  # samples of a rule and language pair
_SIGNS = str.maketrans({sign: f"\\{sign}" for sign in "\\`*_<>[]"})
_UNKNOWN = "`unknown`: share of test tokens, both sides, that the vocabulary lacks."


def html_of(report: Report) -> str:
    """Return a report in HTML, byte for byte reproducible."""
    sections = [*sections_of(report), *_samples(report)]
    if report["pairs"]:
        sections.append(Section("Training", [training_command(report)]))
    return page_of(_title(report), sections, _about())


def markdown_of(report: Report) -> str:
    """Return a report in Markdown, without samples, byte for byte reproducible."""
    parts = [f"# {_plain(_title(report))}", _about()]
    for section in sections_of(report):
        parts.append(f"## {section.title}")
        for part in section.parts:
            if isinstance(part, Table):
                rows = [list(map(_plain, row)) for row in part.rows]
                below = [list(map(_plain, row)) for row in part.below]
                parts.append(Table(part.columns, rows, below, part.texts).in_markdown())
            elif isinstance(part, str):
                parts.append(part)
            else:
                parts.append("\n".join(f"- {_plain(point)}" for point in part))
    if report["pairs"]:
        parts += ["## Training", f"```\n{training_command(report)}\n```"]
    return "\n\n".join(parts) + "\n"


def _title(report: Report) -> str:
    return f"Report on the corpora of {report['recipe'].get('name', 'a recipe')}"


def _about() -> str:
    return (
        "Made by `mtmoe prepare corpora`. `report.html` has samples of lines left out,"
        " `report.json` all figures."
    )


def _plain(text: object) -> str:
    """Return a text that Markdown shows as it is."""
    return visible(text).translate(_SIGNS)


def sections_of(report: Report) -> list[Section]:
    """Return the sections of a report without samples."""
    pairs: list[Part] = [pair_table(report), TIER_RULE, _UNKNOWN]
    if shards := shards_of(report):
        pairs.append(f"For fairseq's own tasks, DATA is `{shards}`.")
    settings = [f"{name}: {value}" for name, value in flat(report["recipe"]).items()]
    sections = [
        Section(
            "Raw training text: lines kept and left out", [_flow_table(report), *_rules(report)]
        ),
        Section("Language pairs", pairs),
        Section("Vocabulary", [_vocabulary_table(report)]),
        Section("Corpora", [_corpus_table(report)]),
        Section("Recipe", [settings], folded=True),
    ]
    if warnings := findings(report):
        sections.insert(0, Section("Check first", [warnings]))
    return sections


def _by_pair(report: Report, roles: Sequence[str] = SPLITS) -> dict[str, dict[str, Report]]:
    """Return the corpora of each language pair by name."""
    by_pair: dict[str, dict[str, Report]] = {}
    for name, corpus in report["corpora"].items():
        if corpus["role"] in roles:
            by_pair.setdefault(corpus["pair"], {})[name] = corpus
    return by_pair


def _flow_table(report: Report) -> Table:
    flows = {pair: flow_of(corpora.values()) for pair, corpora in _by_pair(report, [TRAIN]).items()}
    flows = dict(sorted(flows.items(), key=lambda item: -item[1].lines))
    flows["all"] = flow_of(
        corpus for corpus in report["corpora"].values() if corpus["role"] == TRAIN
    )
    rules = [rule for rule in report["meanings"]["dropped"] if flows["all"].dropped[rule]]
    rows = []
    for pair, flow in flows.items():
        counts = [
            flow.lines,
            flow.bad.total(),
            *(flow.dropped[rule] for rule in rules),
            flow.drawn,
            flow.kept,
        ]
        rows.append(
            [
                pair,
                *map("{:,}".format, counts),
                f"{flow.kept / max(1, flow.lines - flow.drawn):.0%}",
            ]
        )
    columns = [
        "pair",
        "lines",
        "unreadable",
        *(f"−{rule}" for rule in rules),
        "drawn",
        "kept",
        "kept, %",
    ]
    return Table(columns, rows[:-1], rows[-1:])


def _rules(report: Report) -> Iterator[str]:
    """Yield an explanation of each column of the table of raw text."""
    dropped = flow_of(report["corpora"].values()).dropped
    for rule, meaning in report["meanings"]["dropped"].items():
        if dropped[rule]:
            yield f"`−{rule}`: {meaning}."
    yield (
        "`drawn`: taken for validation and test, as the pair has no corpus for these; `%` is of the"
        " other lines."
    )


def pair_table(report: Report) -> Table:
    """Return the table of language pairs, largest first, with a total."""
    pairs = sorted(report["pairs"].items(), key=lambda item: (-item[1][TRAIN], item[0]))
    rows = [_pair_row(name, pair["tier"], [pair]) for name, pair in pairs]
    rows.append(_pair_row("total", "", list(report["pairs"].values())))
    columns = ["pair", "tier", "directions", *SPLITS, "shards", "unknown", "back-translated"]
    if not any("back_translated" in pair for _, pair in pairs):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return Table(columns, rows[:-1], rows[-1:], texts=2)


def _pair_row(name: str, tier: str, pairs: Sequence[Report]) -> list[str]:
    directions = sum(len(pair["directions"]) for pair in pairs)
    counts = []
    for split in SPLITS:
        counts.append(sum(pair[split] for pair in pairs))
    shards = max((pair["shards"] for pair in pairs), default=0)
    synthetic = sum(pair.get("back_translated", 0) for pair in pairs) / max(1, counts[0])
    shares = [f"{unknown_share(pairs) or 0:.2%}", f"{synthetic:.2%}"]
    return [name, tier, str(directions), *map("{:,}".format, counts), str(shards), *shares]


def _vocabulary_table(report: Report) -> Table:
    rows = []
    for lang, figures in report["vocabulary"].items():
        row = [lang]
        for name, form in (
            ("pieces_per_word", ".2f"),
            ("characters_per_piece", ".2f"),
            ("unknown_share", ".3%"),
        ):
            row.append("" if figures[name] is None else format(figures[name], form))
        rows.append([*row, figures["warning"] or ""])
    return Table(
        ["language", "pieces per word", "characters per piece", "unknown", "warning"],
        rows,
        texts=(0, 4),
    )


def _corpus_table(report: Report) -> Table:
    rows = []
    for pair, corpora in _by_pair(report).items():
        for name, corpus in corpora.items():
            lost = [
                f"{count:,} {reason}"
                for kind in ("bad", "dropped")
                for reason, count in corpus[kind].items()
            ]
            kind = corpus.get("kind", "")
            if corpus.get("weight", 1) > 1:
                kind = f"{kind} × {corpus['weight']}".strip()
            counts = [f"{corpus[column]:,}" for column in ("read", "kept")]
            rows.append([name, pair, corpus["role"], kind, *counts, ", ".join(lost)])
    return Table(
        ["corpus", "pair", "role", "kind", "read", "kept", "left out"], rows, texts=(0, 1, 2, 3, 6)
    )


def _samples(report: Report) -> Iterator[Section]:
    """Yield a folded section of samples for each rule and each reason."""
    for rule, meaning in report["meanings"]["dropped"].items():
        rows: list[list[str]] = []
        for corpora in _by_pair(report).values():
            lists = []
            for name, corpus in corpora.items():
                samples = corpus["samples"].get(rule, [])
                lists.append([[f"{name}:{line}", *texts] for line, *texts in samples])
            rows += _in_turn(lists)
        if rows:
            table = Table(["line", "source", "target"], rows, texts=3)
            yield Section(f"Samples: {rule}", [f"{meaning}.", table], folded=True)
    for reason, meaning in report["meanings"]["bad"].items():
        rows = []
        for corpora in _by_pair(report).values():
            lists = []
            for corpus in corpora.values():
                samples = corpus["bad_samples"].get(reason, [])
                lists.append([[f"{file}:{line}", text] for file, line, text in samples])
            rows += _in_turn(lists)
        if rows:
            table = Table(["line", "beginning"], rows, texts=2)
            yield Section(f"Unreadable lines: {reason}", [f"{meaning}.", table], folded=True)


def _in_turn(lists: Sequence[Sequence[list[str]]]) -> list[list[str]]:
    """Return rows from the lists in turn, so that no corpus has all of them."""
    rows = chain.from_iterable(zip_longest(*lists))
    return list(islice(filter(None, rows), PER_PAIR))
