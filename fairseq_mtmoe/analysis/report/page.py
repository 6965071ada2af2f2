"""The report's page: facts of runs in one HTML file.

It joins `page.html.j2`, `page.css`, `page.js` and Vega, which draws the charts. A section is a list of rows of some
groups (`SECTIONS`). Charts have the shapes of `charts/look.py`; the page's script takes their points from the rows that
a reader chose. Text of a log or a translation is never interpreted as HTML.
"""

import base64
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from fairseq_mtmoe.analysis.questions import FIGURES, evenly, shares
from fairseq_mtmoe.analysis.report.gathering import Facts, RunReport, Sample, compare_setups
from fairseq_mtmoe.analysis.report.warnings import RANK
from fairseq_mtmoe.analysis.rows import ALL, VALIDATION, Row, Values
from fairseq_mtmoe.analysis.significance import LEVEL
from fairseq_mtmoe.errors import visible
from fairseq_mtmoe.io.pages import policy_hash, templates

HERE = Path(__file__).parent
# Limits of a page, over all runs: shares of experts (1.3 MB), numbers of curves (1.5 MB), bytes of translations.
CELLS, NUMBERS, TEXTS = 500_000, 250_000, 900_000
MOST_POINTS = 2000  # of a training curve
NOTHING, WHOLE = 65_535, 10_000  # packed shares: no token was counted; 1
SPEED = ("wps", "ups", "wpb", "bsz", "padding", "gb_free", "expert_comm_ms")
SECTIONS: list[dict[str, Any]] = [
    {"id": "curves", "title": "Validation", "groups": VALIDATION, "by": "task"},
    {"id": "training", "title": "Training", "groups": ["train"], "by": "metric",
     "only": ["loss", "nll_loss", "gnorm", "lr", "clip", "skipped", "loss_scale"]},
    {"id": "sampling", "title": "Sampling", "groups": ["sampling"], "by": "task", "x": "epoch"},
    {"id": "selection", "title": "Uncertainty sampling", "groups": ["selection"], "by": "task"},
    {"id": "experts", "title": "Experts", "heat": "experts"},
    {"id": "entropy", "title": "Balance of experts", "groups": ["entropy"], "by": "task"},
    {"id": "gates", "title": "Gates", "groups": ["gates"], "by": "layer"},
    {"id": "sources", "title": "Sources", "heat": "sources"},
    {"id": "speed", "title": "Speed", "groups": ["train"], "by": "metric", "only": list(SPEED)},
    {"id": "exchange", "title": "All-to-all", "groups": ["exchange"], "by": "layer"},
]  # fmt: skip
TITLES = {
    "ppl": "perplexity", "loss": "loss", "nll_loss": "loss without label smoothing", "lr": "learning rate",
    "gnorm": "gradient norm", "clip": "clipped updates, %", "wps": "tokens per second", "ups": "updates per second",
    "wpb": "tokens per update", "bsz": "examples per update", "padding": "padding, share of positions",
    "skipped": "skipped updates so far", "loss_scale": "loss scale", "gb_free": "free memory, GB",
    "expert_comm_ms": "all-to-all, ms per update", "probability": "sampling probability",
    "share": "share of trained examples", "entropy": "entropy (1 is uniform)", "share_of_data": "share of data seen",
    "seconds": "seconds per update", "megabytes": "megabytes per update", **FIGURES,
}  # fmt: skip
PERCENT = ("probability", "share", "share_of_data", "changed", "padding")
# In JSON: no character can end the `<script>` element or a line of the script.
_SPELLED = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def page_of(facts: Facts) -> str:
    """Return the report as HTML; the same facts give the same bytes."""
    data, left_out = data_of(facts)
    look = templates(HERE)
    style = look.from_string('{% include "basics.css" %}\n{% include "page.css" %}').render()
    scripts = [_vega(), (HERE / "page.js").read_text(encoding="utf-8")]
    differing, common = compare_setups([run.setup for run in facts.runs])
    warned = [(warning, number) for number, run in enumerate(facts.runs) for warning in run.warnings]
    notes = {note: [run.name for run in facts.runs if note in run.notes] for run in facts.runs for note in run.notes}
    of_all = [note for note, names in notes.items() if len(names) == len(facts.runs)]
    return look.get_template("page.html.j2").render(
        facts=facts, title=" · ".join(visible(run.name) for run in facts.runs), differing=differing, common=common,
        warnings=sorted(warned, key=lambda one: RANK.index(one[0].severity)), figure=_figure,
        notes={**dict.fromkeys(facts.notes, ()), **notes, **dict.fromkeys([*of_all, *left_out], ())},
        sparks=[_spark(run.rows) for run in facts.runs], style=Markup(style), style_hash=policy_hash(style),
        scripts=[*map(Markup, scripts)], hashes=[*map(policy_hash, scripts)],
        data=Markup(json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_SPELLED)),
    )  # fmt: skip


def data_of(facts: Facts) -> tuple[dict[str, Any], list[str]]:
    """Return the facts for the page's script, and notes on omissions for lack of room."""
    rows, experts = thinned([run.rows for run in facts.runs]), pack_experts(facts.runs)
    samples, left_out = _with_room([run.scores.samples for run in facts.runs])
    index_of: dict[bytes, int] = {}
    moments: list[dict[str, list[float | None]]] = []
    found: list[dict[str, Any]] = []
    for number, row in ((number, row) for number, of in enumerate(rows) for row in of if row.group != "experts"):
        key = b"".join(values.tobytes() for values in vars(row.moments).values())
        if index_of.setdefault(key, len(moments)) == len(moments):
            moments.append({name: numbers(values, 10) for name, values in vars(row.moments).items()})
        found.append({"r": number, "g": row.group, "m": row.metric, "t": visible(row.task), "l": visible(row.layer),
                      "a": index_of[key], "v": numbers(row.value)})  # fmt: skip
    notes = {
        "There was no room for every validation; each line keeps its best one.":
            _size(rows, VALIDATION) < _size([run.rows for run in facts.runs], VALIDATION),
        "Experts are shown at some validations only: with all, the page would be too large.":
            any(one and one["thinned"] for one in experts),
        f"There was no room for {left_out} translations.": left_out,
    }  # fmt: skip
    runs = [{"name": visible(run.name), "unit": run.unit, "sparsified": run.sparsified} for run in facts.runs]
    return {
        "watched": facts.watched, "runs": runs, "moments": moments, "rows": found, "experts": experts,
        "scores": _scores(facts), "texts": _texts(samples), "sections": SECTIONS, "titles": TITLES, "percent": PERCENT,
        "specs": specs(),
    }, [note for note, holds in notes.items() if holds]  # fmt: skip


def numbers(values: Values | Sequence[float], digits: int = 5) -> list[float | int | None]:
    """Round to `digits` significant digits; None for numbers that are not finite."""
    short = (float(f"{value:.{digits}g}") for value in np.asarray(values).tolist())
    return [
        None if not math.isfinite(value) else int(value) if value.is_integer() and abs(value) < 2**53 else value
        for value in short
    ]


@cache
def specs() -> dict[str, Any]:
    """Return the charts' Vega-Lite specifications; the page provides their points."""
    from fairseq_mtmoe.analysis.charts import look, models

    heat, lines = look.heat("points", axis=".1%"), look.lines("points", "x", hover=True)
    charts = {"lines": lines, "heat": heat, "dots": models.dots("points")}
    return {name: {**chart.to_dict(), "config": {}} for name, chart in charts.items()}


@cache
def _vega() -> str:
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")).replace("</script", "<\\/script")


def _figure(value: float | None, digits: int = 0) -> str:
    """Format a number: in millions or thousands if large, empty if it is None."""
    if value is None or abs(value) < 10_000:
        return "" if value is None else f"{value:,.{digits}f}"
    return f"{value / 1e6:,.1f} M" if abs(value) >= 1e6 else f"{value / 1e3:,.0f} k"


def _spark(rows: Sequence[Row]) -> str:
    """Return a sparkline's corners in 118 × 22 pixels: log of a run's first curve.

    Empty if the run has no curve.
    """
    values = next((row.value for row in rows if row.group in VALIDATION), np.zeros(0))
    logs = np.log(np.maximum(values[np.isfinite(values)], 1e-9))[:: max(1, len(values) // 118)]
    if len(logs) < 2:
        return ""
    heights = 23 - 22 * (logs - logs.min()) / (float(np.ptp(logs)) or 1.0)
    return " ".join(f"{x:.0f},{y:.1f}" for x, y in zip(np.linspace(1, 119, len(logs)), heights, strict=True))


def thinned(runs: Sequence[Sequence[Row]]) -> list[list[Row]]:
    """Return the runs' rows, validation and training thinned until there is room."""
    step, found = 1, [_each(rows, 1) for rows in runs]
    most = max((len(row.value) for rows in runs for row in rows if row.group in VALIDATION), default=0)
    while step < max(most, MOST_POINTS // 2) and _size(found, (*VALIDATION, "train")) > NUMBERS:
        step += max(1, step // 4)  # grow the step faster for long runs
        found = [_each(rows, step) for rows in runs]
    return found


def _size(runs: Sequence[Sequence[Row]], groups: Sequence[str]) -> int:
    return sum(len(row.value) for rows in runs for row in rows if row.group in groups)


def _each(rows: Sequence[Row], step: int) -> list[Row]:
    """Keep each step-th, the last and the best moments of validation; thin training.

    Training keeps at most `MOST_POINTS` // step moments.
    """
    validated = [row for row in rows if row.group in VALIDATION]
    count = len(validated[0].value) if validated else 0
    kept = {*range(0, count, step), *([count - 1] if count else [])}
    indices = sorted(kept | {best for row in validated if (best := row.best_index) is not None})
    return [
        row.at(indices) if row.group in VALIDATION and len(indices) < count
        else peaks(row, max(2, MOST_POINTS // step)) if row.group == "train" else row
        for row in rows
    ]  # fmt: skip


def peaks(row: Row, most: int) -> Row:
    """Thin a row to `most` moments: each stretch keeps its minimum and maximum."""
    if len(row.value) <= most:
        return row
    ends, values = [], []
    for stretch in np.array_split(np.arange(len(row.value)), most // 2):
        of = row.value[stretch]
        ends += [int(stretch[0]), int(stretch[-1])]
        indices = sorted((int(np.nanargmin(of)), int(np.nanargmax(of)))) if np.isfinite(of).any() else [0, 0]
        values += [float(of[index]) for index in indices]
    return replace(row.at(ends), value=np.array(values))


def pack_experts(runs: Sequence[RunReport]) -> list[dict[str, Any] | None]:
    """Pack shares of experts in base64, by update, layer, task and expert.

    Each takes two bytes (little-endian, in 1/10,000). The number of moments, at least two, is limited by the room for
    all runs.
    """
    of_runs = [[row for row in run.rows if row.group == "experts"] for run in runs]
    # Every layer has cells for every task, even without a row of that task.
    cells = sum(
        len({row.task for row in rows}) * sum({row.layer: row.value.shape[1] for row in rows}.values())
        for rows in of_runs
    )
    return [_packed(rows, max(2, CELLS // cells)) if rows else None for rows in of_runs]


def _packed(rows: Sequence[Row], most: int) -> dict[str, Any]:
    sizes, tasks = {row.layer: row.value.shape[1] for row in rows}, list(dict.fromkeys(row.task for row in rows))
    updates, found = rows[0].moments.update, {(row.layer, row.task): shares(row) for row in rows}
    indices = evenly(len(updates), most)
    packed = []
    for layer, task in ((layer, task) for layer in sizes for task in tasks):
        values = found.get((layer, task), np.full((len(updates), sizes[layer]), np.nan))[indices]
        packed.append(np.where(np.isnan(values), NOTHING, np.rint(WHOLE * values)).astype("<u2"))
    return {
        "updates": numbers(updates[indices], 10),
        "layers": [visible(layer) for layer in sizes],
        "sizes": list(sizes.values()),
        "tasks": [visible(task) for task in tasks],
        "packed": base64.b64encode(np.concatenate(packed, axis=1).tobytes()).decode(),
        "thinned": len(indices) < len(updates),
    }


def _scores(facts: Facts) -> dict[str, Any]:
    """Return scores and half intervals by metric and test set, and differences."""
    rows = [(number, row) for number, run in enumerate(facts.runs) for row in run.scores.rows]
    tiers = {pair: score.tier for run in facts.runs for pair, score in run.scores.scores.pairs.items()}
    sets: dict[str, dict[str, Any]] = {}
    values: dict[str, dict[str, dict[int, list[float | int | None]]]] = {}
    for number, row in rows:
        label, is_mean = visible(row.task), row.group not in ("pair", "task")
        key = f"{row.group}:{label}"
        sets[key] = {"key": key, "label": label, "tier": tiers.get(row.task, ""), "n": row.n, "mean": is_mean}
        values.setdefault(visible(row.metric), {}).setdefault(key, {})[number] = numbers([row.figure, row.stderr], 6)
    differences = []
    for first, second, found in facts.comparisons:
        of = {f"pair:{visible(name)}": one for name, one in found.pairs.items()}
        of |= {f"{ALL if name == ALL else 'tier'}:{visible(name)}": one for name, one in found.groups.items()}
        apart = {key: numbers([one.difference, *one.interval, one.p_randomisation]) for key, one in of.items()}
        names = {"first": visible(first), "second": visible(second), "metric": visible(found.metric)}
        differences.append({**names, "of": apart})
    return {"sets": list(sets.values()), "values": values, "differences": differences, "level": LEVEL}


def _with_room(samples: Sequence[list[Sample]]) -> tuple[list[list[Sample]], int]:
    """Return as many translations per pair as fit, and the number of those left out."""
    ranked = [[(sum(one.pair == before.pair for before in of[:index]), one) for index, one in enumerate(of)]
              for of in samples]  # fmt: skip
    most = max((rank + 1 for of in ranked for rank, _ in of), default=0)
    texts = [(rank, "".join((one.source or "", *one.references, one.hypothesis))) for of in ranked for rank, one in of]
    sizes = [(rank, len(text.encode(errors="surrogatepass"))) for rank, text in texts]
    while most > 1 and sum(size for rank, size in sizes if rank < most) > TEXTS:
        most -= 1
    kept = [[one for rank, one in of if rank < most] for of in ranked]
    return kept, sum(map(len, samples)) - sum(map(len, kept))


def _texts(samples: Sequence[Sequence[Sample]]) -> list[dict[str, Any]]:
    """Return each sentence once, with the translations of all runs."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, one in ((number, one) for number, of in enumerate(samples) for one in of):
        text = {"pair": visible(one.pair), "line": one.line, "source": one.source and visible(one.source),
                "references": [*map(visible, one.references)], "by": []}  # fmt: skip
        found.setdefault((one.pair, one.line, one.references), text)["by"].append([number, visible(one.hypothesis)])
    return list(found.values())
