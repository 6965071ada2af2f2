"""Every row of the table on small files in its authors' form: with labels and without, or damaged in any way."""

import gzip
import json
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_mtmoe.nlu.data.reading import Example, Span, TaskSet, read_split
from fairseq_mtmoe.nlu.data.table import BY_LABEL, Kind, load_tables
from fairseq_mtmoe.nlu.data.tokenizing import TextTokenizer
from fairseq_mtmoe.nlu.data.windows import tokenize_windows
from tests.helpers.benchmark import serialized_tokenizer
from tests.helpers.damage import damaged, value_or_sentence
from tests.helpers.refused import refused

ROWS = load_tables()


def tsv(*lines):
    return "".join("\t".join(line.split("|")) + "\n" for line in lines)


def jsonl(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def pair(first, second, label, key="0"):
    return Example(((first, second),), label, key)


def single(text, label, key="0"):
    return Example(((text,),), label, key)


def multirc(*answers):
    answers = [{"text": text, "idx": idx, "label": label} for idx, (text, label) in enumerate(answers)]
    questions = [{"question": "Who ran?", "idx": 7, "answers": answers}]
    return jsonl({"idx": 3, "version": 1.1, "passage": {"text": "<b>Sent 1: </b>Ann ran.", "questions": questions}})


WIC = {"word": "bank", "sentence1": "A bank lends.", "sentence2": "The bank is wet.", "idx": 0, "label": False,
       "start1": 2, "end1": 6, "start2": 4, "end2": 8, "version": 1.1}  # fmt: skip
WSC = {"text": "Ann saw Bea and she waved.", "idx": 0, "label": True,
       "target": {"span1_index": 0, "span1_text": "Ann", "span2_index": 4, "span2_text": "she"}}  # fmt: skip
COPA = {"premise": "It rained.", "choice1": "It was wet.", "choice2": "It was dry.", "question": "effect",
        "label": 0, "idx": 0}  # fmt: skip
# The ends of entities are their last characters; Ann is named twice.
RECORD = {"source": "Daily mail", "idx": 3, "passage": {
    "text": "Ann met Bea.\n@highlight\nAnn ran",
    "entities": [{"start": 24, "end": 26}, {"start": 8, "end": 10}, {"start": 0, "end": 2}]}, "qas": [
    {"query": "Fast was @placeholder.", "idx": 47, "answers": [
        {"start": 0, "end": 2, "text": "Ann"}, {"start": 24, "end": 26, "text": "Ann"}]},
    {"query": "@placeholder stayed.", "idx": 48, "answers": [
        {"start": 8, "end": 10, "text": "Bea"}, {"start": 0, "end": 2, "text": "Ann"}]}]}  # fmt: skip
# Its answers were found by a program: case and articles are no matter, and what is elsewhere is left out.
MRQA = {"context": "Ann ran. So Ann won.", "qas": [
    {"qid": "1f", "question": "Who ran?", "answers": ["Ann", "she"],
     "detected_answers": [{"text": "the ann", "char_spans": [[0, 2], [4, 6], [12, 14]]}]}]}  # fmt: skip

MRQA_TASKS = ("squad", "newsqa", "triviaqa", "searchqa", "hotpotqa", "naturalquestions")


def ranking(text, choices, right, key, **names):
    return Example(tuple((text, choice) for choice in choices), right[0], key, right=right, **names)


RAN, SENT = "Ann met Bea.\n- Ann ran", "<b>Sent 1: </b>Ann ran."
HALVES = [single(f"so \xe9 {n}. ", label, str(8 * label + n)) for label in (0, 1) for n in range(8)]
ASKED = Example((("Who ran?", MRQA["context"]),), None, "1f", (Span(1, 0, 3), Span(1, 12, 15)), answers=("Ann", "she"))
# Of each task what stands in the file of its training data, and what is read from it.
FILES = {
    "cola": (tsv('gj04|1||It is "so.', "cj99|0|*|Is so it."), [single('It is "so.', 1), single("Is so it.", 0, "1")]),
    "sst2": (tsv("sentence|label", "a '' \u2028\x0bfilm |1"), [single("a '' \u2028\x0bfilm ", 1)]),
    "mrpc": (
        tsv("\ufeffQuality|#1 ID|#2 ID|#1 String|#2 String", '1|70|71|He " left .|He went .'),
        [pair('He " left .', "He went .", 1)],
    ),
    "stsb": (tsv("index|genre|sentence1|sentence2|score", "4|main|A.|B.|3.250"), [pair("A.", "B.", 3.25, "4")]),
    "qqp": (
        tsv("id|qid1|qid2|question1|question2|is_duplicate", "9|1|2|Why?|Why so?|1"),
        [pair("Why?", "Why so?", 1, "9")],
    ),
    "mnli": (tsv("index|sentence1|sentence2|label1|gold_label", "5|A.|B.|neutral|neutral"), [pair("A.", "B.", 2, "5")]),
    "qnli": (tsv("index|question|sentence|label", '0|Who?|It was "Ann.|entailment'), [pair("Who?", 'It was "Ann.', 0)]),
    "rte": (tsv("index|sentence1|sentence2|label", "0|Ann.|Bea.|not_entailment"), [pair("Ann.", "Bea.", 1)]),
    "wnli": (tsv("index|sentence1|sentence2|label", "0|Ann.|Bea.|1"), [pair("Ann.", "Bea.", 1)]),
    "boolq": (jsonl({"question": "A", "passage": "B", "idx": 0, "label": True}), [pair("A", "B", 1)]),
    "cb": (jsonl({"premise": "A", "hypothesis": "B", "label": "neutral", "idx": 0}), [pair("A", "B", 2)]),
    "superglue_rte": (jsonl({"premise": "A", "hypothesis": "B", "label": "entailment", "idx": 0}), [pair("A", "B", 0)]),
    "copa": (
        jsonl(COPA),
        [ranking("It rained. What happened as a result?", ("It was wet.", "It was dry."), (0,), "0")],
    ),
    "record": (
        jsonl(RECORD),
        [
            ranking(RAN, ("Fast was Ann.", "Fast was Bea."), (0,), "47", names=("Ann", "Bea")),
            ranking(RAN, ("Ann stayed.", "Bea stayed."), (0, 1), "48", names=("Ann", "Bea")),
        ],
    ),
    "multirc": (
        multirc(("Ann", 1), ("Bea", 0)),
        [pair(SENT, "Who ran? Ann", 1, "3/7/0"), pair(SENT, "Who ran? Bea", 0, "3/7/1")],
    ),
    "wnut17": (
        "@ann\tB-person\nlee\tI-person\n#\tO\n\t\nran\tO\n",
        [
            Example((("@ann lee #",),), 1, "0", words=("@ann", "lee", "#"), tags=(9, 10, 0)),
            Example((("ran",),), 0, "1", words=("ran",), tags=(0,)),
        ],
    ),
    "wic": (jsonl(WIC), [Example((("A bank lends.", "The bank is wet."),), 0, "0", (Span(0, 2, 6), Span(1, 4, 8)))]),
    "wsc": (jsonl(WSC), [Example(((WSC["text"],),), 1, "0", (Span(0, 0, 3), Span(0, 16, 19)))]),
    "scitail": (tsv('Rain is "wet.|Water falls.|entails'), [pair('Rain is "wet.', "Water falls.", 0)]),
    "imdb": ("Bad.\nSo bad.<br />", [single("Bad. So bad.<br />", 0), single("Bad. So bad.<br />", 1, "1")]),
    "rotten_tomatoes": ("".join(f"so \xe9 {n}. \n" for n in range(10)), HALVES),
    "yelp": ('"1","Bad, ""really"".\\n"\n"2","Good."\n', [single('Bad, "really".\\n', 0), single("Good.", 1, "1")]),
    "winogrande": (
        jsonl({"qID": "3FCI", "sentence": "So _ hid.", "option1": "Ann", "option2": "Bea", "answer": "2"}),
        [ranking("So _ hid.", ("Ann", "Bea"), (1,), "3FCI")],
    ),
    "paws": (
        tsv("id|sentence1|sentence2|label", "7|Ann ran `` so ''|So ran.|1"),
        [pair("Ann ran `` so ''", "So ran.", 1, "7")],
    ),
    "sick": (
        tsv("pair_ID|sentence_A|sentence_B|entailment_judgment", "4|A.|B.|CONTRADICTION"),
        [pair("A.", "B.", 0, "4")],
    ),
    "snli": (jsonl({"gold_label": "neutral", "sentence1": "A", "sentence2": "B"}), [pair("A", "B", 2)]),
    **dict.fromkeys(MRQA_TASKS, (jsonl({"header": {"dataset": "SQuAD", "split": "train"}}, MRQA), [ASKED])),
}
# Test data that the authors give without labels, and often with other columns; of the others that of training.
UNLABELLED = {
    **dict.fromkeys(("cola", "sst2"), tsv("index|sentence", "8|It is.")),
    "mrpc": tsv("\ufeffindex|#1 ID|#2 ID|#1 String|#2 String", "8|1|2|He left.|He went."),
    "stsb": tsv("index|genre|sentence1|sentence2", "8|main|A man.|A boy."),
    "qqp": tsv("id|question1|question2", "8|Why?|Why so?"),
    "mnli": tsv("index|sentence1|sentence2", "8|It is.|It was."),
    "qnli": tsv("index|question|sentence", "8|Who?|Ann."),
    **dict.fromkeys(("rte", "wnli"), tsv("index|sentence1|sentence2", "8|A.|B.")),
    "boolq": jsonl({"question": "is it so", "passage": "It is.", "idx": 8}),
    "wic": jsonl({**WIC, "idx": 8, "label": None}),
    "wsc": jsonl({"text": WSC["text"], "target": WSC["target"], "idx": 8}),
    "copa": jsonl({**COPA, "idx": 8, "label": None}),
    "record": jsonl({"passage": RECORD["passage"], "qas": [{"query": "@placeholder ran.", "idx": 8}]}),
}


def write_source(write, source, content):
    """Write the file, or one for each label, in the encoding that the table says."""
    content = content if isinstance(content, bytes) else content.encode(source.encoding.removesuffix("-sig"))
    content = gzip.compress(content) if source.file.endswith(".gz") else content
    for label in ("neg", "pos") if source.format in BY_LABEL else ("",):
        write(source.file.replace("{label}", label).replace("*", "0_1"), content)


@pytest.mark.parametrize("task", [name for name, row in ROWS.items() if row.sets("train")])
def test_every_split_in_the_authors_form(task, tmp_path, write):
    row, (content, examples) = ROWS[task], FILES[task]
    for name, sources in row.splits.items():
        is_test = name.partition("/")[0] == "test" and task in UNLABELLED
        write_source(write, sources[0], UNLABELLED[task] if is_test else content)
        task_set = TaskSet(tmp_path, task, row, name)
        found = read_split(task_set, labelled=not is_test)
        assert not row.text_form or all(one.reads for one in read_split(task_set, not is_test, as_text=True))
        if is_test:
            assert [(example.label, example.key) for example in found] == [(None, "8")], name
            with refused(Path(sources[0].file).name, "mtmoe predict"):
                read_split(task_set)
        elif sources[0].part and name != "train":
            assert found == [single(f"so \xe9 {8 + (name == 'test')}. ", label, str(label)) for label in (0, 1)]
        else:
            assert found == examples, name


QUESTION = {"question": "Who ran?", "id": "1f", "answers": [{"text": "Ann", "answer_start": 0}]}
SQUAD = json.dumps({"data": [{"paragraphs": [{"context": "Ann ran.", "qas": [QUESTION]}]}]})
TOKENIZER = TextTokenizer(serialized_tokenizer(), 16)


@pytest.mark.parametrize("task", ["stsb", "multirc", "wsc", "yelp", "record", "newsqa", "wnut17", "squad"])
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_any_file_becomes_tokens_or_a_sentence(task, tmp_path, write, data):
    row = ROWS[task]
    content = SQUAD if task == "squad" else FILES[task][0]
    write_source(write, row.splits["train"][-1], data.draw(damaged(content.encode())))
    tokenize = partial(tokenize_windows, stride=3) if row.kind is Kind.span else TextTokenizer.tokenize
    found = value_or_sentence(lambda: tokenize(TOKENIZER, read_split(TaskSet(tmp_path, task, row, "train"))))
    assert found is None or len(found) > 0
