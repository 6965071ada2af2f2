"""The benchmarks' test data in the forms in which it is distributed: without labels, in other columns than the rest."""

import json

import pytest

from fairseq_mtmoe.data.nlu.reading import read_split
from fairseq_mtmoe.data.nlu.table import load_tables
from fairseq_mtmoe.errors import UserError

ROWS = load_tables()
PAIR = ("A.", "B.")
OBJECTS = [
    ("boolq", "BoolQ/test.jsonl", {"question": "A.", "passage": "B."}, PAIR),
    ("wic", "WiC/test.jsonl", {"word": "a", "sentence1": "A.", "sentence2": "B.", "start1": 0, "start2": 0, "end1": 1,
                               "end2": 1, "version": 1.1}, PAIR),
    ("wsc", "WSC/test.jsonl", {"text": "A.", "target": {"span1_index": 0, "span1_text": "A.", "span2_index": 0,
                                                        "span2_text": "A."}}, ("A.",)),
    ("axb", "AX-b/AX-b.jsonl", {"sentence1": "A.", "sentence2": "B.", "label": "entailment", "logic": ""}, PAIR),
]  # fmt: skip


UNANSWERED = json.dumps({"idx": 0, "passage": {
    "text": "A", "questions": [{"question": "B", "idx": 0, "answers": [{"text": "C", "idx": 0}]}]
}})  # fmt: skip


def read(root, task, split="test"):
    return read_split(root, ROWS[task], split, labelled=False)


@pytest.mark.parametrize(("task", "name", "record", "texts"), OBJECTS, ids=[task for task, *_ in OBJECTS])
def test_objects_of_superglue(tmp_path, write, task, name, record, texts):
    write(f"SuperGLUE/{name}", json.dumps({**record, "idx": 5}))
    (example,) = read(tmp_path, task)
    assert (example.candidates, example.label, example.key) == ((texts,), None, "5")


def test_record(tmp_path, write):
    passage = {"text": "Ann met Bea.", "entities": [{"start": 0, "end": 2}, {"start": 8, "end": 10}]}
    write("ReCoRD/test.jsonl", json.dumps({"passage": passage, "qas": [{"query": "@placeholder ran.", "idx": 9}]}))
    (example,) = read(tmp_path, "record")
    assert [texts[1] for texts in example.candidates] == ["Ann ran.", "Bea ran."]
    assert (example.label, example.right, example.names, example.key) == (None, (), ("Ann", "Bea"), "9")


def test_mrpcs_own_test_data_has_the_numbers_and_order_of_glues(tmp_path, write):
    write("MRPC/msr_paraphrase_test.txt", "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
          "1\t11\t12\tA\tB\r\n0\t21\t22\tC\tD\r\n")  # fmt: skip
    write("MRPC/test.tsv", "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t11\t12\tA\tB\n1\t21\t22\tC\tD\n")
    both = read(tmp_path, "mrpc")
    assert [example.label for example in read_split(tmp_path, ROWS["mrpc"], "test")] == [1, 0]
    (tmp_path / "MRPC/msr_paraphrase_test.txt").unlink()
    assert read(tmp_path, "mrpc") == both


@pytest.mark.parametrize(
    ("task", "name", "content", "found"),
    [
        ("rte", "RTE/test.tsv", "index\tsentence1\tsentence2\n0\tA\tB\n", "has index, sentence1, sentence2"),
        ("rte", "RTE/test.tsv", "index\tsentence1\tsentence2\tlabel\n0\tA\tB\t-1\n", "is '-1'"),
        ("cb", "CB/test.jsonl", '{"premise": "A", "hypothesis": "B", "idx": 0}', "has premise, hypothesis, idx"),
        ("multirc", "MultiRC/test.jsonl", UNANSWERED, "has text, idx, passage, question, answer, paragraph, key"),
    ],
)  # fmt: skip
def test_data_without_labels_is_not_scored(tmp_path, write, task, name, content, found):
    path = write(name, content)
    with pytest.raises(UserError) as error:
        read_split(tmp_path, ROWS[task], "test")
    says = f"must have a label in the field {ROWS[task].label} to be trained or scored on, but {found}; `mtmoe predict`"
    assert says in str(error.value) and str(path) in str(error.value)
