"""The comparison that `compare_training.py` writes: numbers as JSON, tables as Markdown, curves as pictures."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from training_systems import BASE, TEMPERATURE, Setting, System

from fairseq_mtmoe.analysis import rows
from fairseq_mtmoe.analysis.charts import save
from fairseq_mtmoe.analysis.charts.runs import perplexity
from fairseq_mtmoe.analysis.scores import ALL, TIERS
from fairseq_mtmoe.analysis.series import ExpertSeries, PerplexitySeries, Run, SamplingSeries, read_run
from fairseq_mtmoe.io.files import write_text
from fairseq_mtmoe.io.markdown import markdown_table

GROUPS = (*TIERS, ALL)
START = 0.2  # the pictures leave out this first part of the updates, where all systems fall alike
METRICS = {"bleu": "BLEU", "chrf": "chrF++"}
NONE = "–"
TO_BASE = (
    "*To BASE's best*: when the perplexity over all pairs came down to the best of the plain BASE run with the same "
    "seed. Minutes are of training, without validations."
)


@dataclass(frozen=True)
class RunResult:
    """One finished run: a system with a seed."""

    system: System
    seed: int
    log: Run
    finished: dict[str, Any]
    scores: dict[str, Any]  # `mtmoe evaluate`'s, or empty

    @classmethod
    def read(cls, system: System, path: Path, finished: dict[str, Any]) -> RunResult:
        """The run in the folder `path`."""
        scores = path / "scores" / "scores.json"
        content = json.loads(scores.read_text(encoding="utf-8")) if scores.exists() else {}
        return cls(system, finished["seed"], read_run(path, system.title), finished, content)

    @classmethod
    def of_numbers(cls, system: System, row: dict[str, Any]) -> RunResult:
        """What `numbers` wrote down of a run: its curves of perplexity, and what is known of the finished run."""
        curves = PerplexitySeries(row["updates"], row["minutes"], row["perplexity"])
        log = Run(system.title, SamplingSeries([], [], {}), ExpertSeries([], [], [], {}), curves, row["sparsified_at"])
        return cls(system, row["seed"], log, row, row["scores"])

    @property
    def share_of_data(self) -> float:
        """Which share of the training data uncertainty sampling trained on at least once, in percent."""
        return 100 * self.log.selection.share_of_data[-1] if self.log.selection.updates else math.nan

    def best(self, group: str) -> float:
        """The lowest validation perplexity of a tier, or of all pairs."""
        return min(self.log.perplexity.groups.get(group, [math.nan]))

    def score(self, metric: str, group: str) -> float:
        """The test sets' `bleu` or `chrf`, averaged over the pairs of a tier, or over all."""
        return float(self.scores.get("averages", {}).get(group, {}).get(metric, math.nan))


def reached(series: PerplexitySeries, perplexity: float) -> tuple[float, float] | None:
    """Updates and minutes at which all pairs' perplexity first came down to a value, or None.

    Between two validations, log perplexity is taken to fall along a straight line.
    """
    values = [math.log(value) for value in series.groups[ALL]]
    target = math.log(perplexity)
    for index, value in enumerate(values):
        if value > target:
            continue
        if index == 0:
            return float(series.updates[0]), series.minutes[0]
        share = (values[index - 1] - target) / (values[index - 1] - value)
        return tuple(  # type: ignore[return-value]
            line[index - 1] + share * (line[index] - line[index - 1]) for line in (series.updates, series.minutes)
        )
    return None


def mean_run(results: Sequence[RunResult]) -> Run:
    """The mean over seeds, validation by validation; perplexities are averaged in the logarithm."""
    many = [result.log.perplexity for result in results]
    count = min(len(series.updates) for series in many)
    groups = {
        name: [math.exp(fmean(math.log(series.groups[name][index]) for series in many)) for index in range(count)]
        for name in many[0].groups
    }
    updates = [round(fmean(series.updates[index] for series in many)) for index in range(count)]
    minutes = [fmean(series.minutes[index] for series in many) for index in range(count)]
    return replace(results[0].log, perplexity=PerplexitySeries(updates, minutes, groups))


def to_base(results: Sequence[RunResult], everything: Sequence[RunResult]) -> list[tuple[float, float] | None]:
    """When each run came to the best perplexity of the plain BASE run of its seed (None: never)."""
    bests = {result.seed: result.best(ALL) for result in everything if result.system.name == BASE}
    return [reached(result.log.perplexity, bests[result.seed]) for result in results if result.seed in bests]


def numbers(results: Sequence[RunResult]) -> list[dict[str, Any]]:
    """Everything that the tables show, run by run."""
    rows = []
    for result in results:
        series = result.log.perplexity
        (arrival,) = to_base([result], results) or [None]
        rows.append(
            {
                "system": result.system.name,
                "seed": result.seed,
                "updates": series.updates,
                "minutes": [round(value, 3) for value in series.minutes],
                "perplexity": {name: [round(v, 3) for v in values] for name, values in series.groups.items()},
                "sparsified_at": result.log.sparsified_at,
                "updates_to_base_best": round(arrival[0], 1) if arrival else None,
                "minutes_to_base_best": round(arrival[1], 3) if arrival else None,
                **({} if math.isnan(result.share_of_data) else {"share_of_data": result.share_of_data / 100}),
                "scores": {key: result.scores[key] for key in ("averages", "pairs") if key in result.scores},
                **result.finished,
            }
        )
    return rows


def write_report(
    results: Sequence[RunResult], name: str, setting: Setting, stem: Path, sections: Sequence[str] = ()
) -> None:
    """Write `stem`.json, `stem`.md, `stem`_updates.png and `stem`_minutes.png.

    Args:
        results: of all systems and seeds.
        name: of the comparison.
        setting: that they share.
        stem: path without suffix.
        sections: further lines of Markdown, before the table of perplexities.
    """
    by_system = [
        [result for result in results if result.system.name == system]
        for system in dict.fromkeys(result.system.name for result in results)
    ]
    write_text(stem.with_suffix(".json"), json.dumps(numbers(results), indent=1, ensure_ascii=False) + "\n")
    means = [_rows_of(mean_run(group)) for group in by_system]
    for over in ("updates", "minutes"):
        save(perplexity(means, over, start=START), stem.with_name(f"{stem.name}_{over}.png"))
    write_text(stem.with_suffix(".md"), markdown(by_system, name, setting, stem.name, sections))


def markdown(
    by_system: Sequence[Sequence[RunResult]], name: str, setting: Setting, stem: str, sections: Sequence[str] = ()
) -> str:
    """The report: what was run, three tables, two pictures, the commands."""
    everything = [result for group in by_system for result in group]
    seeds = sorted({result.seed for result in everything})
    lines = [
        f"# Training compared: {name}",
        "",
        f"Data: {setting.data}.",
        "",
        f"Every run: {setting.budget}; seeds "
        f"{', '.join(map(str, seeds))}. Values are means over seeds ± their standard deviation, in parentheses each "
        "seed's. " + _surroundings(everything),
        "",
        *sections,
        "## Validation perplexity (best of the run)",
        "",
        _perplexity_table(by_system, everything),
        "",
        *([TO_BASE, ""] if any(result.system.name == BASE for result in everything) else []),
        f"![perplexity over updates]({stem}_updates.png)",
        "",
        f"![perplexity over minutes]({stem}_minutes.png)",
    ]
    if any(result.scores for result in everything):
        lines += ["", "## Test sets (best checkpoint)", "", _score_table(by_system), "", *_signatures(everything)]
    lines += ["", "## Commands", "", _setting_sentence(setting), "", "```", *_commands(by_system), "```"]
    return "\n".join(lines) + "\n"


def _perplexity_table(by_system: Sequence[Sequence[RunResult]], everything: Sequence[RunResult]) -> str:
    groups = [group for group in GROUPS if any(group in r.log.perplexity.groups for r in everything)]
    with_base = any(result.system.name == BASE for result in everything)
    of_base = ["updates to BASE's best", "minutes to BASE's best"] if with_base else []
    with_shares = not all(math.isnan(result.share_of_data) for result in everything)
    head = ["system", "updates", *groups, *of_base, *(["% of the data"] if with_shares else [])]
    rows = []
    for results in by_system:
        arrivals = to_base(results, everything)
        cells = [_cell([r.log.perplexity.updates[-1] for r in results], 0)]
        cells += [_cell([result.best(group) for result in results], 2, each=group == ALL) for group in groups]
        for i in (0, 1) if with_base else ():
            cells.append(_cell([arrival[i] if arrival else math.nan for arrival in arrivals], i, each=True))
        cells += [_cell([result.share_of_data for result in results], 1)] if with_shares else []
        rows.append([results[0].system.title, *cells])
    return markdown_table(head, rows)


def _score_table(by_system: Sequence[Sequence[RunResult]]) -> str:
    groups = [group for group in GROUPS if any(group in r.scores.get("averages", {}) for rs in by_system for r in rs)]
    head = ["system", *(f"{title} {group}" for title in METRICS.values() for group in groups)]
    rows = []
    for results in by_system:
        cells = [
            _cell([r.score(metric, group) for r in results], 1 if group != ALL else 2, each=group == ALL)
            for metric in METRICS
            for group in groups
        ]
        rows.append([results[0].system.title, *cells])
    return markdown_table(head, rows)


def _cell(values: Sequence[float], digits: int, each: bool = False) -> str:
    """The mean of several seeds' values and their standard deviation, of counts the mean alone, with all of them in
    parentheses if asked; a dash stands for one without value."""
    texts = [NONE if math.isnan(value) else f"{value:,.{digits}f}" for value in values]
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return NONE
    deviation = f" ±{stdev(known):.{digits}f}" if digits and len(known) > 1 else ""
    mean = f"{fmean(known):,.{digits}f}{deviation}" if len(known) == len(values) else NONE
    return f"{mean} ({', '.join(texts)})" if each and len(values) > 1 else mean


def _surroundings(everything: Sequence[RunResult]) -> str:
    """Hardware, versions and commits, each once."""
    finished = [result.finished for result in everything]
    commits = ", ".join(dict.fromkeys(info["commit"] for info in finished))
    hardware = ", ".join(dict.fromkeys(info["hardware"] for info in finished))
    versions = ", ".join(f"{name} {number}" for name, number in finished[0]["versions"].items())
    return f"Hardware: {hardware}. Versions: {versions}. Commit: {commits}."


def _setting_sentence(setting: Setting) -> str:
    where = "every second block" if setting.expert_interval == 2 else "every block"
    epochs = f"the {setting.expected_epochs} virtual epochs that BASE was expected to make"
    duration = "all updates" if setting.updates else epochs
    return (
        f"Where a row says nothing else: {setting.layers}+{setting.layers} blocks of {setting.width} (inner "
        f"{setting.inner}), {setting.num_experts} experts in {where}, temperature {TEMPERATURE}; heating with "
        f"k = {setting.heating_coefficient:g} over {duration}; dense for {setting.dense_updates()} of about "
        f"{setting.expected_updates} updates. Seed 1 of each "
        "system, started in the repository's root with `OMP_NUM_THREADS=1`; the other seeds differ in `--seed` alone:"
    )


def _commands(by_system: Sequence[Sequence[RunResult]]) -> list[str]:
    commands = [shlex.join(results[0].finished["command"]) for results in by_system]
    score = next((r.finished["score_command"] for rs in by_system for r in rs if "score_command" in r.finished), None)
    return commands + ([shlex.join(score)] if score else [])


def _signatures(everything: Sequence[RunResult]) -> list[str]:
    found: dict[str, None] = {}
    for result in everything:
        for pair in result.scores.get("pairs", {}).values():
            found[f"- BLEU `{pair['bleu_signature']}`"] = None
            found[f"- chrF++ `{pair['chrf_signature']}`"] = None
    return sorted(found)


def _rows_of(run: Run) -> rows.Run:
    """The curves of a run as rows, which charts are made of."""
    series = run.perplexity
    unknown = np.full(len(series.updates), np.nan)
    moments = rows.Moments(np.array(series.updates, float), np.array(series.minutes), unknown, unknown)
    found = [
        rows.Row(run.name, "all" if name == ALL else "tier", "ppl", moments, np.array(values), name)
        for name, values in series.groups.items()
    ]
    sparsified = [] if run.sparsified_at is None else [(run.sparsified_at, None)]
    return rows.Run(run.name, [], found, sparsified=sparsified)
