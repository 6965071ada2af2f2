"""Published figures (`published.yaml`), to stand beside a run's own."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import yaml

from fairseq_mtmoe.analysis.score_files import CA_MTL, Scores

TABLES = Path(__file__).with_name("published.yaml")


@dataclass(frozen=True)
class PublishedRow:
    """What a paper reports of one system; `published.yaml` says what the fields are.

    Attributes:
        conditional: the parts that adapt to tasks, as `--conditional` names them, in any order; empty: none.
        figures: of each task by its name in the table of tasks, in percent, of the metric that the row has there.
        further: by another metric, of some tasks.
        averages: over groups of tasks, and over all of these, where the paper has no figure for each task.
    """

    system: str
    source: str
    encoder: str
    sizes: Mapping[str, int]
    subset: str
    model: str
    conditional: frozenset[str]
    single_task: bool
    remark: str
    figures: Mapping[str, float]
    averages: Mapping[str, float]
    further: Mapping[str, Mapping[str, float]]

    @property
    def note(self) -> str:
        """Where the figures are from, in a sentence."""
        return f"Paper: {self.source}; {self.remark}. Averages are over the tasks shown."

    @property
    def title(self) -> str:
        """The system and its encoder, for a column's head or a row's."""
        return f"{self.system}, {self.encoder} (paper)"

    def mean_of(self, figures: Iterable[tuple[str, str]]) -> str:
        """The cell of the mean over tasks by the metrics beside them, `""` for their own; empty if one is missing."""
        known = [self.further.get(metric, {}).get(task) if metric else self.figures.get(task)
                 for task, metric in figures]  # fmt: skip
        found = [figure for figure in known if figure is not None]
        return f"{fmean(found):.1f}" if found and len(found) == len(known) else ""

    def average(self, scores: Scores, name: str) -> str:
        """The cell of an average; CA-MTL's own are of the figures that it counts.

        An average that the paper prints stands where all that it has averages of are shown.
        """
        group = name.removesuffix(CA_MTL)
        printed = self.averages.get(group) if self.averages.keys() <= scores.groups.keys() else None
        cell = "" if printed is None else f"{printed:.1f}"
        if name == group:
            is_theirs = any(row.task == name + CA_MTL for row in scores.averages)
            return self.mean_of((task, "") for task in scores.groups[name]) or ("" if is_theirs else cell)
        return self.mean_of(counted_metrics(scores, scores.groups[group])) or cell


def counted_metrics(scores: Scores, tasks: Iterable[str]) -> list[tuple[str, str]]:
    """Task and metric of what CA-MTL's average counts; no metric where it is the task's own."""
    counted = scores.counted(tasks)
    return [(row.task, "" if row.metric == scores.own[row.task].metric else row.metric) for row in counted]


@functools.cache
def published_rows() -> tuple[PublishedRow, ...]:
    """All rows, in the order of the file."""
    tables = yaml.safe_load(TABLES.read_text(encoding="utf-8"))
    return tuple(
        PublishedRow(
            system, table["source"], table["encoder"], table["sizes"], table["subset"], row["model"],
            _parts(row.get("conditional")), row.get("single_task", False), table["remark"], row["figures"],
            row.get("averages", {}), row.get("further", {}),
        )
        for table in tables
        for system, row in table["rows"].items()
    )  # fmt: skip


def published_row(scores: Scores) -> PublishedRow | None:
    """The row of the same system with an encoder of the same sizes on the same split, if it has one of the tasks.

    Settings say with which `model`, what of it is `conditional`, `encoder`, `trained_tasks` and `subset` scores were
    made, and by `finetune_from_model` the checkpoint of other tasks that the training began with, if it did.
    """
    settings = scores.settings
    model, trained = str(settings.get("model")), settings.get("trained_tasks")
    is_single = isinstance(trained, list) and len(trained) == 1 and not settings.get("finetune_from_model")
    kind = (is_single, _parts(settings.get("conditional")), settings.get("encoder"), settings.get("subset"))
    for row in published_rows():
        same_model = model == row.model or model.startswith(f"{row.model}_")  # with a size's name
        same_kind = (row.single_task, row.conditional, row.sizes, row.subset) == kind
        if same_model and same_kind and not row.figures.keys().isdisjoint(scores.own):
            return row
    return None


def _parts(conditional: object) -> frozenset[str]:
    """Of a comma-separated list; `none` is none of them."""
    return frozenset(str(conditional or "").split(",")) - {"", "none"}
