"""Task types, a class for each kind of task in the task table.

A type has a head's size, a loss, predictions and metrics.
"""

from collections.abc import Callable, Mapping

from fairseq_mtmoe.nlu.data.table import Kind, TaskRow
from fairseq_mtmoe.nlu.types.task_type import (
    Classification,
    Ranking,
    Regression,
    TaskType,
    WordPair,
)
from fairseq_mtmoe.nlu.types.tokens import Span, WordLabels

_OF_KIND: Mapping[Kind, Callable[[TaskRow], TaskType]] = {
    Kind.classification: lambda row: Classification(len(row.labels)),
    Kind.regression: lambda row: Regression(*row.bounds),
    # Labels are not compared as texts.
    Kind.ranking: lambda row: Ranking() if row.is_open else Ranking(("accuracy",)),
    Kind.word_pair: lambda row: WordPair(len(row.labels)),
    Kind.span: lambda row: Span(row.longest_answer),
    Kind.word_labels: lambda row: WordLabels(tuple(row.labels)),
}
_WITH_LABELS = (Kind.classification, Kind.word_pair, Kind.word_labels)


def labels_of_outputs(row: TaskRow) -> list[str]:
    """Return the labels of a head's outputs, in order; empty for other outputs."""
    return row.labels if row.kind in _WITH_LABELS else []


def task_type_of(row: TaskRow) -> TaskType:
    """Return the task type of a row of the task table."""
    return _OF_KIND[row.kind](row)
