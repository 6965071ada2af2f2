"""Splits of tasks, of a user's and of questions about passages as well: what files mean, and which are wrong."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.nlu.data.reading import Example, Span, TaskSet, expect_files, read_split, sets_of, source_files
from fairseq_mtmoe.nlu.data.table import Format, Source, load_tables
from tests.helpers.refused import refused

RTE = "index\tsentence1\tsentence2\tlabel\n"
ROWS = load_tables()
LISTS = {"texts": ["question"], "choices": ["options"], "names": "", "key": "", "label": "right"}
COLUMNS = Source("a.conll", Format.conll, ["word", "pos", "label"])
ROWS |= {
    "listed": replace(ROWS["record"], **LISTS, splits={"train": [Source("mine.jsonl", Format.jsonl)]}),
    "tagged": replace(ROWS["wnut17"], labels=["O", "B-x", "I-x"], splits={"train": [COLUMNS]}),
    "hexed": replace(ROWS["rte"], splits={"train": [Source("hexed.tsv", encoding="hex")]}),
    "tags": replace(ROWS["wnut17"], labels=["O", "B-x"], splits={"train": [Source("b.jsonl", Format.jsonl)]}),
}


def read(root, task, split="train", **options):
    return read_split(TaskSet(root, task, ROWS[task], split), **options)


MRPC_HEADER = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"


def test_both_forms_of_mrpc_are_the_same(tmp_path, write):
    lines = ["1\t11\t12\tA\tB\r\n", '0\t21\t22\t"C\tD\r\n', "1\t31\t32\tE\tF\r\n"]
    write("MRPC/msr_paraphrase_train.txt", MRPC_HEADER + "".join(lines))
    write("MRPC/dev_ids.tsv", "21\t22\n")
    whole = {split: read(tmp_path, "mrpc", split) for split in ("train", "valid")}
    assert [example.candidates[0][0] for example in whole["train"]] == ["A", "E"]
    files = [path.name for path in source_files(TaskSet(tmp_path, "mrpc", ROWS["mrpc"], "valid"))]
    assert files == ["msr_paraphrase_train.txt", "dev_ids.tsv"]
    write("MRPC/train.tsv", MRPC_HEADER + lines[0] + lines[2])
    write("MRPC/dev.tsv", MRPC_HEADER + lines[1])
    assert {split: read(tmp_path, "mrpc", split) for split in ("train", "valid")} == whole
    assert whole["valid"] == [Example((('"C', "D"),), 0, "0")]


def test_a_ranking_can_list_its_candidates(tmp_path, write):
    write("mine.jsonl", [{"question": "Q", "options": ["A", "B", "C"], "right": [2, 0, 2]}])
    candidates = (("Q", "A"), ("Q", "B"), ("Q", "C"))
    assert read(tmp_path, "listed") == [Example(candidates, 0, "0", right=(0, 2), names=("A", "B", "C"))]


def test_ragged_lines_are_counted_and_other_counts_than_the_authors_are_said(tmp_path, write, caplog):
    write("QQP/train.tsv", "id\tquestion1\tquestion2\tis_duplicate\n5\tA?\n6\tA?\tB?\t1\n")
    assert read(tmp_path, "qqp") == [Example((("A?", "B?"),), 1, "6")]
    assert "examples left out: 1 (another number of fields)" in caplog.text
    assert "has 1 examples, but the authors' file has 363846" in caplog.text


def test_words_of_wsc_are_found_where_their_number_is_off(tmp_path, write):
    text = "Bob saw that the big dog barked, and it hid behind Bob."
    words = [(3, "the big dog"), (2, "The big dog"), (0, "it"), (6, "Bob")]
    targets = [{"span1_index": n, "span1_text": of, "span2_index": 0, "span2_text": "Bob"} for n, of in words]
    write("WSC/train.jsonl", [{"text": text, "target": target, "label": True, "idx": 0} for target in targets])
    first, second = zip(*(example.spans for example in read(tmp_path, "wsc")), strict=True)
    assert [text[span.start : span.end] for span in first] == ["the big dog", "the big dog", "it", "Bob"]
    assert set(second) == {Span(0, 0, 3)}


def test_halves_that_are_drawn_share_no_example_and_lack_none(tmp_path, write):
    write("RTE/dev.tsv", RTE + "".join(f"{n}\tA\t{n}\tentailment\n" for n in range(21)))
    halves = []
    for part in ([0, 0.5], [0.5, 1]):
        row = replace(ROWS["rte"], splits={"valid": [Source("RTE/dev.tsv", part=part, part_seed=42)]})
        halves.append([int(example.candidates[0][1]) for example in read_split(TaskSet(tmp_path, "rte", row, "valid"))])
    assert sorted(halves[0] + halves[1]) == list(range(21)) and sorted(halves[0]) == halves[0] != list(range(10))


TEXTS = "a\n\nb\r\n\r\n"


@pytest.mark.parametrize(("source", "content"), [
    (Source("a.tsv", columns=["text"]), TEXTS), (Source("a.tsv"), f"\ntext\n{TEXTS}"),
    (Source("a.csv", Format.csv, ["text"]), TEXTS), (Source("{label}", Format.lines_by_label), TEXTS),
])  # fmt: skip
def test_empty_lines_among_texts_are_counted(tmp_path, write, caplog, source, content):
    path = write(source.file.replace("{label}", "neg"), content)
    row = replace(ROWS["imdb"], labels=["neg"], splits={"test": [source]})
    found = read_split(TaskSet(tmp_path, "imdb", row, "test"), labelled=False)
    assert [example.candidates[0][0] for example in found] == ["a", "b"]
    assert f"{path}: examples left out: 2 (the line is empty)" in caplog.text


def test_empty_files_are_counted_and_empty_lines_between_records_are_not(tmp_path, write, caplog):
    header, line = (text.replace("\n", "\t\t\n") for text in (RTE, "0\tA\tB\tentailment\n"))  # empty names may repeat
    write("RTE/train.tsv", f"\n{header}\n{line}\n")
    write("COPA/test.jsonl", '\n{"premise": "A", "question": "effect", "choice1": "B", "choice2": "C"}\n\n')
    assert len(read(tmp_path, "rte")) == len(read(tmp_path, "copa", "test", labelled=False)) == 1
    assert "the line is empty" not in caplog.text
    for name, content in (("neg/1.txt", "a\n\nb\n"), ("neg/2.txt", "\n"), ("pos/1.txt", "c\n")):
        write(f"aclImdb/test/{name}", content)
    assert [example.candidates[0][0] for example in read(tmp_path, "imdb", "test")] == ["a b", "c"]
    assert "neg/2.txt: examples left out: 1" in caplog.text


def test_an_example_without_a_key_has_its_number(tmp_path, write):
    asked = {"premise": "A", "question": "effect", "choice1": "B", "choice2": "C"}
    write("COPA/test.jsonl", [asked | key for key in ({"idx": 7}, {}, {"idx": None}, {"idx": "\ud800"})])
    keys = [example.key for example in read(tmp_path, "copa", "test", labelled=False)]
    assert keys == ["7", "1", "2", "?"]  # a lone surrogate cannot be written


def sentence(*pairs, key="0"):
    words, tags = zip(*pairs, strict=True)
    return Example(((" ".join(words),),), int(any(tags)), key, words=words, tags=tags)


def test_columns_comments_and_ends_of_sentences(tmp_path, write):
    lines = [
        "-DOCSTART- -X- O", "", "# id = 1 of a newspaper", "# text = Ann", "Ann NNP B-x", "Lee  NNP I-x", "# SYM O", "",
        "\t", "  ", "# SYM O\r", "-DOCSTART- -X- O", "\xa0 X O", "New York\tNNP\tB-x", "#\t#\tO", "end NN O",
    ]  # fmt: skip
    write("a.conll", "\ufeff" + "\n".join(lines))
    assert read(tmp_path, "tagged") == [
        sentence(("Ann", 1), ("Lee", 2), ("#", 0)),
        sentence(("#", 0), key="1"),
        sentence(("\xa0", 0), ("New York", 1), ("#", 0), ("end", 0), key="2"),
    ]


@pytest.mark.parametrize(("content", "words"), [
    ("Ann NNP\n\nran VBD\noff RP\n", [("Ann",), ("ran", "off")]),
    ("Ann NNP\n# SYM\n\n# text = # 7\n# SYM\n\n-DOCSTART- X\n# 7\n", [("Ann", "#"), ("#",), ("#",)]),
    *((f"# one\n# two\n{words}\n\n# 1\nLee N O\n", [("Ann",), ("Lee",)]) for words in ("Ann N O", "Ann\tN\tO")),
])  # fmt: skip
def test_words_without_labels_may_look_like_comments_of_another_length(tmp_path, write, content, words):
    write("a.conll", content)
    found = read(tmp_path, "tagged", labelled=False)
    assert [(example.words, example.tags, example.label) for example in found] == [(of, (), None) for of in words]


PASSAGE = "Ann Öz ran. So Ann won."
ASKED = (("Who ran?", PASSAGE),)


def squad(*questions):
    return {"data": [{"paragraphs": [{"context": PASSAGE, "qas": list(questions)}]}]}


def question(**fields):
    answers = [{"text": "Ann Öz", "answer_start": 0}, {"text": "Ann", "answer_start": 15}]
    return {"question": "Who ran?", "id": "5a", "answers": answers, **fields}


def mrqa(**fields):
    asked = {"qid": "5a", "question": "Who ran?", "answers": ["Ann Öz", "Ann"], "detected_answers": []}
    return {"context": PASSAGE, "qas": [{**asked, **fields}]}


def test_questions_in_squads_own_file_and_without_answers_in_mrqas(tmp_path, write, caplog):
    write("SQuAD/train-v1.1.json", json.dumps(squad(question(), question(id="5b", answers=[]))))
    asked = Example(ASKED, None, "5a", (Span(1, 0, 6), Span(1, 15, 18)), answers=("Ann Öz", "Ann"))
    assert read(tmp_path, "squad") == [asked]
    assert read(tmp_path, "squad", labelled=False) == [Example(ASKED, None, "5a"), Example(ASKED, None, "5b")]
    # A question whose answers are nowhere in the passage is scored, as in MRQA's own evaluation.
    nowhere = [{"text": "Bea", "char_spans": [[0, 2]]}]
    records = [mrqa(answers=[], detected_answers=[]), mrqa(detected_answers=nowhere), mrqa(detected_answers=[])]
    path = write("MRQA/train/SQuAD.jsonl", records)
    assert read(tmp_path, "squad") == [Example(ASKED, None, "5a", answers=("Ann Öz", "Ann"))]  # which can be scored
    assert f"{path}: examples left out: 1 (the question has no answer)" in caplog.text
    assert f"{path}: examples left out: 1 (no answer is at its given place in the passage)" in caplog.text
    write("MRQA/dev/SQuAD.jsonl", [mrqa(detected_answers=nowhere)])
    assert read(tmp_path, "squad", "valid") == [Example(ASKED, None, "5a", answers=("Ann Öz", "Ann"))]


BOTH = {"sentence1": "A", "sentence2": "B"}
LISTED = {"question": "Q", "options": ["A", "B", "C"], "right": [0]}
SHIFTED = {"text": "Ann", "answer_start": 16}
# Of each file some contents, texts or records, with the line that is wrong, where one is.
WRONG = {
    "RTE/train.tsv": [
        *((RTE + line, 2) for line in ("0\tA\tB\n", "0\tA\tB\tmaybe\n")),
        (RTE.encode() + b"0\tA\xff\tB\tentailment\n", None),
        (RTE.replace("sentence2", "other") + "0\tA\tB\tentailment\n", 2),
        (RTE.replace("sentence2", "sentence1") + "0\tA\tB\tentailment\n", 1),
    ],
    "CB/train.jsonl": [("[1]\n", 1), ([{"premise": ["A"], "hypothesis": "B", "label": "neutral"}], 1)],
    "hexed.tsv": [(RTE, None)],
    "BoolQ/train.jsonl": [("\ufeff", None)],
    "yelp_review_polarity_csv/train.csv": [('"1","A"\n"1","open\n', 2)],
    "STS-B/train.tsv": [("index\tsentence1\tsentence2\tscore\n0\tA\tB\tnan\n", 2)],
    "ReCoRD/train.jsonl": [([{"passage": {"text": "A met B", "entities": [{"start": 0}]}, "qas": []}], 1)],
    "WiC/train.jsonl": [([{**BOTH, "start1": 0, "end1": 2, "start2": 0, "end2": 1, "label": True}], 1)],
    "mine.jsonl": [([{**LISTED, **wrong}], 1) for wrong in ({"right": [3]}, {"right": 1}, {"options": []})],
    "a.conll": [
        ("Ann N\n", 1),
        ("Ann N B-x\n\nran V\n", 3),
        ("Ann N B-x\n# a comment inside\n", 2),
        ("# one\n\nAnn N B-x\nran V B-y\n", 4),
    ],
    "b.jsonl": [([{"word": ["a", "b"], "label": ["O"]}], 1)],
    "SQuAD/train-v1.1.json": [("[]", None), (json.dumps(squad(question(answers=[SHIFTED]))), None)],
    "MRQA/train/SQuAD.jsonl": [([mrqa(), mrqa(detected_answers=[{"text": "won.", "char_spans": [[20, 23]]}])], 2)],
    "MRQA/train/SQuAD.jsonl.gz": [(gzip.compress(json.dumps(mrqa()).encode())[:-12], None)],
}


@pytest.mark.parametrize(("file", "content", "line"), [(file, *row) for file, rows in WRONG.items() for row in rows])
def test_wrong_files(tmp_path, write, file, content, line):
    row = next(row for row in ROWS.values() if file in [one.file for one in row.splits.get("train", [])])
    write(file, content)
    with refused(Path(file).name) as caught:
        read_split(TaskSet(tmp_path, "mine", row, "train"))
    assert line is None or f", line {line}: " in str(caught.value)


def test_missing_files_of_all_tasks_are_named_before_one_is_read(tmp_path, write):
    write("RTE/dev.tsv", "no table")
    rows = {name: ROWS[name] for name in ("mnli", "rte", "mrpc")}
    with pytest.raises(UserError, match=r"MNLI, MRPC, but .* missing: MNLI/dev_matched.tsv, .*, MRPC/dev.tsv or "):
        expect_files(sets_of(tmp_path, rows, "valid"))
    expect_files(sets_of(tmp_path, {"rte": ROWS["rte"]}, "valid"))
