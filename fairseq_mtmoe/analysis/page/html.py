"""The page: facts of runs in one HTML file (`page.html.j2`, with `page.css`, `js/` and ECharts inside)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from fairseq_mtmoe.analysis.page.data import as_script, data_of
from fairseq_mtmoe.analysis.page.setups import Setups, setups_of
from fairseq_mtmoe.io.pages import policy_hash, templates

HERE = Path(__file__).parent
SCRIPTS = (
    *("dom", "state", "look", "chart", "lines", "choosing", "curves", "training", "heat", "experts", "scores", "texts"),
    "start",
)
"""Files of `js/` in the order in which they build on each other; together they are one script."""


def page_of(facts: Mapping[str, Any]) -> str:
    """A report as HTML: the same bytes for the same facts.

    Args:
        facts: what `run_facts.gather` returns (`run_facts/fields.py` says what is in it).
    """
    data = data_of(facts)
    style, echarts, own = _style(), _echarts(), _own_script()
    return _environment().get_template("page.html.j2").render(
        made=data["made"],
        runs=data["runs"],
        notes=_notes(data),
        watched=data["watched"],
        title=" · ".join(run["name"] for run in data["runs"]),
        warnings=_warnings(data),
        setups=_setups(data),
        style=Markup(style),
        echarts=Markup(echarts),
        script=Markup(own),
        style_hash=policy_hash(style),
        script_hashes=[policy_hash(echarts), policy_hash(own)],
        data=Markup(as_script(data)),
    )  # fmt: skip


def _setups(data: Mapping[str, Any]) -> Setups:
    return setups_of({run["name"]: run["setup"] for run in data["runs"]})


def _notes(data: Mapping[str, Any]) -> dict[str, list[str]]:
    """What the page does not show, with the names of the runs of which that is so; none where it is of all of them."""
    found: dict[str, list[str]] = {note: [] for note in data["notes"]}
    for run in data["runs"]:
        for note in run["notes"]:
            found.setdefault(note, []).append(run["name"])
    return {note: names if len(names) < len(data["runs"]) else [] for note, names in found.items()}


def _warnings(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Those of all runs, the most severe first, each with its run's name and number."""
    found = [
        {**warning, "run": run["name"], "number": number}
        for number, run in enumerate(data["runs"])
        for warning in run["warnings"]
    ]
    return sorted(found, key=lambda warning: ("high", "mid", "low").index(warning["severity"]))


@cache
def _environment() -> Environment:
    found = templates(HERE)
    found.filters |= {"amount": _amount, "coded": _coded, "figure": _figure, "when": _when, "whole": _whole}
    return found


def _when(date: str) -> str:
    """A date of ISO 8601 to the minute, as people write it."""
    return date.replace("T", " ")[:16]


def _coded(sentence: str) -> Markup:
    """A sentence with what stands between `…` in it as code."""
    parts = sentence.split("`")
    if len(parts) % 2 == 0:
        return Markup.escape(sentence)
    return Markup().join(
        Markup("<code>{}</code>").format(part) if number % 2 else part for number, part in enumerate(parts)
    )


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}"


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _amount(value: float | None) -> str:
    """A large number in millions, a smaller one in thousands."""
    if value is None or value < 10_000:
        return _whole(value)
    return f"{value / 1e6:,.1f} M" if value >= 1e6 else f"{value / 1e3:,.0f} k"


@cache
def _style() -> str:
    return _environment().from_string('{% include "basics.css" %}\n{% include "page.css" %}').render()


@cache
def _echarts() -> str:
    return (HERE / "echarts" / "echarts.min.js").read_text(encoding="utf-8")


@cache
def _own_script() -> str:
    parts = [(HERE / "js" / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    return "'use strict';\n(() => {\n" + "\n".join(parts) + "\n})();\n"
