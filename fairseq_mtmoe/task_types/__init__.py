"""Task types: what a task of the table asks of an example, one small class for each kind.

A class has the size of the task's head and, from the head's numbers, the loss, the prediction and the columns of
metrics; see `task_type.py`. No other module tells kinds apart.
"""

from collections.abc import Mapping

from fairseq_mtmoe.data.nlu.table import Kind, TaskRow
from fairseq_mtmoe.task_types.choices import Classification, Ranking, Regression, WordPair
from fairseq_mtmoe.task_types.task_type import Predictions, TaskType, Uncertainty, flattened
from fairseq_mtmoe.task_types.tokens import Span, WordLabels

__all__ = [
    "Classification",
    "Predictions",
    "Ranking",
    "Regression",
    "Span",
    "TaskType",
    "Uncertainty",
    "WordLabels",
    "WordPair",
    "flattened",
    "task_type_of",
]

KINDS: Mapping[Kind, type[TaskType]] = {
    Kind.classification: Classification,
    Kind.regression: Regression,
    Kind.ranking: Ranking,
    Kind.word_pair: WordPair,
    Kind.span: Span,
    Kind.word_labels: WordLabels,
}


def task_type_of(row: TaskRow) -> TaskType:
    """Return the type of a task of the table."""
    return KINDS[row.kind].of(row)
