"""Figures of finished runs of studies, and `results/results.csv`, the table of all of them: a line for each figure."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from statistics import fmean
from typing import Any

from study_plan import Study

from fairseq_mtmoe.core.files import read_json, write_text
from fairseq_mtmoe.report import run_log
from fairseq_mtmoe.report.rows import Row, read_run

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "results.csv"
FINISHED, ENTRY = "finished.json", "entry.json"
NO_SEED = "0"  # what the table has as seed of runs of the sweep of learning rates, and of costs
COLUMNS = (
    "study", "row", "seed", "task", "tier", "metric", "update", "value", "n", "commit", "version", "processor", "date",
)  # fmt: skip
PERPLEXITY, SCORE = "valid perplexity", "score"
PARAMETERS, MULTIPLICATIONS = "parameters", "multiplications per token"
STEP = ("step / dense", "step / dense, first quartile", "step / dense, third quartile")
OF_GATES = {"blend": "gate blend, %", "moved": "gate movement", "changed": "tokens with another expert, %"}
"""What the table calls the figures of gates in a run log: means over layers, of absolute values."""


def perplexities(run: Path) -> dict[str, Row]:
    """The validation perplexity of each tier, and of all pairs, in a run's log."""
    return {row.task: row for row in read_run(run).of("tier", "all", metric="ppl")}


def rated_row(row: str, rate: str) -> str:
    """The name in the table of a row's run with one of the learning rates of the sweep."""
    return f"{row}, rate {rate}"


def figures_of(study: str, run: Path) -> list[dict[str, str]]:
    """The lines of a finished run: perplexity at every validation, scores of each pair and group, entry's figures."""
    facts, rows = read_json(run / FINISHED), []
    is_part, is_trained = bool(facts.get("task")), (run / "train.out").exists()  # of a row with a run for each pair
    if is_trained and not is_part:
        for tier, found in perplexities(run).items():
            for update, value in zip(found.update.astype(int), found.value, strict=True):
                rows.append({"tier": tier, "metric": PERPLEXITY, "update": update, "value": f"{value:.4f}"})
    for folder in sorted(run.glob("scores*")):
        of_set = folder.name.removeprefix("scores").replace("-", ", ", 1)
        found_scores = _scores(read_json(folder / "scores.json"), of_set)
        rows += [row for row in found_scores if "task" in row or of_set or not is_part]
    if (run / ENTRY).exists():
        for what, of_pairs in read_json(run / ENTRY).items():
            for pair, value in of_pairs.items():
                place = {"tier": "all"} if pair == "all" else {"task": pair}
                rows.append({**place, "metric": f"perplexity, {what}", "value": f"{value:.4f}"})
    return lines_of_run(study, facts, rows)


def task_scores(study: str, run: Path) -> list[dict[str, str]]:
    """The lines of a finished run on a benchmark's tasks: a score, in percent, for each task that is scored."""
    scores = read_json(run / "scores" / "scores.json")["tasks"]
    of_tasks = [{"task": task, "metric": SCORE, "n": one["examples"], "value": f"{one['score']:.4f}"}
                for task, one in scores.items()]  # fmt: skip
    return lines_of_run(study, read_json(run / FINISHED), of_tasks)


def gate_figures(study: str, run: Path) -> list[dict[str, str]]:
    """The lines of a finished run on a benchmark's tasks that say how far its gates came, if it has any."""
    if not (run / run_log.FILE_NAME).exists():
        return []
    gates, found = read_run(run).of("gates"), []
    tasks = list(read_json(run / "scores" / "scores.json")["tasks"])
    place = {"tier": "all"} if len(tasks) > 1 else {"task": tasks[0]}  # a row with a run for each task
    for metric, name in OF_GATES.items():
        layers = [abs(row.figure) * (100 if "%" in name else 1) for row in gates if row.metric == metric]
        if layers:
            found.append({**place, "metric": name, "n": len(layers), "value": f"{fmean(layers):.4f}"})
    return lines_of_run(study, read_json(run / FINISHED), found)


def lines_of_run(study: str, facts: dict[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return lines of the table: what is not a row's own is the run's."""
    same = {"study": study, **{key: facts.get(key, "") for key in ("row", "seed", "tier", "update", *COLUMNS[-4:])}}
    return [{column: str({**same, **row}.get(column, "")) for column in COLUMNS} for row in rows]


def means_of_tasks(study: Study, lines: list[dict[str, str]]) -> list[dict[str, str]]:
    """Lines with each row's mean over all tasks and over each of the study's groups, of seeds that have all of them."""
    groups = {**({"all": study.tasks} if study.tasks else {}), **study.groups}
    by_run: dict[tuple[str, ...], dict[str, dict[str, str]]] = {}
    for line in lines:
        if line["metric"] in (SCORE, "bleu", "chrf") and line["task"]:
            by_run.setdefault((line["row"], line["seed"], line["metric"]), {})[line["task"]] = line
    found = []
    for of_run in by_run.values():
        for group, tasks in groups.items():
            if of_run.keys() >= set(tasks):
                mean = fmean(float(of_run[task]["value"]) for task in tasks)
                of_group = {"task": "", "tier": group, "n": str(len(tasks)), "value": f"{mean:.4f}"}
                found.append({**of_run[tasks[0]], **of_group})
    return found


def _scores(scores: dict[str, Any], of_set: str) -> list[dict[str, Any]]:
    rows = []
    for metric in ("bleu", "chrf"):
        same = {"metric": f"{metric}{of_set}"}
        for pair, one in scores["pairs"].items():
            value = f"{one[metric]:.4f}"
            rows.append({**same, "task": pair, "tier": one["tier"], "n": one["sentences"], "value": value})
        for tier, one in scores["averages"].items():
            rows.append({**same, "tier": tier, "n": one["pairs"], "value": f"{one[metric]:.4f}"})
    return rows


def write_results(path: Path, lines: list[dict[str, str]]) -> None:
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(lines)
    write_text(path, text.getvalue())
