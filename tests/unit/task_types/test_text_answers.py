"""What a model writes as an answer: which label it is, what counts as none, and what metrics make of it."""

import dataclasses

import numpy as np
import pytest

from fairseq_mtmoe.data.nlu.reading import Example
from fairseq_mtmoe.data.nlu.table import load_tables
from fairseq_mtmoe.data.nlu.text_split import Pieces, TextSplit
from fairseq_mtmoe.data.nlu.token_runs import TokenRuns
from fairseq_mtmoe.task_types.task_type import Predictions
from fairseq_mtmoe.task_types.text import NONE, TextTaskType, names_the_same
from fairseq_mtmoe.tasks._benchmark.metrics import score
from tests.helpers.refused import refused
from tests.helpers.text_to_text import spiece

ROWS = load_tables()
PIECES = Pieces(spiece())
NO_RUNS = TokenRuns.of([])


def said(row, examples, written):
    """The kind of answer, a split, and texts, each with an end, as a validation gathers them: in any order."""
    labels_E = np.array([example.label for example in examples], dtype=np.float64)
    keys_E = np.array([example.key for example in examples])
    split = TextSplit(NO_RUNS, NO_RUNS, labels_E, keys_E, 0, lambda: examples)
    order = np.arange(len(written))[::-1]
    tokens = [[*PIECES.numbers(written[n]), PIECES.end] for n in order]
    examples_V = np.repeat(order, [len(run) for run in tokens])
    predictions = Predictions.gathered(examples_V, np.concatenate(tokens).astype(np.float64))
    return TextTaskType(ROWS[row], PIECES), split, predictions


def scores(row, examples, written, *metrics):
    answer, *found = said(row, examples, written)
    return [score(metric, *answer.columns(metric, *found)) for metric in metrics]


def examples_of(*labels, **fields):
    fields = fields or {"names": [()] * len(labels)}
    rows = zip(labels, *fields.values(), strict=True)
    return [Example(((),), label, str(n), **dict(zip(fields, of, strict=True))) for n, (label, *of) in enumerate(rows)]


def test_answers_that_are_no_label_are_wrong_and_counted():
    examples = examples_of(0, 0, 1, 1, 1)
    right = ["entailment", "entailment", "not_entailment", "not_entailment", "not_entailment"]
    assert scores("rte", examples, right, "accuracy", "no-label") == [100, 0]
    wrong = ["entailment", "a", "not_entailment not_entailment", "", "entailment"]
    assert scores("rte", examples, wrong, "accuracy", "no-label") == [20, pytest.approx(60)]


def test_no_label_is_a_class_of_its_own_for_matthews():
    """By hand, of the covariances of three classes (Gorodkin's R_K)."""
    labels, predicted = [0, 0, 0, 1, 1], [0, 0, -1, 1, 1]
    written = [{0: "unacceptable", 1: "acceptable", -1: "a"}[one] for one in predicted]
    x, y = ((np.array(values)[:, None] == [-1, 0, 1]).astype(float) for values in (labels, predicted))
    covariance = [((a - a.mean(0)) * (b - b.mean(0))).sum() for a, b in ((x, y), (x, x), (y, y))]
    expected = 100 * covariance[0] / np.sqrt(covariance[1] * covariance[2])
    assert scores("cola", examples_of(*labels), written, "matthews") == [pytest.approx(expected)]
    assert scores("cola", examples_of(*labels), ["a"] * 5, "matthews", "no-label") == [0, 100]


def test_no_label_is_the_wrong_one_for_f1():
    """Of two right ones one is found; one of the wrong ones is taken for right by saying nothing known."""
    examples = examples_of(1, 1, 0, 0)
    assert scores("multirc", examples, ["True", "a", "a", "False"], "f1") == [pytest.approx(100 * 2 / 4)]


def test_numbers_and_what_is_none():
    """What is no number is below all: it orders as such; numbers beyond the bounds are at them."""
    examples = examples_of(0.0, 1.25, 2.5, 5.0)
    assert scores("stsb", examples, ["0.0", "1.2", "3", "9.6"], "spearman", "no-label") == [pytest.approx(100), 0]
    for none in ("a", "", "3.2.1", "1e999"):
        assert scores("stsb", examples, ["0.0", "1.2", none, "9.6"], "no-label") == [25]
    answer, *found = said("stsb", examples, ["9.6", "a", "2.2", "0.0"])
    assert answer.columns("spearman", *found)[1].tolist() == [5, -1, 2.2, 0]


def test_texts_are_compared_with_the_most_alike_right_one():
    examples = examples_of(None, None, answers=[("a b", "c"), ("d",)])
    assert scores("squad", examples, ["C", "d e"], "em", "f1") == [50, pytest.approx(100 * (1 + 2 / 3) / 2)]


def test_an_entity_is_compared_by_its_name():
    examples = examples_of(0, 1, right=[(0, 2), (1,)], names=[("a b", "c", "d"), ("a", "e")])
    assert scores("record", examples, ["D", "e f"], "exact-match", "text-f1") == [50, pytest.approx(500 / 6)]


def test_nouns_that_name_the_same():
    answers = ["the councilmen", "the old city councilmen", "the demonstrators", "the"]
    assert [names_the_same(answer, "The city councilmen") for answer in answers] == [1, 1, 0, NONE]
    assert [names_the_same(answer, "Bob's hat") for answer in ("Bob", "Bob's")] == [0, 1]


def test_pronouns_that_mean_the_noun():
    examples, third = examples_of(1, 0, 1, referent="fbc"), pytest.approx(100 / 3)
    assert scores("wsc", examples, ["f", "b", ""], "accuracy", "no-label") == [third, third]
    assert scores("wsc", examples, ["f", "f", "c d"], "accuracy", "no-label") == [100, 0]


def test_so_many_tokens_tell_labels_from_what_goes_on():
    longest = max(len(PIECES.numbers(label)) for label in ("entailment", "not_entailment"))
    most = {"rte": longest + 1, "stsb": len(PIECES.numbers("3.2")) + 1, "squad": None, "wsc": None}
    assert {name: TextTaskType(ROWS[name], PIECES).most_tokens for name in most} == most


def test_labels_that_are_one_text_to_the_pieces():
    row = dataclasses.replace(ROWS["rte"], text_form=dataclasses.replace(ROWS["rte"].text_form, writes=["é", "ü"]))
    with refused("spiece.model"):
        TextTaskType(row, PIECES)


@pytest.mark.parametrize(
    ("row", "written", "labels", "text"),
    [
        ("rte", ["not_entailment", "a"], None, ["not_entailment", "entailment"]),
        ("copa", ["True", "False"], [0, 1], [1, 0]),
        ("stsb", ["9", "a"], None, [5, 0]),
        ("stsb", ["3.2", "0"], None, [3.2, 0]),
        ("squad", ["a B", ""], None, ["a B", ""]),
        ("wsc", ["f", "f"], ["False", "True"], ["True", "False"]),
    ],
)
def test_what_a_file_says(row, written, labels, text, caplog):
    answer, *found = said(row, examples_of(None, None, referent="fb"), written)
    assert answer.label_text(*found, labels or ROWS[row].labels) == text
    assert ("RTE: 1 of 2 answers are no label, and are given the first one" in caplog.text) == (row == "rte")
