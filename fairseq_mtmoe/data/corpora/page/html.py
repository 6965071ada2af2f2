"""The page: a report's figures and samples in one HTML file (`page.html.j2`, with `page.css` inside)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from fairseq_mtmoe.data.corpora.page import figures
from fairseq_mtmoe.data.corpora.page.figures import Flow, Report
from fairseq_mtmoe.data.corpora.page.findings import findings
from fairseq_mtmoe.data.corpora.page.samples import choose
from fairseq_mtmoe.data.corpora.page.training import shards_of, training_command
from fairseq_mtmoe.io.pages import templates, visible

KEPT, DRAWN = "kept", "drawn"
COLORS = 12
"""Colours of what was left out, in `page.css`; further rules begin with the first again."""

FEW, MOST = 8, 200
"""Findings that are shown before a reader asks for more, and at all."""


def page_of(report: Report) -> str:
    """A report as HTML: the same bytes whenever and wherever it is made.

    Args:
        report: the value of `report.json` (`engine.reporting` says what is in it).
    """
    flows, pairs = figures.flows(report), figures.largest_first(report)
    rules = figures.rules_of(report)
    return _environment().get_template("page.html.j2").render(
        report=report,
        sizes=_Sizes(),
        meanings={kind: report.get("meanings", {}).get(kind, {}) for kind in ("bad", "dropped", "changed")},
        settings={name: visible(value) for name, value in figures.settings_of(report["recipe"]).items()},
        findings=list(map(visible, findings(report))),
        few=FEW,
        most=MOST,
        flows=flows,
        whole=figures.training(report),
        rules=rules,
        colors={rule: f"c{number % COLORS}" for number, rule in enumerate(rules)},
        parts={name: _parts(flow, rules) for name, flow in flows.items()},
        pairs=pairs,
        unknown={name: figures.unknown_share(pair) for name, pair in pairs},
        train_width=_logarithmic({name: pair["train"] for name, pair in pairs}),
        tiers=figures.tiers_of(report),
        tier_width=_linear({tier: sum(one["train"] for one in of) for tier, of in figures.tiers_of(report).items()}),
        by_pair=figures.by_pair(report),
        flow_of=figures.flow_of,
        changes=_changes(report),
        piece_width=_linear({lang: of.get("pieces_per_word") or 0 for lang, of in report["vocabulary"].items()}),
        lengths=_lengths(report),
        samples=choose(report),
        command=training_command(report),
        shards=shards_of(report),
    )  # fmt: skip


class _Sizes:
    """The sizes of bars on a page, in percent with a digit behind the point: a class for each, so that no element has a
    style of its own and the page's policy forbids any."""

    def __init__(self) -> None:
        self._rules: dict[str, str] = {}

    def of(self, side: str, percent: float) -> str:
        """The class of what is so large."""
        name = f"{side[0]}{round(10 * percent)}"
        self._rules[name] = f".{name} {{ {side}: {percent:.1f}%; }}"
        return name

    def rules(self) -> Markup:
        """Of all classes that were asked for."""
        return Markup("\n".join(self._rules[name] for name in sorted(self._rules)))


@cache
def _environment() -> Environment:
    found = templates(Path(__file__).parent)
    found.filters |= {"decimal": _decimal, "percent": _percent, "spaced": _spaced}
    return found


def _spaced(name: str) -> str:
    """The name of a rule as words."""
    return name.replace("_", " ")


def _decimal(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _percent(share: float | None, digits: int = 1) -> str:
    return "" if share is None else f"{share:.{digits}%}"


def _parts(flow: Flow, rules: Iterable[str]) -> list[tuple[str, int, float]]:
    """What became of a pair's lines: name, lines, percent of them; what was kept is first."""
    parts = {KEPT: flow.kept, DRAWN: flow.drawn, **{rule: flow.count(rule) for rule in rules}}
    return [(name, number, 100 * number / flow.lines) for name, number in parts.items() if number]


def _linear(values: Mapping[str, float]) -> dict[str, float]:
    """Bars in percent of the longest."""
    longest = max(values.values(), default=0) or 1
    return {name: 100 * value / longest for name, value in values.items()}


def _logarithmic(values: Mapping[str, int]) -> dict[str, float]:
    """Bars in percent of the longest, on a logarithmic scale that begins at 1: sizes differ a thousandfold."""
    return _linear({name: math.log10(max(value, 1)) for name, value in values.items()})


def _changes(report: Report) -> dict[str, Counter[str]]:
    """What was changed in the corpora of each pair, where something was."""
    found: dict[str, Counter[str]] = {}
    for corpus in report["corpora"].values():
        found.setdefault(corpus["pair"], Counter()).update(corpus["changed"])
    return {pair: changed for pair, changed in found.items() if changed.total()}


def _lengths(report: Report) -> dict[str, list[dict[str, Any]]]:
    """The columns of each language's histogram, where the report has them."""
    found = {}
    for lang, histogram in report.get("lengths", {}).items():
        bounds, counts = histogram["bounds"], histogram["counts"]
        highest = max(counts, default=0) or 1
        ends = [*(f"–{after - 1}" for after in bounds[1:]), " and more"]
        found[lang] = [
            {"name": f"{bound}{end}", "count": count, "height": 100 * count / highest}
            for bound, end, count in zip(bounds, ends, counts, strict=True)
        ]
    return found
