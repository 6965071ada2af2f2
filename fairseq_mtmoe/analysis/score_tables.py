"""Scores as a table, Markdown, LaTeX and JSON, beside figures of `published.yaml`."""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from fairseq_mtmoe.analysis.score_files import CA_MTL, JSON_FILE, LATEX_FILE, MAJORITY, MARKDOWN_FILE, TITLES, Scores
from fairseq_mtmoe.analysis.scores import FIELDS
from fairseq_mtmoe.analysis.tables import Table, as_json, bullets, with_error
from fairseq_mtmoe.io.files import write_text

NOTE = (
    "±: standard error over the test examples, not over seeds; from the variance for means over examples, by the "
    "bootstrap for other metrics."
)
MAJORITY_NOTE = (
    "majority: score of the one label for every example that scores best; for accuracy, the most frequent label."
)
CA_MTL_NOTE = "(CA-MTL): every set counts once, by its F1 if it has one."


TABLES = Path(__file__).with_name("published.yaml")


@dataclass(frozen=True)
class PublishedRow:
    """A paper's figures of one system; `published.yaml` explains the fields."""

    system: str
    source: str
    encoder: str
    sizes: Mapping[str, int]
    subset: str
    remark: str
    model: str
    figures: Mapping[str, float]
    conditional: str = ""
    single_task: bool = False
    averages: Mapping[str, float] = field(default_factory=dict)
    further: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def note(self) -> str:
        """A sentence on the figures' source."""
        return f"Paper: {self.source}; {self.remark}. Averages are over the tasks shown."

    @property
    def title(self) -> str:
        """The system and its encoder, for the head of a row or column."""
        return f"{self.system}, {self.encoder} (paper)"

    def mean_of(self, figures: Iterable[tuple[str, str]]) -> str:
        """Return the cell of a mean over (task, metric); `""` is a task's main metric.

        The cell is empty if a figure is missing.
        """
        known = [self.further.get(metric, {}).get(task) if metric else self.figures.get(task)
                 for task, metric in figures]  # fmt: skip
        found = [figure for figure in known if figure is not None]
        return f"{fmean(found):.1f}" if found and len(found) == len(known) else ""

    def average(self, scores: Scores, name: str) -> str:
        """Return the cell of an average.

        A printed average is used if the scores have all groups that the paper averages.
        """
        group = name.removesuffix(CA_MTL)
        printed = self.averages.get(group) if self.averages.keys() <= scores.groups.keys() else None
        cell = "" if printed is None else f"{printed:.1f}"
        if name == group:
            is_theirs = any(row.task == name + CA_MTL for row in scores.averages)
            return self.mean_of((task, "") for task in scores.groups[name]) or ("" if is_theirs else cell)
        return self.mean_of(counted_metrics(scores, scores.groups[group])) or cell


def counted_metrics(scores: Scores, tasks: Iterable[str]) -> list[tuple[str, str]]:
    """Return the (task, metric) pairs of CA-MTL's average; `""` is the main metric."""
    counted = scores.counted(tasks)
    return [(row.task, "" if row.metric == scores.own[row.task].metric else row.metric) for row in counted]


@functools.cache
def published_rows() -> tuple[PublishedRow, ...]:
    """Return all published rows, in the file's order."""
    tables = yaml.safe_load(TABLES.read_text(encoding="utf-8"))
    every = [(table, system, row) for table in tables for system, row in table.pop("rows").items()]
    return tuple(PublishedRow(system, **table, **row) for table, system, row in every)


def published_row(scores: Scores) -> PublishedRow | None:
    """Return the published row of the same system, encoder sizes and split, or None.

    It has at least one of the tasks. A model with `finetune_from_model` is no single-task model.
    """
    settings = scores.settings
    model, trained = str(settings.get("model")), settings.get("trained_tasks")
    is_single = isinstance(trained, list) and len(trained) == 1 and not settings.get("finetune_from_model")
    kind = (is_single, _parts(settings.get("conditional")), settings.get("encoder"), settings.get("subset"))
    for row in published_rows():
        same_model = model == row.model or model.startswith(f"{row.model}_")  # with a size's name
        same_kind = (row.single_task, _parts(row.conditional), row.sizes, row.subset) == kind
        if same_model and same_kind and not row.figures.keys().isdisjoint(scores.own):
            return row
    return None


def _parts(conditional: object) -> frozenset[str]:
    """Return the parts in a comma-separated list; `none` is empty."""
    return frozenset(str(conditional or "").split(",")) - {"", "none"}


def score_table(scores: Scores, published: PublishedRow | None = None) -> Table:
    """Return a row per pair, or per task and set, then averages; tasks beside a paper."""
    return _pair_table(scores) if scores.pairs else _task_table(scores, published)


def _pair_table(scores: Scores) -> Table:
    metrics = [row.metric for row in scores.averages if row.task == "all"]
    figures = {(row.task, row.metric): row.figure for row in (*scores.rows, *scores.averages)}

    def cells(name: str) -> list[str]:
        return [f"{figures[name, metric]:.{digits_of(metric)}f}" for metric in metrics]

    rows = [[pair, of.tier, f"{of.sentences}", *cells(pair)] for pair, of in scores.pairs.items()]
    below = [[name, counted("pair", len(pairs)), "", *cells(name)] for name, pairs in scores.groups.items()]
    return Table(["pair", "tier", "sentences", *metrics], rows, below, texts=2)


def digits_of(metric: str) -> int:
    """Return decimals: 2 for sacreBLEU's metrics (0 to 100), 4 for others (0 to 1)."""
    return 2 if metric in FIELDS else 4


def counted(what: str, number: int) -> str:
    """Return a count in words, such as `1 pair`, `2 pairs`."""
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
    """Return the notes below a benchmark's table."""
    found = [NOTE, *([MAJORITY_NOTE] if any(row.run == MAJORITY for row in scores.rows) else [])]
    found += [CA_MTL_NOTE] if any(row.task.endswith(CA_MTL) for row in scores.averages) else []
    return [*found, *scores.remarks, *([published.note] if published else [])]


def to_json(scores: Scores) -> str:
    """Return `{"settings", "pairs" or "tasks", "averages"}` in JSON."""
    averages: dict[str, dict[str, Any]] = {}
    for row in scores.averages:
        if scores.tasks:
            averages[row.task] = {"tasks": row.n, "score": row.figure, "standard_error": row.stderr}
        else:
            of = averages.setdefault(row.task, {"pairs": row.n})
            field, *_ = FIELDS.get(row.metric, ("",))
            (of if field else of.setdefault("metrics", {}))[field or row.metric] = row.figure
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
    """Return the table, notes, settings and signatures in Markdown."""
    below = [] if scores.pairs else [*notes(scores, published), ""]
    lines = [score_table(scores, published).in_markdown(), "", *below, *bullets(scores.settings)]
    if scores.pairs:
        lines += [f"- `{signature}`{pairs}" for signature, pairs in scores.signatures.items()]
        lines += [f"- {remark}" for remark in scores.remarks]
    return "\n".join(lines) + "\n"


def to_latex(scores: Scores) -> str:
    """Return the table of pairs, with the signatures as comments."""
    comments = [f"% {signature}{pairs}\n" for signature, pairs in scores.signatures.items()]
    return "".join([*comments, score_table(scores).in_latex()])


def remove_scores(folder: Path) -> None:
    """Remove a folder's scores, if it has some, before others are written."""
    for name in (JSON_FILE, MARKDOWN_FILE, LATEX_FILE):
        (folder / name).unlink(missing_ok=True)


def write_scores(folder: Path, scores: Scores, published: PublishedRow | None = None) -> None:
    """Write the files, the JSON last: where it is, all are complete."""
    remove_scores(folder)
    if scores.pairs:
        write_text(folder / LATEX_FILE, to_latex(scores))
    write_text(folder / MARKDOWN_FILE, to_markdown(scores, published))
    write_text(folder / JSON_FILE, to_json(scores))
