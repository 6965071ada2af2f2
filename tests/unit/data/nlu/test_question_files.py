"""Questions about passages in SQuAD's and MRQA's own forms: as they are, and wrong."""

import gzip
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_mtmoe.data.nlu.reading import Example, Span, read_split
from fairseq_mtmoe.data.nlu.table import load_tables
from tests.helpers.damage import damaged, value_or_sentence
from tests.helpers.refused import refused

ROW = load_tables()["squad"]
PASSAGE = "Ann Öz ran. So Ann won."
ASKED = (("Who ran?", PASSAGE),)


def squad(*questions, context=PASSAGE):
    return {"version": "1.1", "data": [{"title": "Ann", "paragraphs": [{"context": context, "qas": list(questions)}]}]}


def question(**fields):
    answers = [{"text": "Ann Öz", "answer_start": 0}, {"text": "Ann", "answer_start": 15}]
    return {"question": "Who ran?", "id": "5a", "answers": answers, **fields}


def mrqa(**fields):
    detected = [{"text": "ann oz", "char_spans": [[7, 9]]}, {"text": "the ann Öz", "char_spans": [[0, 5]]}]
    asked = {"qid": "5a", "question": "Who ran?", "answers": ["Ann Öz", "Ann"], "detected_answers": detected}
    return {"context": PASSAGE, "qas": [{**asked, **fields}]}


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def read(tmp_path, labelled=True):
    return read_split(tmp_path, ROW, "train", labelled)


def test_squads_own_file(tmp_path, write):
    write("SQuAD/train-v1.1.json", json.dumps(squad(question(), question(id="5b", answers=[]))))
    asked = Example(ASKED, None, "5a", (Span(1, 0, 6), Span(1, 15, 18)), answers=("Ann Öz", "Ann"))
    assert read(tmp_path) == [asked]
    assert read(tmp_path, labelled=False) == [Example(ASKED, None, "5a"), Example(ASKED, None, "5b")]


@pytest.mark.parametrize("packed", [False, True])
def test_mrqas_file(tmp_path, write, packed):
    """Its answers were found by a program: case and articles are no matter, and what is elsewhere is left out."""
    content = lines({"header": {"dataset": "SQuAD"}}, mrqa()).encode()
    write("MRQA/train/SQuAD.jsonl" + ".gz" * packed, gzip.compress(content) if packed else content)
    assert read(tmp_path) == [Example(ASKED, None, "5a", (Span(1, 0, 6),), answers=("Ann Öz", "Ann"))]


def test_questions_without_answers_are_counted(tmp_path, write, caplog):
    """In training; one whose answers are nowhere in the passage is scored, as in MRQA's own evaluation."""
    nowhere = [{"text": "Bea", "char_spans": [[0, 2]]}]
    records = [mrqa(answers=[], detected_answers=[]), mrqa(detected_answers=nowhere), mrqa(detected_answers=[])]
    path = write("MRQA/train/SQuAD.jsonl", lines(*records))
    assert read(tmp_path) == [Example(ASKED, None, "5a", answers=("Ann Öz", "Ann"))]  # which can be scored
    assert f"{path}: 1 examples are left out: the question has no answer" in caplog.text
    assert f"{path}: 1 examples are left out: no answer is where it is said to be in the passage" in caplog.text
    write("MRQA/dev/SQuAD.jsonl", lines(mrqa(detected_answers=nowhere)))
    assert read_split(tmp_path, ROW, "valid") == [Example(ASKED, None, "5a", answers=("Ann Öz", "Ann"))]


def without(record, name):
    return {key: value for key, value in record.items() if key != name}


WRONG_SQUAD = [
    [],
    squad(without(question(), "id")),
    squad(question(answers=[{"text": "Ann", "answer_start": 16}])),
    squad(question(), context=None),
    squad(question(question="who \ud800")),
]


@pytest.mark.parametrize("content", WRONG_SQUAD)
def test_a_wrong_file_of_squads(content, tmp_path, write):
    write("SQuAD/train-v1.1.json", json.dumps(content))
    with refused("train-v1.1.json"):
        read(tmp_path)


WRONG_MRQA = [
    {"context": PASSAGE, "qas": [without(mrqa()["qas"][0], "detected_answers")]},
    mrqa(detected_answers=[{"text": "Ann", "char_spans": [[0]]}]),
    mrqa(detected_answers=[{"text": "won.", "char_spans": [[20, 23]]}]),
    mrqa(answers=["Ann", 7]),
]


@pytest.mark.parametrize("record", WRONG_MRQA)
def test_a_wrong_line_of_mrqas(record, tmp_path, write):
    write("MRQA/train/SQuAD.jsonl", lines({"header": {}}, mrqa(), record))
    with refused("SQuAD.jsonl") as caught:
        read(tmp_path)
    assert ", line 3: " in str(caught.value)


@pytest.mark.parametrize("damage", [lambda packed: b"no gzip", lambda packed: packed[:-12]])
def test_a_damaged_packed_file(damage, tmp_path, write):
    write("MRQA/train/SQuAD.jsonl.gz", damage(gzip.compress(lines(mrqa()).encode())))
    with refused("SQuAD.jsonl.gz"):
        read(tmp_path)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_any_file_is_read_or_refused_in_a_sentence(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "damaged" / "SQuAD" / "train-v1.1.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.draw(damaged(json.dumps(squad(question())).encode())))
    found = value_or_sentence(lambda: read_split(path.parents[1], ROW, "train"))
    assert found is None or len(found) > 0
