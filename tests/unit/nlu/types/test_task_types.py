"""Task types: losses, predictions, metrics and uncertainties, and the answers of text-to-text models."""

import dataclasses
import math
from statistics import NormalDist, variance

import numpy as np
import pytest
import torch

from fairseq_mtmoe.nlu.data.reading import Example
from fairseq_mtmoe.nlu.data.table import Kind, load_tables
from fairseq_mtmoe.nlu.data.text_split import Pieces, TextSplit
from fairseq_mtmoe.nlu.data.token_runs import TokenRuns
from fairseq_mtmoe.nlu.data.tokenizing import TextTokenizer
from fairseq_mtmoe.nlu.task.metrics import score
from fairseq_mtmoe.nlu.types import task_type_of
from fairseq_mtmoe.nlu.types.task_type import Classification, Predictions, Ranking, Regression, only_answer
from fairseq_mtmoe.nlu.types.text import NONE as NO_LABEL
from fairseq_mtmoe.nlu.types.text import TextTaskType, names_the_same
from tests.helpers.benchmark import serialized_tokenizer
from tests.helpers.refused import refused
from tests.helpers.text_to_text import spiece

ROWS = load_tables()
PIECES = Pieces(spiece())
NO_RUNS = TokenRuns.of([])
NONE = math.nan
LOWEST = torch.finfo(torch.float32).min  # the heads' number for a missing candidate


def test_every_kind_has_a_class_and_each_row_its_metrics():
    assert {row.kind for row in ROWS.values()} == set(Kind)
    assert all({row.metric, *row.also} <= set(task_type_of(row).metrics) for row in ROWS.values())


def test_the_only_answer_to_several_examples():
    several = [["yes", "yes"], ["yes", "no"], ["yes"], ["a\tO\nb\tO", "c\tO"], ["a\tO\nb\tB-x", "c\tO"]]
    assert list(map(only_answer, several)) == ["yes", "", "", "O", ""]


def test_the_loss_of_a_ranking_written_out():
    labels = [[0.0, 1.0, 0.0, NONE], [1.0, 0.0, NONE, NONE], [1.0, NONE, NONE, NONE], [1.0, 0.0, 1.0, 1.0]]
    numbers = torch.tensor([[0.5, -1.0, 2.0, LOWEST], [3.0, 1.0, LOWEST, LOWEST], [7.0, *[LOWEST] * 3],
                            [0.1, 0.2, 0.3, 0.4]], requires_grad=True)  # fmt: skip
    by_hand = 0.0
    for row, of in zip(numbers.tolist(), labels, strict=True):
        exps = [(math.exp(number), label) for number, label in zip(row, of, strict=True) if not math.isnan(label)]
        if len(exps) > 1:
            right = sum(exp for exp, label in exps if label) / sum(exp for exp, _ in exps)
            by_hand -= math.log(right) / math.log(len(exps))
    loss = Ranking().loss(numbers, torch.tensor(labels, dtype=torch.float64))
    assert loss.dtype == torch.float32 and loss.item() == pytest.approx(by_hand)
    loss.backward()
    is_none = torch.tensor(labels).isnan()
    assert numbers.grad.isfinite().all() and not numbers.grad[is_none].any() and not numbers.grad[2].any()
    assert all(numbers.grad[row][~is_none[row]].abs().min() > 1e-3 for row in (0, 1, 3))
    assert Ranking().predictions(numbers).tolist() == [2, 0, 0, 3]


def gathered(examples, predictions, order):
    """A split, and its predictions as batches and processes come."""
    split = TextTokenizer(serialized_tokenizer(), 16).tokenize(examples)
    return split, Predictions.gathered(torch.tensor([(n, predictions[n]) for n in order], dtype=torch.float64))


@pytest.mark.parametrize(("predictions", "accuracy", "matches", "f1"), [
    ([0, 1, 1], [0, 0, 0], [1, 0, 0], [1, 2 / 3, 0]), ([2, 3, 0], [1, 1, 1], [1, 1, 1], [1, 1, 1]),
])  # fmt: skip
def test_record_compares_names_with_the_most_similar_right_one(predictions, accuracy, matches, f1):
    names = [("The U.S.", "Ann Lee", "US"), ("Ann Lee", "Lee", "Bob", "Ann van Lee"), ("Bob", "Ann")]
    named = enumerate(zip(names, [(2,), (0, 3), (0,)], strict=True))
    examples = [Example((("a", "b"),) * len(of), ok[0], str(n), right=ok, names=of) for n, (of, ok) in named]
    found = gathered(examples, predictions, [0, 1, 2])
    columns = {metric: Ranking().columns(metric, *found)[0].tolist() for metric in Ranking.metrics}
    assert columns == {"accuracy": accuracy, "exact-match": matches, "text-f1": pytest.approx(f1)}


def test_exact_match_of_multirc_is_of_whole_questions():
    keys = ["0/0/0", "0/0/1", "0/1/0", "0/1/1", "1/0/0", "11/0/0"]
    examples = [Example((("a",),), label, key) for key, label in zip(keys, [1, 0, 1, 1, 0, 1], strict=True)]
    split, predictions = gathered(examples, [1, 0, 0, 0, 1, 0], [3, 5, 0, 1, 2, 4])
    (right,) = task_type_of(ROWS["multirc"]).columns("exact-match", split, predictions)
    assert sorted(right.tolist()) == [0, 0, 0, 1]


def test_one_of_several_has_the_entropy_of_the_choices_that_exist_in_full_precision():
    numbers = torch.tensor([[1.0, 2.0, 9.0], [0.0, 0.0, 0.0], [5.0, -9.0, 9.0]])
    labels = torch.tensor([[1.0, 0.0, NONE], [0.0, 1.0, 0.0], [1.0, NONE, NONE]])
    entropy, most = Ranking().uncertainty(numbers, labels)
    p = numbers[0, :2].softmax(0)
    torch.testing.assert_close(entropy, torch.stack([-(p * p.log()).sum(), torch.tensor(3.0).log(), torch.tensor(0.0)]))
    torch.testing.assert_close(most, torch.tensor([2.0, 3.0, 1.0]).log())
    numbers = torch.tensor([[0.0, 0.001], [6e4, -6e4], [-1e4, 0.0]], dtype=torch.float16)
    entropy, most = Classification(2).uncertainty(numbers, torch.zeros(3))
    assert entropy.dtype == torch.float32 and entropy[1:].tolist() == [0, 0]
    assert 0.69314 < entropy[0] <= math.log(2) == pytest.approx(most[0].item())


def regression(draws, labels):
    entropy, most = Regression().uncertainty(draws.unsqueeze(2), labels)
    assert most.tolist() == pytest.approx([math.log(2)] * len(draws))
    return entropy


def test_a_regression_is_as_uncertain_as_the_choice_of_its_half_written_out():
    draws = torch.tensor([[1.0, 1.2, 0.8], [3.0, 3.0, 3.0], [5.0, 6.0, 4.0], [4.0, 2.0, 3.0]])
    labels, means = torch.tensor([1.5, 2.0, 5.0, 3.5]), [1.0, 3.0, 5.0, 3.0]
    error = variance([mean - label for mean, label in zip(means, labels.tolist(), strict=True)])
    shares = [
        NormalDist().cdf((mean - sum(means) / 4) / math.sqrt(error + of_draws))
        for mean, of_draws in zip(means, (0.04, 0.0, 1.0, 1.0), strict=True)
    ]
    right = torch.distributions.Bernoulli(torch.tensor(shares)).entropy()
    torch.testing.assert_close(regression(draws, labels), right)
    torch.testing.assert_close(regression(100 * draws + 7, 100 * labels), right)  # another unit, and a common error
    exact = torch.tensor([1.0, 3.0])
    assert regression(exact.unsqueeze(1).expand(2, 2), exact).tolist() == [0, 0]  # without dropout, and all right
    assert regression(torch.full((3, 2), 0.1), torch.full((3,), 0.1)).isfinite().all()
    # A single candidate is asked for the half of its range.
    scale, label = Regression(0.0, 5.0), torch.tensor([4.5])
    for said, share in ((4.0, NormalDist().cdf(1.5 / 0.5)), (3.0, NormalDist().cdf(0.5 / 1.5)), (4.5, 1.0)):
        entropy = scale.uncertainty(torch.full((1, 2, 1), said), label).entropy
        torch.testing.assert_close(entropy, torch.distributions.Bernoulli(torch.tensor([share])).entropy())
    torch.testing.assert_close(regression(torch.full((1, 2), 4.5), label), torch.tensor([math.log(2)]))  # of no range


def said(row, examples, written):
    """The task type, a split, and texts, each with an end, as a validation gathers them: in any order."""
    labels_E = np.array([example.label for example in examples], dtype=np.float64)
    keys_E = np.array([example.key for example in examples])
    split = TextSplit(NO_RUNS, NO_RUNS, labels_E, keys_E, lambda: examples)
    order = np.arange(len(written))[::-1]
    pairs = [(n, token) for n in order for token in (*PIECES.token_ids(written[n]), PIECES.end)]
    predictions = Predictions.gathered(torch.tensor(pairs, dtype=torch.float64))
    return TextTaskType(ROWS[row], PIECES), split, predictions


def examples_of(*labels, **fields):
    fields = fields or {"names": [()] * len(labels)}
    rows = zip(labels, *fields.values(), strict=True)
    return [Example(((),), label, str(n), **dict(zip(fields, of, strict=True))) for n, (label, *of) in enumerate(rows)]


STSB = examples_of(0.0, 1.25, 2.5, 5.0)
SCORES = [
    ("rte", examples_of(0, 0, 1, 1, 1), ["entailment", "a", "not_entailment not_entailment", "", "entailment"],
     {"accuracy": 20, "no-label": 60}),
    ("cola", examples_of(0, 0, 0, 1, 1), ["a"] * 5, {"matthews": 0, "no-label": 100}),
    # Of two right ones one is found; one of the wrong ones is taken for right, as its answer is no label.
    ("multirc", examples_of(1, 1, 0, 0), ["True", "a", "a", "False"], {"f1": 50}),
    ("stsb", STSB, ["0.0", "1.2", "3", "9.6"], {"spearman": 100, "no-label": 0}),
    *(("stsb", STSB, ["0.0", "1.2", none, "9.6"], {"no-label": 25}) for none in ("a", "1e999")),
    # Texts and the names of entities are compared with the right one that is most alike.
    ("squad", examples_of(None, None, answers=[("a b", "c"), ("d",)]), ["C", "d e"], {"em": 50, "f1": 500 / 6}),
    ("record", examples_of(0, 1, right=[(0, 2), (1,)], names=[("a b", "c", "d"), ("a", "e")]), ["D", "e f"],
     {"exact-match": 50, "text-f1": 500 / 6}),
    ("wsc", examples_of(1, 0, 1, referent="fbc"), ["f", "b", ""], {"accuracy": 100 / 3, "no-label": 100 / 3}),
]  # fmt: skip


@pytest.mark.parametrize(("row", "examples", "written", "scores"), SCORES, ids=range(len(SCORES)))
def test_scores_of_texts_with_answers_that_are_no_label(row, examples, written, scores):
    answer, *found = said(row, examples, written)
    assert {metric: score(metric, *answer.columns(metric, *found)) for metric in scores} == pytest.approx(scores)


def test_no_label_is_a_class_of_its_own_for_matthews():
    """By hand, of the covariances of three classes (Gorodkin's R_K)."""
    labels, predicted = [0, 0, 0, 1, 1], [0, 0, -1, 1, 1]
    written = [{0: "unacceptable", 1: "acceptable", -1: "a"}[one] for one in predicted]
    x, y = ((np.array(values)[:, None] == [-1, 0, 1]).astype(float) for values in (labels, predicted))
    covariance = [((a - a.mean(0)) * (b - b.mean(0))).sum() for a, b in ((x, y), (x, x), (y, y))]
    expected = 100 * covariance[0] / np.sqrt(covariance[1] * covariance[2])
    answer, *found = said("cola", examples_of(*labels), written)
    assert score("matthews", *answer.columns("matthews", *found)) == pytest.approx(expected)


def test_nouns_that_name_the_same():
    answers = ["the councilmen", "the old city councilmen", "the demonstrators", "the"]
    assert [names_the_same(answer, "The city councilmen") for answer in answers] == [1, 1, 0, NO_LABEL]
    assert [names_the_same(answer, "Bob's hat") for answer in ("Bob", "Bob's")] == [0, 1]


def test_the_number_of_tokens_that_tell_labels_from_longer_texts():
    longest = max(len(PIECES.token_ids(label)) for label in ("entailment", "not_entailment"))
    most = {"rte": longest + 1, "stsb": len(PIECES.token_ids("3.2")) + 1, "squad": None, "wsc": None}
    assert {name: TextTaskType(ROWS[name], PIECES).most_tokens for name in most} == most
    # Labels that are one text to the pieces cannot be told.
    row = dataclasses.replace(ROWS["rte"], text_form=dataclasses.replace(ROWS["rte"].text_form, writes=["é", "ü"]))
    with refused("spiece.model"):
        TextTaskType(row, PIECES)


@pytest.mark.parametrize(("row", "written", "labels", "text"), [
    ("rte", ["not_entailment", "a"], ["entailment", "not_entailment"], ["not_entailment", "entailment"]),
    ("copa", ["True", "False"], [0, 1], [1, 0]),
    ("stsb", ["9", "a"], None, [5, 0]),
    ("squad", ["a B", ""], None, ["a B", ""]),
    ("wsc", ["f", "f"], ["False", "True"], ["True", "False"]),
])  # fmt: skip
def test_answers_in_a_file_of_predictions(row, written, labels, text, caplog):
    answer, *found = said(row, examples_of(None, None, referent="fb"), written)
    assert answer.label_text(*found, labels) == text
    assert ("1 of 2 answers are no label" in caplog.text) == ("a" in written)
