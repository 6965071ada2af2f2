"""Scores as a table, Markdown, LaTeX and JSON."""

from collections.abc import Sequence
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


FLOOR = 1.0
"""A system translates nothing below this score of sacreBLEU's metrics, from 0 to 100."""


def untranslated_note(compared: Sequence[Scores]) -> list[str]:
    """Return a warning of pairs that no compared system translates, if there are some."""
    pairs = []
    for pair in compared[0].pairs:
        if all(scores.main[pair].figure < FLOOR for scores in compared):
            pairs.append(pair)
    if not pairs:
        return []
    return [
        f"No system translates {', '.join(pairs)}: all have less than {FLOOR:g} BLEU. Their "
        "differences mean nothing, in chrF++ and other metrics, too."
    ]


def score_table(scores: Scores) -> Table:
    """Return a row per pair, or per task and set, then averages."""
    return _pair_table(scores) if scores.pairs else _task_table(scores)


def _pair_table(scores: Scores) -> Table:
    figures = {}
    for row in (*scores.rows, *scores.averages):
        figures[row.task, row.metric] = f"{row.figure:.{digits_of(row.metric)}f}"
    metrics = [metric for name, metric in figures if name == ALL]
    rows = []
    for pair, score in scores.pairs.items():
        rows.append([pair, score.tier, str(score.sentences)])
    means = []
    for group, pairs in scores.groups.items():
        means.append([group, counted("pair", len(pairs)), ""])
    for cells in (*rows, *means):
        cells += [figures[cells[0], metric] for metric in metrics]
    return Table(["pair", "tier", "sentences", *metrics], rows, means, texts=2)


def digits_of(metric: str) -> int:
    """Return decimals: 2 for scores from 0 to 100, 4 for others (0 to 1)."""
    return 2 if metric in (*FIELDS, "score") else 4


def counted(what: str, number: int) -> str:
    """Return a count in words, such as `1 pair`, `2 pairs`."""
    return f"{number:,} {what}" + "s" * (number != 1)


def _task_table(scores: Scores) -> Table:
    majority = {}
    for row in scores.rows:
        if row.run == MAJORITY:
            majority[row.task, row.subset, row.metric] = f"{row.figure:.2f}"
    rows = []
    for row in scores.rows:
        is_main = row.metric == scores.main[row.task].metric
        has_sets = len(scores.tasks[row.task]["sets"]) > 1
        if row.run == MAJORITY:
            continue
        if row.group == "task" and is_main:
            cells = [scores.title(row.task), row.metric, f"{row.n:,}"]
        elif row.group == "task":
            cells = ["", row.metric, ""]
        elif is_main and has_sets:
            cells = [f"· {row.subset}", "", f"{row.n:,}"]
        else:
            continue
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
    return [NOTE, *[MAJORITY_NOTE] * bool(scores.majority), *scores.remarks]


def to_json(scores: Scores) -> str:
    """Return `{"settings", "pairs" or "tasks", "averages"}` in JSON."""
    content: dict[str, Any] = {"settings": scores.settings}
    if scores.pairs:
        content["pairs"] = {pair: score.fields for pair, score in scores.pairs.items()}
        return as_json({**content, "averages": _averages_of_pairs(scores)})
    tasks = {}
    for task, record in scores.tasks.items():
        main = scores.main[task]
        tasks[task] = {
            "title": record["title"],
            "metric": record["metric"],
            "small": record["small"],
            "group": record.get("group", ""),
            "score": main.figure,
            "standard_error": main.stderr,
            "examples": main.n,
            "sets": record["sets"],
        }
    averages = {}
    for row in scores.averages:
        figures = {"score": row.figure, "standard_error": row.stderr}
        averages[row.task] = {"tasks": row.n, **figures}
    return as_json({**content, "tasks": tasks, "averages": averages})


def _averages_of_pairs(scores: Scores) -> dict[str, dict[str, Any]]:
    averages: dict[str, dict[str, Any]] = {}
    for row in scores.averages:
        figures = averages.setdefault(row.task, {"pairs": row.n})
        if row.metric in FIELDS:
            figures[FIELDS[row.metric][0]] = row.figure
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
        for signature, pairs in scores.signatures.items():
            lines.append(f"- `{signature}`{pairs}")
        for remark in scores.remarks:
            lines.append(f"- {remark}")
    return document(parts, lines)


def to_latex(scores: Scores) -> str:
    """Return the table of pairs, with the signatures as comments."""
    lines = [f"% {signature}{pairs}" for signature, pairs in scores.signatures.items()]
    return "\n".join([*lines, score_table(scores).in_latex()])


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
