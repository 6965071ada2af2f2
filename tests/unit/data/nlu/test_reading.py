import json
from dataclasses import replace
from pathlib import Path

import pytest

from fairseq_mtmoe.data.nlu import formats
from fairseq_mtmoe.data.nlu.reading import Example, expect_files, read_split, source_files
from fairseq_mtmoe.data.nlu.table import Format, Source, load_tables
from fairseq_mtmoe.errors import UserError
from tests.helpers.refused import refused

ROWS = load_tables()


def read(root, task, split="train", **options):
    return read_split(root, ROWS[task], split, **options)


def single(text, label, key):
    return Example(((text,),), label, key)


MRPC_HEADER = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"


def test_both_forms_of_mrpc_are_the_same(tmp_path, write):
    lines = ["1\t11\t12\tA\tB\r\n", '0\t21\t22\t"C\tD\r\n', "1\t31\t32\tE\tF\r\n"]
    write("MRPC/msr_paraphrase_train.txt", MRPC_HEADER + "".join(lines))
    write("MRPC/dev_ids.tsv", "21\t22\n")
    whole = {split: read(tmp_path, "mrpc", split) for split in ("train", "valid")}
    assert [example.candidates[0][0] for example in whole["train"]] == ["A", "E"]
    files = [path.name for path in source_files(tmp_path, ROWS["mrpc"], "valid")]
    assert files == ["msr_paraphrase_train.txt", "dev_ids.tsv"]
    write("MRPC/train.tsv", MRPC_HEADER + lines[0] + lines[2])
    write("MRPC/dev.tsv", MRPC_HEADER + lines[1])
    apart = {split: read(tmp_path, "mrpc", split) for split in ("train", "valid")}
    assert apart == {"train": whole["train"], "valid": [Example((('"C', "D"),), 0, "0")]}
    assert [example.candidates for example in whole["valid"]] == [example.candidates for example in apart["valid"]]


LISTED = """
mine:
  title: Mine
  description: Choose.
  kind: ranking
  texts: [question]
  choices: [options]
  label: right
  splits: {train: [{file: mine.jsonl, format: jsonl}]}
"""


def test_a_users_ranking_lists_its_candidates(tmp_path, write):
    row = load_tables([write("table.yaml", LISTED)])["mine"]
    write("mine.jsonl", json.dumps({"question": "Q", "options": ["A", "B", "C"], "right": [2, 0, 2]}))
    assert read_split(tmp_path, row, "train") == [
        Example((("Q", "A"), ("Q", "B"), ("Q", "C")), 0, "0", right=(0, 2), names=("A", "B", "C"))
    ]


@pytest.mark.parametrize("fields", [{"right": [3]}, {"right": []}, {"right": 1}, {"right": None}, {"options": []}])
def test_wrong_lists_of_candidates(tmp_path, write, fields):
    row = load_tables([write("table.yaml", LISTED)])["mine"]
    write("mine.jsonl", json.dumps({"question": "Q", "options": ["A", "B", "C"], "right": [0], **fields}))
    with refused("mine.jsonl"):
        read_split(tmp_path, row, "train")


def test_ragged_lines_of_qqp_are_counted(tmp_path, write, caplog):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    write("QQP/train.tsv", header + "5\t1\t2\tA?\n6\t1\t2\tA?\tB?\t1\n")
    assert read(tmp_path, "qqp") == [Example((("A?", "B?"),), 1, "6")]
    assert "1 examples are left out: another number of fields" in caplog.text


def test_both_forms_of_snli_are_the_same(tmp_path, write, caplog):
    numbered = (f"label{n}" for n in range(1, 6))
    columns = ["gold_label", *"abcd", "sentence1", "sentence2", "captionID", "pairID", *numbered]
    lines = [["-", *"wxyz", "A", "B", "1.jpg", "1r1n"], ["neutral", *"wxyz", "C", "D", "2.jpg", "2r1n", "neutral"]]
    table = "".join("\t".join(line + [""] * (14 - len(line))) + "\n" for line in [columns, *lines])
    write("snli_1.0/snli_1.0_dev.txt", table)
    found = read(tmp_path, "snli", "valid")
    assert found == [Example((("C", "D"),), 2, "0")]
    assert "1 examples are left out: the label says that there is none" in caplog.text
    records = [dict(zip(columns, line, strict=False)) for line in lines]
    write("snli_1.0/snli_1.0_dev.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    assert read(tmp_path, "snli", "valid") == found


@pytest.mark.parametrize(
    ("index", "words", "found"),
    [(3, "the big dog", "the big dog"), (2, "The big dog", "the big dog"), (0, "it", "it"), (6, "Bob", "Bob")],
)
def test_words_of_wsc_are_found_where_their_number_is_off(tmp_path, write, index, words, found):
    text = "Bob saw that the big dog barked, and it hid behind Bob."
    target = {"span1_index": index, "span1_text": words, "span2_index": 0, "span2_text": "Bob"}
    write("WSC/train.jsonl", json.dumps({"text": text, "target": target, "label": True, "idx": 0}))
    (example,) = read(tmp_path, "wsc")
    first, second = ((span.start, span.end) for span in example.spans)
    assert text[slice(*first)] == found
    assert second == (0, 3)


def test_lines_of_each_label_in_parts(tmp_path, write):
    for label, letter in (("neg", "n"), ("pos", "\xe9")):
        write(f"RottenTomatoes/rt-polarity.{label}", "".join(f"{letter}{n}\n" for n in range(10)).encode("latin-1"))
    texts = {split: [example.candidates[0][0] for example in read(tmp_path, "rotten_tomatoes", split)]
             for split in ("train", "valid", "test")}  # fmt: skip
    assert texts["valid"] == ["n8", "\xe98"]
    assert texts["test"] == ["n9", "\xe99"]
    assert texts["train"] == [f"{letter}{n}" for letter in "n\xe9" for n in range(8)]


def test_halves_that_are_drawn_share_no_example_and_lack_none(tmp_path, write):
    lines = [f"{n}\tA\t{n}\tentailment\n" for n in range(21)]
    write("RTE/dev.tsv", "index\tsentence1\tsentence2\tlabel\n" + "".join(lines))
    found = []
    for part in ([0, 0.5], [0.5, 1]):
        row = replace(ROWS["rte"], splits={"valid": [Source("RTE/dev.tsv", part=part, part_seed=42)]})
        found.append([int(example.candidates[0][1]) for example in read_split(tmp_path, row, "valid")])
    first, second = found
    assert sorted([*first, *second]) == list(range(21)) and first != list(range(10))
    assert first == sorted(first) and second == sorted(second)


def test_only_line_feeds_end_lines(tmp_path, write):
    write("SST-2/train.tsv", "sentence\tlabel\none\u2028two\x0bthree\t1\n")
    assert read(tmp_path, "sst2") == [single("one\u2028two\x0bthree", 1, "0")]


def test_a_line_has_a_limit(tmp_path, write, monkeypatch):
    """Of characters, and one of more for objects in JSON; nothing is read beyond it."""
    monkeypatch.setitem(formats._MOST, Format.jsonl, 70_000)
    line = '{{"premise": "A", "hypothesis": "{}", "label": "neutral"}}\n'
    table = "index\tsentence1\tsentence2\tlabel\n0\tA\t{}\tentailment\n"
    for task, name, form, most in (
        ("rte", "RTE/train.tsv", table, 65_536), ("cb", "CB/train.jsonl", line, 70_000),
    ):  # fmt: skip
        size = most - len(form.split("\n")[-2].format(""))
        for letter in ("b", "\N{GRINNING FACE}"):
            write(name, form.format(letter * size))
            assert len(read(tmp_path, task)[0].candidates[0][1]) == size
            for more in (1, 300_000):
                write(name, form.format(letter * (size + more)))
                with refused(Path(name).name):
                    read(tmp_path, task)


def test_other_counts_than_the_authors_are_said(tmp_path, write, caplog):
    write("WNLI/train.tsv", "index\tsentence1\tsentence2\tlabel\n0\tA\tB\t1\n")
    read(tmp_path, "wnli")
    assert "has 1 examples, and the authors' file has 635" in caplog.text


def record(entities=({"start": 0, "end": 0},), answers=({"text": "A"},)):
    """A line of ReCoRD's."""
    query = {"query": "@placeholder ran", "idx": 0, "answers": answers}
    return json.dumps({"passage": {"text": "A met B", "entities": entities}, "qas": [query]})


RTE = "index\tsentence1\tsentence2\tlabel\n"
WORDS = {"sentence1": "A", "sentence2": "B", "start1": 0, "end1": 2, "start2": 0, "end2": 1, "label": True}
WRONG = [
    ("rte", RTE + "0\tA\tB\n"),
    ("rte", RTE + "0\tA\tB\tmaybe\n"),
    ("rte", RTE.encode() + b"0\tA\xff\tB\tentailment\n"),
    ("rte", RTE.replace("sentence2", "other") + "0\tA\tB\tentailment\n"),
    ("cb", '{"premise": "A"\n'),
    ("cb", "[1]\n"),
    ("yelp", '"1","A"\n"3","B"\n'),
    ("yelp", '"1","open\n'),
    ("stsb", "index\tsentence1\tsentence2\tscore\n0\tA\tB\tnan\n"),
    ("multirc", '{"idx": 0, "passage": "A"}'),
    ("record", record(entities=[{"start": 0}])),
    ("record", record(entities=[], answers=None)),
    ("record", record(answers=[])),
    ("wsc", '{"text": "A", "target": {}}'),
    ("wic", json.dumps(WORDS)),
]


@pytest.mark.parametrize(("task", "content"), WRONG)
def test_wrong_files(tmp_path, write, task, content):
    path = write(ROWS[task].splits["train"][0].file, content)
    with refused(path.name):
        read(tmp_path, task)


def test_missing_files_of_all_tasks_are_named_before_one_is_read(tmp_path, write):
    write("RTE/dev.tsv", "no table")
    rows = [ROWS[name] for name in ("mnli", "rte", "mrpc")]
    files = r"MNLI/dev_matched.tsv, MNLI/dev_mismatched.tsv, MRPC/dev.tsv or MRPC/msr_paraphrase_train.txt are not"
    with pytest.raises(UserError, match=f"MNLI, MRPC, but {files}"):
        expect_files(tmp_path, rows, "valid")
    expect_files(tmp_path, rows[1:2], "valid")
