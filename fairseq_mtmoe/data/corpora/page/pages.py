"""A report in HTML and in Markdown, with the same tables; the HTML page also has samples of lines left out."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path

from fairseq_mtmoe.data.corpora.page import figures
from fairseq_mtmoe.data.corpora.page.figures import Report
from fairseq_mtmoe.data.translation.tiers import TIER_RULE
from fairseq_mtmoe.errors import visible
from fairseq_mtmoe.io.pages import templates
from fairseq_mtmoe.io.tables import markdown_table

SPLITS = ("train", "valid", "test")
FEW, MOST = 8, 200  # findings shown at first, and in all
PER_PAIR = 5  # samples shown per rule and language pair
_SIGNS = str.maketrans({sign: f"\\{sign}" for sign in "\\`*_<>[]"})
_UNKNOWN = "`unknown`: share of test tokens, both sides, that the vocabulary lacks."


@dataclass(frozen=True)
class Table:
    """A table of a report: `texts` are text columns, `notes` stand below, the `last` rows are sums."""

    name: str
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    texts: Sequence[int] = (0,)
    notes: Sequence[str] = ()
    last: int = 0


def page_of(report: Report) -> str:
    """Return a report (the value of `report.json`) as HTML, byte for byte reproducible."""
    meanings = report.get("meanings", {})
    settings = figures.settings_of(report["recipe"])
    return templates(Path(__file__).parent).get_template("page.html.j2").render(
        command=report["command"],
        title=f"Report on the corpora of {visible(settings.get('name', 'a recipe'))}",
        findings=list(map(visible, figures.findings(report))),
        few=FEW,
        most=MOST,
        tables=_tables(report),
        training=figures.training_command(report) if report["pairs"] else "",
        shards=figures.shards_of(report),
        samples={"dropped": _dropped(report), "bad": _bad(report)},
        meanings={kind: meanings.get(kind, {}) for kind in ("dropped", "bad")},
        settings=settings,
    )  # fmt: skip


def markdown_of(report: Report) -> str:
    """Return a report in Markdown, without samples, byte for byte reproducible."""
    settings = figures.settings_of(report["recipe"])
    warned = [f"- {_plain(sentence)}" for sentence in figures.findings(report)]
    parts = [
        f"# Report on the corpora of {_plain(settings.get('name', 'a recipe'))}",
        f"Made by `mtmoe prepare {report['command']}`. Samples of lines left out are in `report.html`, "
        "all figures in `report.json`.",
        *(["Check first:", "\n".join(warned)] if warned else []),
    ]
    for table in _tables(report):
        rows = [list(map(_plain, row)) for row in table.rows]
        for row in rows[len(rows) - table.last :]:
            row[0] = f"**{row[0]}**"
        parts += [f"## {table.title}", markdown_table(table.head, rows, table.texts)]
        parts += ["\n".join(f"- {note}" for note in table.notes)] if table.notes else []
    if report["pairs"]:
        parts += ["## Training", f"```\n{figures.training_command(report)}\n```"]
    if shards := figures.shards_of(report):
        parts.append(f"For fairseq's own tasks, replace the first `DATA` by `{shards}`.")
    listed = "\n".join(f"- {_plain(name)}: {_plain(value)}" for name, value in settings.items())
    return "\n\n".join([*parts, "## Recipe", listed]) + "\n"


def _plain(text: object) -> str:
    return visible(text).translate(_SIGNS)


def _tables(report: Report) -> list[Table]:
    found = [_flows(report), _pairs(report)]
    found += [_vocabulary(report)] if report["vocabulary"] else []
    found.append(_corpora(report))
    changed = _changes(report)
    return [*found, changed] if changed.rows else found


def _flows(report: Report) -> Table:
    rules, whole = figures.rules_of(report), figures.training(report)
    drawn = ["drawn"] if whole.drawn else []
    meanings = report.get("meanings", {}).get("dropped", {})
    rows = []
    for name, flow in {**figures.flows(report), "all": whole}.items():
        numbers = [flow.lines, *(flow.drawn for _ in drawn), flow.kept]
        of_rules = [f"{flow.count(rule):,}" for rule in rules]
        rows.append([name, *(f"{number:,}" for number in numbers), f"{flow.kept_share:.0%}", *of_rules])
    head = ["pair", "lines", *drawn, "kept", "%", *(f"−{rule}" for rule in rules)]
    taken = "taken for validation and test, as the pair has no corpus for these; `%` is of the other lines"
    notes = [f"`drawn`: {taken}." for _ in drawn]
    notes += [f"`−{rule}`: {meanings[rule]}." for rule in rules if rule in meanings]
    return Table("raw", "Raw training text: lines kept and left out", head, rows, notes=notes, last=1)


def _pairs(report: Report) -> Table:
    rows: list[list[object]] = []
    synthetic = ["back-translated"] if any("back_translated" in pair for pair in report["pairs"].values()) else []
    for name, pair in figures.largest_first(report):
        numbers = [f"{pair[split]:,}" for split in SPLITS]
        share = [_percent(pair.get("back_translated", 0) / max(1, pair["train"])) for _ in synthetic]
        rows.append([name, pair["tier"], *numbers, pair["shards"], _percent(figures.unknown_share([pair])), *share])
    tiers = figures.tiers_of(report)
    for tier, of in tiers.items():
        trained = sum(pair["train"] > 0 for pair in of)  # others only have validation and test text
        sums = [f"{sum(pair[split] for pair in of):,}" for split in SPLITS]
        count = f"{trained} pair" + "s" * (trained != 1)
        rows.append([tier or "no tier", count, *sums, "", "", *("" for _ in synthetic)])
    head = ["pair", "tier", *SPLITS, "shards", "unknown", *synthetic]
    notes = [
        TIER_RULE,
        _UNKNOWN,
        *(f"`{name}`: share of training pairs, and so of drawn examples." for name in synthetic),
    ]
    return Table("pairs", "Language pairs to train on", head, rows, (0, 1), notes, last=len(tiers))


def _vocabulary(report: Report) -> Table:
    rows = []
    for lang, of in report["vocabulary"].items():
        pieces = [of.get(name) for name in ("pieces_per_word", "characters_per_piece")]
        numbers = ["" if number is None else f"{number:.2f}" for number in pieces]
        shares = [_percent(of.get(name), 3) for name in ("unknown_share", "coverage")]
        rows.append([lang, *numbers, *shares, of.get("warning") or ""])
    head = ["language", "pieces per word", "characters per piece", "unknown", "characters covered", "warning"]
    return Table("vocabulary", "Vocabulary", head, rows, (0, 5))


def _corpora(report: Report) -> Table:
    rows, are_alike = [], not any({"kind", "weight"} & corpus.keys() for corpus in report["corpora"].values())
    counts = ["drawn", "kept"] if any(corpus.get("drawn") for corpus in report["corpora"].values()) else ["kept"]
    for pair, corpora in figures.by_pair(report).items():
        total = max(1, sum(map(figures.copies, corpora.values())))
        for name, corpus in corpora.items():
            bad, dropped = (_counted(corpus[kind]) for kind in ("bad", "dropped"))
            numbers = [f"{corpus.get(key, 0):,}" for key in counts]
            if not are_alike:
                numbers += [corpus.get("kind", ""), f"{corpus.get('weight', 1)}"]
                numbers.append(_percent(figures.copies(corpus) / total) if corpus["role"] == figures.TRAIN else "")
            rows.append([name, pair, corpus["role"], f"{corpus['read']:,}", bad, dropped, *numbers])
    head = ["corpus", "pair", "role", "read", "bad lines", "left out", *counts]
    head += [] if are_alike else ["kind", "weight", "share"]
    notes = [] if are_alike else ["`share`: of the pair's training data, which has each corpus `weight` times."]
    return Table("corpora", "Corpora", head, rows, (0, 1, 2, 4, 5, 6 + len(counts)), notes)


def _changes(report: Report) -> Table:
    found: dict[str, Counter[str]] = {}
    for corpus in report["corpora"].values():
        found.setdefault(corpus["pair"], Counter()).update(corpus["changed"])
    names = list(next(iter(found.values()), {}))
    meanings = report.get("meanings", {}).get("changed", {})
    rows = [[pair, *(f"{counts[name]:,}" for name in names)] for pair, counts in found.items() if counts.total()]
    return Table("changes", "Changes by normalisation", ["pair", *(meanings.get(name, name) for name in names)], rows)


def _counted(numbers: Report) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in numbers.items())


def _percent(share: float | None, digits: int = 2) -> str:
    return "" if share is None else f"{share:.{digits}%}"


Samples = dict[str, dict[str, list[tuple[str, list[tuple[str, str]]]]]]


def _dropped(report: Report) -> Samples:
    found: Samples = {}
    for pair, corpora in figures.by_pair(report).items():
        for rule in dict.fromkeys(rule for corpus in corpora.values() for rule in corpus["samples"]):
            lists = [[(name, *one) for one in corpus["samples"].get(rule, ())] for name, corpus in corpora.items()]
            found.setdefault(rule, {})[pair] = [
                (f"{visible(name)}:{line}", list(zip(pair.split("-"), map(visible, texts), strict=False)))
                for name, line, *texts in _in_turn(lists)
            ]
    return found


def _bad(report: Report) -> Samples:
    found: Samples = {}
    for pair, corpora in figures.by_pair(report).items():
        for reason in dict.fromkeys(one[2] for corpus in corpora.values() for one in corpus["bad_samples"]):
            lists = [[one for one in corpus["bad_samples"] if one[2] == reason] for corpus in corpora.values()]
            found.setdefault(reason, {})[pair] = [
                (f"{visible(file)}:{line}", [("", visible(excerpt))]) for file, line, _, excerpt in _in_turn(lists)
            ]
    return found


def _in_turn(lists: Sequence[Sequence[Sequence[object]]]) -> Iterator[Sequence[object]]:
    """Yield from the lists in turn, so that a pair's samples are not all from its first corpus."""
    return islice((one for one in chain.from_iterable(zip_longest(*lists)) if one is not None), PER_PAIR)
