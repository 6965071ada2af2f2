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


def split_of(examples):
    labels_E = np.array([np.nan if example.label is None else example.label for example in examples], dtype=np.float64)
    keys_E = np.array([example.key for example in examples])
    return TextSplit(NO_RUNS, NO_RUNS, labels_E, keys_E, 0, lambda: examples)


def predicted_of(written, order=None):
    """Tokens of texts, each with an end, as a validation gathers them: in the order of batches."""
    order = range(len(written)) if order is None else order
    tokens = [[*PIECES.numbers(written[n]), PIECES.end] for n in order]
    examples_V = np.repeat(list(order), [len(run) for run in tokens])
    return Predictions.gathered(examples_V, np.concatenate(tokens).astype(np.float64))


def scores(row, examples, written, *metrics):
    answer, split = TextTaskType(row, PIECES), split_of(examples)
    predictions = predicted_of(written, order=range(len(written))[::-1])
    return [score(metric, *answer.columns(metric, split, predictions)) for metric in metrics]


def labelled(*labels):
    return [Example(((),), label, str(n)) for n, label in enumerate(labels)]


def test_answers_that_are_no_label_are_wrong_and_counted():
    examples = labelled(0, 0, 1, 1, 1)
    right = ["entailment", "entailment", "not_entailment", "not_entailment", "not_entailment"]
    assert scores(ROWS["rte"], examples, right, "accuracy", "no-label") == [100, 0]
    wrong = ["entailment", "a", "not_entailment not_entailment", "", "entailment"]
    assert scores(ROWS["rte"], examples, wrong, "accuracy", "no-label") == [20, pytest.approx(60)]


def test_no_label_is_a_class_of_its_own_for_matthews():
    """By hand, of the covariances of three classes (Gorodkin's R_K)."""
    labels, said = [0, 0, 0, 1, 1], [0, 0, -1, 1, 1]
    written = [{0: "unacceptable", 1: "acceptable", -1: "a"}[one] for one in said]
    x, y = ((np.array(values)[:, None] == [-1, 0, 1]).astype(float) for values in (labels, said))
    covariance = [((a - a.mean(0)) * (b - b.mean(0))).sum() for a, b in ((x, y), (x, x), (y, y))]
    expected = 100 * covariance[0] / np.sqrt(covariance[1] * covariance[2])
    assert scores(ROWS["cola"], labelled(*labels), written, "matthews") == [pytest.approx(expected)]
    assert scores(ROWS["cola"], labelled(*labels), ["a"] * 5, "matthews", "no-label") == [0, 100]


def test_no_label_is_the_wrong_one_for_f1():
    """Of two right ones one is found; one of the wrong ones is taken for right by saying nothing known."""
    examples = labelled(1, 1, 0, 0)
    assert scores(ROWS["multirc"], examples, ["True", "a", "a", "False"], "f1") == [pytest.approx(100 * 2 / 4)]


def test_numbers_and_what_is_none():
    """What is no number is below all: it orders as such; numbers beyond the bounds are at them."""
    examples = labelled(0.0, 1.25, 2.5, 5.0)
    assert scores(ROWS["stsb"], examples, ["0.0", "1.2", "3", "9.6"], "spearman", "no-label") == [pytest.approx(100), 0]
    for none in ("a", "", "3.2.1", "1e999"):
        assert scores(ROWS["stsb"], examples, ["0.0", "1.2", none, "9.6"], "no-label") == [25]
    answer, split = TextTaskType(ROWS["stsb"], PIECES), split_of(examples)
    values = answer.columns("spearman", split, predicted_of(["9.6", "a", "2.2", "0.0"]))[1]
    assert values.tolist() == [5, -1, 2.2, 0]


def test_texts_are_compared_with_the_most_alike_right_one():
    examples = [Example(((),), None, "0", answers=("a b", "c")), Example(((),), None, "1", answers=("d",))]
    assert scores(ROWS["squad"], examples, ["C", "d e"], "em", "f1") == [50, pytest.approx(100 * (1 + 2 / 3) / 2)]


def test_an_entity_is_compared_by_its_name():
    examples = [
        Example(((),), 0, "0", right=(0, 2), names=("a b", "c", "d")),
        Example(((),), 1, "1", right=(1,), names=("a", "e")),
    ]
    assert scores(ROWS["record"], examples, ["D", "e f"], "exact-match", "text-f1") == [50, pytest.approx(500 / 6)]


def test_nouns_that_name_the_same():
    answers = ["the councilmen", "the old city councilmen", "the demonstrators", "the"]
    assert [names_the_same(answer, "The city councilmen") for answer in answers] == [1, 1, 0, NONE]
    assert [names_the_same(answer, "Bob's hat") for answer in ("Bob", "Bob's")] == [0, 1]


def test_pronouns_that_mean_the_noun():
    examples = [
        Example(((),), label, str(n), referent=noun) for n, (noun, label) in enumerate([("f", 1), ("b", 0), ("c", 1)])
    ]
    assert scores(ROWS["wsc"], examples, ["f", "b", ""], "accuracy", "no-label") == [
        pytest.approx(100 / 3), pytest.approx(100 / 3),
    ]  # fmt: skip
    assert scores(ROWS["wsc"], examples, ["f", "f", "c d"], "accuracy", "no-label") == [100, 0]


# ---- how long answers are ----


def test_so_many_tokens_tell_labels_from_what_goes_on():
    answer = TextTaskType(ROWS["rte"], PIECES)
    longest = max(len(PIECES.numbers(label)) for label in ("entailment", "not_entailment"))
    assert answer.most_tokens == longest + 1
    assert TextTaskType(ROWS["stsb"], PIECES).most_tokens == len(PIECES.numbers("3.2")) + 1
    assert [TextTaskType(ROWS[name], PIECES).most_tokens for name in ("squad", "wsc")] == [None, None]


def test_labels_that_are_one_text_to_the_pieces():
    row = dataclasses.replace(ROWS["rte"], text_form=dataclasses.replace(ROWS["rte"].text_form, writes=["é", "ü"]))
    with refused("spiece.model"):
        TextTaskType(row, PIECES)


# ---- files ----


def said(row, examples, written, labels=()):
    return TextTaskType(row, PIECES).label_text(split_of(examples), predicted_of(written), labels or row.labels)


def test_what_a_file_says(caplog):
    assert said(ROWS["rte"], labelled(None, None), ["not_entailment", "a"]) == ["not_entailment", "entailment"]
    assert "RTE: 1 of 2 answers are no label, and are given the first one" in caplog.text
    assert said(ROWS["copa"], labelled(None, None), ["True", "False"], [0, 1]) == [1, 0]
    assert said(ROWS["stsb"], labelled(None, None, None), ["3.2", "9", "a"]) == [3.2, 5, 0]
    assert said(ROWS["squad"], labelled(None, None), ["a B", ""]) == ["a B", ""]
    nouns = [Example(((),), None, str(n), referent=noun) for n, noun in enumerate("fb")]
    assert said(ROWS["wsc"], nouns, ["f", "f"], ["False", "True"]) == ["True", "False"]
