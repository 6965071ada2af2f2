"""Published figures (`published.yaml`), to stand beside a run's own."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import yaml

TABLES = Path(__file__).with_name("published.yaml")


@dataclass(frozen=True)
class PublishedRow:
    """What a paper reports of one system.

    Attributes:
        system: as the paper calls it.
        source: the paper, and its table.
        encoder: as the paper calls it.
        sizes: of the encoder, `layers` and `width`.
        subset: of the data.
        model: the architecture here.
        conditional: the parts that adapt to tasks, as `--conditional` names them, in any order; empty: none.
        single_task: whether each figure is of a model that was trained on this task and nothing else.
        remark: what else is to be known of the figures.
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

    def mean_of(self, tasks: Sequence[str]) -> str:
        """The cell of the mean over these tasks; empty if the paper has not all of them."""
        known = [self.figures[task] for task in tasks if task in self.figures]
        return f"{fmean(known):.1f}" if known and len(known) == len(tasks) else ""

    def mean_of_figures(self, figures: Sequence[tuple[str, str, bool]]) -> str:
        """Return the cell of the mean over tasks by the metrics beside them; empty if the paper has not all of them.

        Args:
            figures: task, metric, and whether the task's own figures are by this metric.
        """
        known = [
            self.further.get(metric, {}).get(task, self.figures.get(task) if is_own else None)
            for task, metric, is_own in figures
        ]
        found = [figure for figure in known if figure is not None]
        return f"{fmean(found):.1f}" if found and len(found) == len(known) else ""

    def average(self, name: str, groups: Collection[str]) -> str:
        """The cell of a group whose average the paper has, if all that it has averages of are shown; else empty."""
        return f"{self.averages[name]:.1f}" if name in self.averages and self.averages.keys() <= set(groups) else ""


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


def published_row(settings: Mapping[str, object], tasks: Iterable[str]) -> PublishedRow | None:
    """The row of the same system with an encoder of the same sizes on the same split; None if there is none, or if it
    has no figure for any of the tasks.

    Args:
        settings: with which scores were made: `model`, what of it is `conditional`, `encoder`, `trained_tasks`,
            `subset`, and `finetune_from_model`, the checkpoint of other tasks that the training began with, if it did.
        tasks: that were scored.
    """
    model, trained = str(settings.get("model")), settings.get("trained_tasks")
    is_single = isinstance(trained, list) and len(trained) == 1 and not settings.get("finetune_from_model")
    kind = (is_single, _parts(settings.get("conditional")), settings.get("encoder"), settings.get("subset"))
    for row in published_rows():
        same_model = model == row.model or model.startswith(f"{row.model}_")  # with a size's name
        same_kind = (row.single_task, row.conditional, row.sizes, row.subset) == kind
        if same_model and same_kind and not row.figures.keys().isdisjoint(tasks):
            return row
    return None


def _parts(conditional: object) -> frozenset[str]:
    """Of a comma-separated list; `none` is none of them."""
    return frozenset(str(conditional or "").split(",")) - {"", "none"}
