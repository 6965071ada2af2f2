"""Scores as a table, Markdown, LaTeX and JSON: the files that `mtmoe evaluate` and `fairseq-validate` leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairseq_mtmoe.analysis.published import PublishedRow
from fairseq_mtmoe.analysis.rows import Row
from fairseq_mtmoe.analysis.score_files import CA_MTL, JSON_FILE, LATEX_FILE, MAJORITY, MARKDOWN_FILE, TITLES, Scores
from fairseq_mtmoe.analysis.scores import FIELDS
from fairseq_mtmoe.analysis.tables import Table, as_json, bullets, with_error
from fairseq_mtmoe.io.files import write_text

NOTE = (
    "±: standard error from the number of examples, not from other seeds; of means over examples from the "
    "variance, of other metrics by the bootstrap."
)
MAJORITY_NOTE = (
    "majority: the score of one label for every example, the label with the best score: for accuracy, the most "
    "frequent one."
)
CA_MTL_NOTE = "(CA-MTL): every set counts once, by its F1 where it has one."


def score_table(scores: Scores, published: PublishedRow | None = None) -> Table:
    """A row for each pair, or each task and set, and the averages; beside tasks stand a paper's figures."""
    return _pair_table(scores) if scores.pairs else _task_table(scores, published)


def _pair_table(scores: Scores) -> Table:
    metrics = [row.metric for row in scores.averages if row.task == "all"]

    def cells(rows: list[Row]) -> list[str]:
        values = {row.metric: row.figure for row in rows}
        return [f"{values[metric]:.{digits_of(metric)}f}" for metric in metrics]

    rows = [
        [pair, of.tier, f"{of.sentences}", *cells(scores.of("pair", task=pair))] for pair, of in scores.pairs.items()
    ]
    below = [
        [name, counted("pair", len(pairs)), "", *cells([row for row in scores.averages if row.task == name])]
        for name, pairs in scores.groups.items()
    ]
    return Table(["pair", "tier", "sentences", *metrics], rows, below, texts=2)


def digits_of(metric: str) -> int:
    """Places behind the point: sacreBLEU's metrics are from 0 to 100, others (COMET) from 0 to 1."""
    return 2 if metric in FIELDS else 4


def counted(what: str, number: int) -> str:
    """Such as `1 pair`, `2 pairs`."""
    return f"{number} {what}" + "s" * (number != 1)


def _task_table(scores: Scores, published: PublishedRow | None) -> Table:
    majority = {(row.task, row.subset, row.metric): f"{row.figure:.2f}" for row in scores.rows if row.run == MAJORITY}

    def line(title: str, metric: str, examples: str, number: str, of_majority: str, paper: str) -> list[str]:
        return [title, metric, examples, number, *([of_majority] if majority else []), *([paper] if published else [])]

    rows = []
    for row in scores.rows:
        own, number = scores.own[row.task], with_error(row.figure, row.stderr)
        has_sets = len(scores.tasks[row.task]["sets"]) > 1
        beside = majority.get((row.task, row.subset, row.metric), "")
        if row.run == MAJORITY or (row.group == "set" and not (has_sets and row.metric == own.metric)):
            continue
        paper = "" if published is None else published.mean_of([(row.task, "" if row is own else row.metric)])
        if row.group == "set":
            rows.append(line(f"· {row.subset}", "", f"{row.n:,}", number, beside, ""))
        elif row is own:
            rows.append(line(scores.title(row.task), row.metric, f"{row.n:,}", number, beside, paper))
        else:
            rows.append(line("", row.metric, "", number, beside, paper))
    below = [
        line(_title(row.task), counted("figure" if row.task.endswith(CA_MTL) else "task", row.n), "",
             with_error(row.figure, row.stderr), "", "" if published is None else published.average(scores, row.task))
        for row in scores.averages
    ]  # fmt: skip
    head = line("task", "metric", "examples", "score", MAJORITY, published.title if published else "")
    return Table(head, rows, below, texts=2)


def _title(name: str) -> str:
    group = name.removesuffix(CA_MTL)
    return TITLES.get(group, group) + name[len(group) :]


def notes(scores: Scores, published: PublishedRow | None = None) -> list[str]:
    """What stands below the table of a benchmark."""
    found = [NOTE, *([MAJORITY_NOTE] if any(row.run == MAJORITY for row in scores.rows) else [])]
    found += [CA_MTL_NOTE] if any(row.task.endswith(CA_MTL) for row in scores.averages) else []
    return [*found, *scores.remarks, *([published.note] if published else [])]


def to_json(scores: Scores) -> str:
    """`{"settings": {…}, "pairs": {"en-de": {…}} or "tasks": {"rte": {…}}, "averages": {"all": {…}}}`."""
    averages: dict[str, dict[str, Any]] = {}
    for row in scores.averages:
        if scores.tasks:
            averages[row.task] = {"tasks": row.n, "score": row.figure, "standard_error": row.stderr}
        else:
            of = averages.setdefault(row.task, {"pairs": row.n})
            field = FIELDS.get(row.metric)
            of.update(
                {field[0]: row.figure} if field else {"metrics": {**of.get("metrics", {}), row.metric: row.figure}}
            )
    if scores.pairs:
        pairs = {pair: score.fields for pair, score in scores.pairs.items()}
        return as_json({"settings": dict(scores.settings), "pairs": pairs, "averages": averages})
    tasks = {}
    for task, record in scores.tasks.items():
        own, parts = scores.own[task], ("title", "metric", "small", "group")
        whole = {"score": own.figure, "standard_error": own.stderr, "examples": own.n}
        tasks[task] = {**{name: record.get(name, "") for name in parts}, **whole, "sets": record["sets"]}
    return as_json({"settings": dict(scores.settings), "tasks": tasks, "averages": averages})


def to_markdown(scores: Scores, published: PublishedRow | None = None) -> str:
    """The table, what its signs mean, the settings and signatures."""
    below = [] if scores.pairs else [*notes(scores, published), ""]
    lines = [score_table(scores, published).in_markdown(), "", *below, *bullets(scores.settings)]
    if scores.pairs:
        lines += [f"- `{signature}`{pairs}" for signature, pairs in scores.signatures.items()]
        lines += [f"- {remark}" for remark in scores.remarks]
    return "\n".join(lines) + "\n"


def to_latex(scores: Scores) -> str:
    """The table of pairs, and the signatures as a comment."""
    return "".join(
        [*(f"% {signature}{pairs}\n" for signature, pairs in scores.signatures.items()), score_table(scores).in_latex()]
    )


def remove_scores(folder: Path) -> None:
    """Take away the scores in a folder, if it has some, before others come."""
    for name in (JSON_FILE, MARKDOWN_FILE, LATEX_FILE):
        (folder / name).unlink(missing_ok=True)


def write_scores(folder: Path, scores: Scores, published: PublishedRow | None = None) -> None:
    """Write the files, the JSON last: where it is, everything is."""
    remove_scores(folder)
    if scores.pairs:
        write_text(folder / LATEX_FILE, to_latex(scores))
    write_text(folder / MARKDOWN_FILE, to_markdown(scores, published))
    write_text(folder / JSON_FILE, to_json(scores))
