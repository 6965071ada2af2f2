"""How alike two answers are, by hand from SQuAD's rules, and the files of predictions that servers take."""

import json

import numpy as np
import pytest
import torch

from fairseq_mtmoe.nlu.data.answers import best, file_names, submission_of, written
from fairseq_mtmoe.nlu.data.reading import Example
from fairseq_mtmoe.nlu.data.table import load_tables
from fairseq_mtmoe.nlu.data.tokenizing import TextTokenizer
from fairseq_mtmoe.nlu.types import task_type_of
from fairseq_mtmoe.nlu.types.task_type import Predictions
from tests.helpers.benchmark import serialized_tokenizer

ROWS = load_tables()
TOKENIZER = TextTokenizer(serialized_tokenizer(), 16)


def content(task, keys, predictions):
    """Of examples that are predicted from the last one on; an entity of ReCoRD is called by its text."""
    row, submission = ROWS[task], submission_of(task, ROWS[task], "test")
    names = [("Ann Lee", "Bea"), ("Céline", "Dée", "Eve")] if row.is_open else [()] * len(keys)
    examples = [Example((("a",),) * len(named or row.choices or "a"), None, "0", names=named) for named in names]
    order = np.arange(len(keys))[::-1]
    predicted = Predictions.gathered(torch.tensor([(n, predictions[n]) for n in order], dtype=torch.float64))
    said = task_type_of(row).label_text(TOKENIZER.tokenize(examples), predicted, submission.labels or row.labels)
    return written(submission, keys, said)


def test_tables_and_values_within_bounds():
    assert content("mnli", ["7", "3"], [0, 2]) == "index\tprediction\n7\tcontradiction\n3\tneutral\n"
    numbers = torch.tensor([[5.25], [-0.1], [3.1], [0.00001234567]])
    predictions = task_type_of(ROWS["stsb"]).predictions(numbers).numpy()
    lines = content("stsb", ["0", "1", "2", "3"], predictions).splitlines()
    assert lines == ["index\tprediction", "0\t5.0", "1\t0.0", "2\t3.1", "3\t1.234567e-05"]


MULTIRC = [
    {"idx": 2, "passage": {"questions": [
        {"idx": 4, "answers": [{"idx": 0, "label": 0}, {"idx": 1, "label": 1}]},
        {"idx": 5, "answers": [{"idx": 0, "label": 1}]}]}},
    {"idx": 3, "passage": {"questions": [{"idx": 6, "answers": [{"idx": 0, "label": 0}]}]}}]  # fmt: skip


@pytest.mark.parametrize(
    ("task", "keys", "predictions", "objects"),
    [
        ("boolq", ["4", "0"], [1, 0], [{"idx": 4, "label": "true"}, {"idx": 0, "label": "false"}]),
        ("copa", ["4", "0"], [1, 0], [{"idx": 4, "label": 1}, {"idx": 0, "label": 0}]),
        ("wsc", ["4", "0"], [1, 0], [{"idx": 4, "label": "True"}, {"idx": 0, "label": "False"}]),
        ("multirc", ["2/4/0", "2/4/1", "2/5/0", "3/6/0"], [0, 1, 1, 0], MULTIRC),
        ("record", ["4756", "11"], [0, 1], [{"idx": 4756, "label": "Ann Lee"}, {"idx": 11, "label": "Dée"}]),
    ],
)
def test_lines_of_objects(task, keys, predictions, objects):
    assert [json.loads(line) for line in content(task, keys, predictions).splitlines()] == objects


def test_keys_and_answers_stay_what_they_are():
    keys = ["0", "70", "007", "٣", "-1", "1e3", "9" * 5000]
    lines = written(submission_of("boolq", ROWS["boolq"], "test"), keys, ["true"] * len(keys)).splitlines()
    assert [json.loads(line)["idx"] for line in lines] == [0, 70, *keys[2:]]
    answers = {"5a": "Céline \ud800", "12": ""}
    assert json.loads(written(submission_of("squad", ROWS["squad"], "valid"), answers, answers.values())) == answers


def test_names_of_files():
    names = {("mnli", "valid/mismatched"): "MNLI-mm.tsv", ("sick", "test/hard"): "sick-hard.tsv"}
    for (task, split), file in {**names, ("newsqa", "valid"): "newsqa.json"}.items():
        assert submission_of(task, ROWS[task], split).file == file
    assert {"MNLI-mm.tsv", "newsqa.json"} <= file_names(ROWS)


@pytest.mark.parametrize(
    ("metric", "answer", "rights", "share"),
    [
        ("f1", "October", ["October 1973"], 2 * 1 * 0.5 / 1.5),
        ("f1", "in in October", ["in October"], 2 * (2 / 3) * 1 / (2 / 3 + 1)),  # each word as often as it is there
        ("f1", "the", ["a"], 0),  # nothing is left of either
        ("f1", "October 1973", ["May", "October", "in October 1973"], 0.8),  # the most alike counts
        ("em", "The May.", ["may 1973", "may"], 1),
        ("em", "the", ["a"], 1),  # SQuAD's own rule
        ("em", "an a-team  the\nTheatre!", ["ateam theatre"], 1),
        ("em", "“Ann”", ["Ann"], 0),  # of ASCII's punctuation alone
    ],
)
def test_how_alike_answers_are(metric, answer, rights, share):
    assert best(metric, answer, rights) == pytest.approx(share)
