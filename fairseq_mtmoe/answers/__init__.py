"""What tasks want to know of an example: one small class for each kind of answer.

A kind says which head a task has and, of the head's numbers, the loss, the prediction and what metrics take; see
`answer.py`. Whoever needs one of these asks the class, and nobody else tells kinds apart.
"""

from collections.abc import Mapping

from fairseq_mtmoe.answers.answer import Answer, Predicted, Uncertainty, flattened
from fairseq_mtmoe.answers.choices import Classification, Ranking, Regression, WordPair
from fairseq_mtmoe.answers.span import Span, WordLabels
from fairseq_mtmoe.data.nlu.table import Kind, TaskRow

__all__ = [
    "Answer",
    "Classification",
    "Predicted",
    "Ranking",
    "Regression",
    "Span",
    "Uncertainty",
    "WordLabels",
    "WordPair",
    "answer_of",
    "flattened",
]

KINDS: Mapping[Kind, type[Answer]] = {
    Kind.classification: Classification,
    Kind.regression: Regression,
    Kind.ranking: Ranking,
    Kind.word_pair: WordPair,
    Kind.span: Span,
    Kind.word_labels: WordLabels,
}


def answer_of(row: TaskRow) -> Answer:
    """What a task of the table wants to know."""
    return KINDS[row.kind].of(row)
