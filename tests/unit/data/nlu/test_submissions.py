"""How alike two answers are, by hand from SQuAD's rules, and the files of predictions that servers take."""

import json

import numpy as np
import pytest
import torch

from fairseq_mtmoe.data.nlu.answers import best, exact_match, f1, file_names, normalized, submission_of, written
from fairseq_mtmoe.data.nlu.reading import Example
from fairseq_mtmoe.data.nlu.table import load_tables
from fairseq_mtmoe.data.nlu.tokenizing import TextTokenizer
from fairseq_mtmoe.task_types import task_type_of
from fairseq_mtmoe.task_types.task_type import Predictions
from tests.helpers.benchmark import serialized_tokenizer

ROWS = load_tables()
TOKENIZER = TextTokenizer(serialized_tokenizer(), 16)


def content(task, keys, predictions, split="test"):
    row, submission = ROWS[task], submission_of(task, ROWS[task], split)
    keys = list(keys)
    examples = [Example((("a",),) * len(row.choices or "a"), None, key) for key in keys]
    predicted = Predictions.gathered(np.arange(len(keys)), np.array(predictions, dtype=np.float64))
    said = task_type_of(row).label_text(TOKENIZER.tokenize(examples), predicted, submission.labels or row.labels)
    return written(submission, keys, said)


def test_tables():
    assert content("mnli", ["7", "3"], [0, 2]) == "index\tprediction\n7\tcontradiction\n3\tneutral\n"


def test_values_within_bounds():
    numbers = torch.tensor([[5.25], [-0.1], [3.1], [0.00001234567]])
    predictions = task_type_of(ROWS["stsb"]).predictions(numbers).numpy()
    lines = content("stsb", ["0", "1", "2", "3"], predictions).splitlines()
    assert lines == ["index\tprediction", "0\t5.0", "1\t0.0", "2\t3.1", "3\t1.234567e-05"]


@pytest.mark.parametrize(
    ("task", "predictions", "labels"),
    [("boolq", [1, 0], ["true", "false"]), ("copa", [1, 0], [1, 0]), ("wsc", [1, 0], ["True", "False"])],
)
def test_lines_of_objects(task, predictions, labels):
    lines = content(task, ["4", "0"], predictions).splitlines()
    assert [json.loads(line) for line in lines] == [{"idx": 4, "label": labels[0]}, {"idx": 0, "label": labels[1]}]


def test_the_answers_of_multirc_are_in_their_passages():
    lines = content("multirc", ["2/4/0", "2/4/1", "2/5/0", "3/6/0"], [0, 1, 1, 0]).splitlines()
    questions = [
        {"idx": 4, "answers": [{"idx": 0, "label": 0}, {"idx": 1, "label": 1}]},
        {"idx": 5, "answers": [{"idx": 0, "label": 1}]},
    ]
    last = [{"idx": 6, "answers": [{"idx": 0, "label": 0}]}]
    assert [json.loads(line) for line in lines] == [
        {"idx": 2, "passage": {"questions": questions}}, {"idx": 3, "passage": {"questions": last}},
    ]  # fmt: skip


def test_an_entity_of_record_is_called_by_its_text():
    names = [("Ann Lee", "Bea"), ("Ann Lee", "Céline", "Dee")]
    examples = [Example((("a", "b"),) * len(named), None, "0", names=named) for named in names]
    predicted = Predictions.gathered(np.array([1, 0]), np.array([1.0, 0.0]))
    submission = submission_of("record", ROWS["record"], "test")
    said = task_type_of(ROWS["record"]).label_text(TOKENIZER.tokenize(examples), predicted, [])
    assert submission.file == "ReCoRD.jsonl"
    lines = written(submission, ["4756", "11"], said).splitlines()
    assert [json.loads(line) for line in lines] == [{"idx": 4756, "label": "Ann Lee"}, {"idx": 11, "label": "Céline"}]


def test_answers_to_questions_are_one_object():
    """As SQuAD's and MRQA's evaluations take them; numbers in keys and letters in texts stay what they are."""
    submission = submission_of("squad", ROWS["squad"], "valid")
    assert json.loads(written(submission, ["5a", "12"], ["Céline \ud800", ""])) == {"5a": "Céline \ud800", "12": ""}


@pytest.mark.parametrize(
    ("task", "split", "file"),
    [
        ("mnli", "valid/mismatched", "MNLI-mm.tsv"),
        ("rotten_tomatoes", "test", "rotten_tomatoes.tsv"),
        ("sick", "test/hard", "sick-hard.tsv"),
        ("newsqa", "valid", "newsqa.json"),
    ],
)
def test_names_of_files(task, split, file):
    assert submission_of(task, ROWS[task], split).file == file
    assert file in file_names(ROWS) | {"sick-hard.tsv"}


def test_what_is_compared():
    texts = ["The  Quick, brown\nfox!", "an a-team the theatre", "“Ann”", "The"]  # of ASCII's punctuation alone
    assert list(map(normalized, texts)) == ["quick brown fox", "ateam theatre", "“ann”", ""]


@pytest.mark.parametrize(
    ("answer", "right", "share"),
    [
        ("the October 1973", "October, 1973", 1),
        ("October", "October 1973", 2 * 1 * 0.5 / 1.5),
        ("in in October", "in October", 2 * (2 / 3) * 1 / (2 / 3 + 1)),  # each word as often as it is there
        ("the", "a", 0),  # nothing is left of either
    ],
)
def test_f1(answer, right, share):
    assert f1(answer, right) == pytest.approx(share)


def test_exact_matches():
    assert [exact_match("The May.", one) for one in ("may", "May 1973")] == [1, 0]
    assert exact_match("the", "a") == 1  # SQuAD's own rule


def test_the_most_alike_counts():
    assert best("f1", "October 1973", ["May", "October", "in October 1973"]) == pytest.approx(0.8)
