"""Scores as a table, Markdown, LaTeX and JSON."""

from pathlib import Path
from typing import Any

from fairseq_mtmoe.core.files import write_text
from fairseq_mtmoe.core.tables import Table, bullets, document, with_error
from fairseq_mtmoe.report.rows import ALL
from fairseq_mtmoe.report.run_log import as_json
from fairseq_mtmoe.report.score_files import (
    JSON_FILE,
    LATEX_FILE,
    MAJORITY,
    MARKDOWN_FILE,
    TITLES,
    Scores,
)
from fairseq_mtmoe.report.scores import FIELDS

NOTE = (
    "±: standard error over the test examples, not over seeds; from the variance for means over "
    "examples, by the bootstrap for other metrics."
)
MAJORITY_NOTE = (
    "majority: score of the one label for every example that scores best; for accuracy, the most "
    "frequent."
)


def score_table(scores: Scores) -> Table:
    """Return a row per pair, or per task and set, then averages."""
    return _pair_table(scores) if scores.pairs else _task_table(scores)


def _pair_table(scores: Scores) -> Table:
    figures = {}
    for row in (*scores.rows, *scores.averages):
        figures[row.task, row.metric] = f"{row.figure:.{digits_of(row.metric)}f}"
    metrics = [metric for name, metric in figures if name == ALL]
    rows = [[pair, score.tier, f"{score.sentences}"] for pair, score in scores.pairs.items()]
    means = [[group, counted("pair", len(pairs)), ""] for group, pairs in scores.groups.items()]
    for cells in (*rows, *means):
        cells += [figures[cells[0], metric] for metric in metrics]
    return Table(["pair", "tier", "sentences", *metrics], rows, means, texts=2)


def digits_of(metric: str) -> int:
    """Return decimals: 2 for sacreBLEU's metrics (0 to 100), 4 for others (0 to 1)."""
    return 2 if metric in FIELDS else 4


def counted(what: str, number: int) -> str:
    """Return a count in words, such as `1 pair`, `2 pairs`."""
    return f"{number} {what}" + "s" * (number != 1)


def _task_table(scores: Scores) -> Table:
    majority = {}
    for row in scores.rows:
        if row.run == MAJORITY:
            majority[row.task, row.subset, row.metric] = f"{row.figure:.2f}"
    rows = []
    for row in scores.rows:
        main_metric = scores.main[row.task].metric
        is_only_set = len(scores.tasks[row.task]["sets"]) == 1
        is_left_out = row.group == "set" and (is_only_set or row.metric != main_metric)
        if row.run == MAJORITY or is_left_out:
            continue
        cells = ["", row.metric, ""]
        if row.group == "set":
            cells = [f"· {row.subset}", "", f"{row.n:,}"]
        elif row.metric == main_metric:
            cells = [scores.title(row.task), row.metric, f"{row.n:,}"]
        label = majority.get((row.task, row.subset, row.metric), "")
        rows.append([*cells, with_error(row.figure, row.stderr), label])
    means = []
    for row in scores.averages:
        title = TITLES.get(row.task, row.task)
        means.append([title, counted("task", row.n), "", with_error(row.figure, row.stderr), ""])
    columns = ["task", "metric", "examples", "score", MAJORITY]
    if not majority:
        for cells in (columns, *rows, *means):
            del cells[-1]
    return Table(columns, rows, means, texts=2)


def notes(scores: Scores) -> list[str]:
    """Return the notes below a benchmark's table."""
    has_majority = any(row.run == MAJORITY for row in scores.rows)
    return [NOTE, *[MAJORITY_NOTE] * has_majority, *scores.remarks]


def to_json(scores: Scores) -> str:
    """Return `{"settings", "pairs" or "tasks", "averages"}` in JSON."""
    content: dict[str, Any] = {"settings": dict(scores.settings)}
    if scores.pairs:
        content["pairs"] = {pair: score.fields for pair, score in scores.pairs.items()}
        return as_json({**content, "averages": _averages_of_pairs(scores)})
    tasks = {}
    for task, record in scores.tasks.items():
        main = scores.main[task]
        tasks[task] = {
            **{name: record.get(name, "") for name in ("title", "metric", "small", "group")},
            "score": main.figure,
            "standard_error": main.stderr,
            "examples": main.n,
            "sets": record["sets"],
        }
    averages = {
        row.task: {"tasks": row.n, "score": row.figure, "standard_error": row.stderr}
        for row in scores.averages
    }
    return as_json({**content, "tasks": tasks, "averages": averages})


def _averages_of_pairs(scores: Scores) -> dict[str, dict[str, Any]]:
    averages: dict[str, dict[str, Any]] = {}
    for row in scores.averages:
        figures = averages.setdefault(row.task, {"pairs": row.n})
        if row.metric in FIELDS:
            name, _ = FIELDS[row.metric]
            figures[name] = row.figure
        else:
            figures.setdefault("metrics", {})[row.metric] = row.figure
    return averages


def to_markdown(scores: Scores) -> str:
    """Return the table, notes, settings and signatures in Markdown."""
    parts = [score_table(scores).in_markdown()]
    lines = bullets(scores.settings)
    if scores.tasks:
        parts.append("\n".join(notes(scores)))
    else:
        lines += [f"- `{signature}`{pairs}" for signature, pairs in scores.signatures.items()]
        lines += [f"- {remark}" for remark in scores.remarks]
    return document(parts, lines)


def to_latex(scores: Scores) -> str:
    """Return the table of pairs, with the signatures as comments."""
    comments = [f"% {signature}{pairs}\n" for signature, pairs in scores.signatures.items()]
    return "".join([*comments, score_table(scores).in_latex()])


def remove_scores(folder: Path) -> None:
    """Remove a folder's scores, if it has some, before others are written."""
    for name in (JSON_FILE, MARKDOWN_FILE, LATEX_FILE):
        (folder / name).unlink(missing_ok=True)


def write_scores(folder: Path, scores: Scores) -> None:
    """Write the files, the JSON last: where it is, all are complete."""
    remove_scores(folder)
    if scores.pairs:
        write_text(folder / LATEX_FILE, to_latex(scores))
    write_text(folder / MARKDOWN_FILE, to_markdown(scores))
    write_text(folder / JSON_FILE, to_json(scores))
