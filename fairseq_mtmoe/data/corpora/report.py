"""What a data directory holds and what was left out, as `report.json` and as a page to read, `report.md`.

Nothing in a report depends on when or where it was made: the same input gives the same bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_mtmoe.data.corpora.build import Built
from fairseq_mtmoe.data.corpora.engine.reporting import SPLITS, pair_figures
from fairseq_mtmoe.data.corpora.messages import DROP_REASONS
from fairseq_mtmoe.io.markdown import markdown_table

Report = dict[str, Any]

MANY_UNKNOWN = 0.005
"""The share of a language's test tokens from which on `--character-coverage` is worth a word."""


def make_report(
    command: str,
    options: Mapping[str, object],
    built: Built,
    dropped: Mapping[str, Mapping[str, int]] | None = None,
) -> Report:
    """All numbers of a report, ready for JSON.

    `options` are those that it was built with (`BuildOptions`).

    `dropped` counts sentence pairs that were left out before, by language pair and reason. The caller may add `sources`
    (rows of what the text was taken from), `left_out` (messages of languages that were not used) and `files` (what was
    changed of each file).
    """
    pairs = {}
    for name in built.assembly.pairs:
        reasons = Counter((dropped or {}).get(name, {})) + Counter(built.dropped[name])
        pairs[name] = {
            **pair_figures(built.assembly, name),
            "dropped": dict(reasons),
            "evaluation_sources_in_training": built.overlaps[name].sources,
            "found_in_training_of": built.overlaps[name].of_pairs,
        }
    return {"command": command, "options": dict(options), "pairs": pairs}


def write_report(folder: Path, report: Report) -> None:
    """Write `report.json` and `report.md` into `folder`."""
    (folder / "report.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "report.md").write_text(_page(report), encoding="utf-8")


def report_table(report: Report, by_reason: bool = False) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table of language pairs, largest first, with a total.

    What was dropped is one number, or one for each reason that occurs if `by_reason`.
    """
    columns = {"dropped": list(DROP_REASONS)}
    if by_reason:
        occurring = {reason for pair in report["pairs"].values() for reason in pair["dropped"]}
        columns = {f"−{reason}": [reason] for reason in DROP_REASONS if reason in occurring}
    head = ["pair", "tier", *SPLITS, *columns, "unknown"]
    ordered = sorted(report["pairs"].items(), key=lambda item: (-item[1]["train"], item[0]))
    rows = [_row(name, pair["tier"], [pair], columns.values()) for name, pair in ordered]
    return head, [*rows, _row("total", "", list(report["pairs"].values()), columns.values())]


def _row(name: str, tier: str, pairs: Sequence[Report], columns: Iterable[Sequence[str]]) -> list[str]:
    numbers = [sum(pair[split] for pair in pairs) for split in SPLITS]
    numbers += [sum(pair["dropped"].get(reason, 0) for pair in pairs for reason in reasons) for reasons in columns]
    return [name, tier, *(f"{number:,}" for number in numbers), _unknown_share(pairs)]


def _unknown_share(pairs: Sequence[Report]) -> str:
    return f"{_unknown([side for sides in _test_sides(pairs).values() for side in sides]):.2%}"


def _unknown(sides: Sequence[Mapping[str, int]]) -> float:
    """The share of the tokens of some sides that the vocabulary does not have."""
    return sum(side["unknown"] for side in sides) / max(1, sum(side["tokens"] for side in sides))


def hints(report: Report) -> list[str]:
    """What a user should know before training: sentences."""
    pairs = report["pairs"]
    found = sum(pair["evaluation_sources_in_training"] for pair in pairs.values())
    lines = [f"{found:,} validation and test sources also occur in training data."] if found else []
    lines += [
        f"{name}: one of the training files has {pair['dropped']['unequal']:,} lines more, which are left out."
        for name, pair in pairs.items()
        if "unequal" in pair["dropped"]
    ]
    shares = {lang: _unknown(sides) for lang, sides in sorted(_test_sides(pairs.values()).items())}
    many = ", ".join(f"{lang} {share:.1%}" for lang, share in shares.items() if share >= MANY_UNKNOWN)
    coverage = report["options"].get("character_coverage")  # none where the vocabulary was given
    if many and coverage != 1:
        more = "" if coverage is None else f"; a `--character-coverage` above {coverage:g} takes more of them in"
        lines.append(
            f"Many tokens of the test sets are characters that the vocabulary does not have ({many}), which no model"
            f" can write{more}."
        )
    return lines


def _test_sides(pairs: Iterable[Report]) -> dict[str, list[dict[str, int]]]:
    """The token counts of all test sets, by language."""
    sides: dict[str, list[dict[str, int]]] = {}
    for pair in pairs:
        for lang, counts in pair["tokens"]["test"].items():
            sides.setdefault(lang, []).append(counts)
    return sides


def _page(report: Report) -> str:
    head, rows = report_table(report, by_reason=True)
    seen = sum(pair["evaluation_sources_in_training"] for pair in report["pairs"].values())
    lines = [
        f"# Data directory made by `mtmoe prepare {report['command']}`",
        "",
        *(f"- {name.replace('_', ' ')}: {value}" for name, value in report["options"].items()),
        f"- validation and test sources that also occur in some language's training data: {seen}",
        "",
        markdown_table(head, rows, texts=2),
        "",
        "`unknown`: the share of test tokens, both sides, that the vocabulary does not have.",
        *(f"`−{name}` (dropped): {meaning}." for name, meaning in DROP_REASONS.items() if f"−{name}" in head),
        *(line for hint in hints(report) for line in ("", hint)),
    ]
    parts = (_sources_in_training, _changes, _sources, _left_out)
    return "\n".join(lines + [line for part in parts for line in part(report)]) + "\n"


def _sources_in_training(report: Report) -> list[str]:
    rows = [
        [name, f"{pair['evaluation_sources_in_training']:,}", _counted(pair["found_in_training_of"])]
        for name, pair in report["pairs"].items()
        if pair["evaluation_sources_in_training"]
    ]
    head = ["validation and test sources of", "found in training", "of which pairs"]
    return ["", markdown_table(head, rows, texts=(0, 2))] if rows else []


def _changes(report: Report) -> list[str]:
    """What was changed of each file of text; of most, nothing."""
    if "files" not in report:
        return []
    rows = [
        [name, *(f"{changes[kind]:,}" for kind in ("removed", "breaks", "respelled"))]
        for name, changes in report["files"].items()
        if any(changes.values())
    ]
    if not rows:
        return ["", "No file of text had control or invisible characters, or lines that were not in Unicode NFC."]
    head = ["file", "characters removed", "line breaks inside lines, made spaces", "lines that were not in NFC"]
    return [
        "",
        "Control and invisible characters are removed, and lines brought to NFC, in validation and test files too:",
        "",
        markdown_table(head, rows),
    ]


def _sources(report: Report) -> list[str]:
    if "sources" not in report:
        return []
    rows = [
        [source["source"], f"{source['catalogs']:,}", ", ".join(source["damaged"]) or "none"]
        for source in report["sources"]
    ]
    return ["", markdown_table(["source", "catalogs", "damaged, not read"], rows, texts=(0, 2))]


def _left_out(report: Report) -> list[str]:
    if not report.get("left_out"):
        return []
    return ["", f"Languages left out, with their number of messages: {_counted(report['left_out'])}."]


def _counted(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count:,})" for name, count in sorted(numbers.items()))
