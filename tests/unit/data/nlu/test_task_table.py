from collections import Counter
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import pytest

from fairseq_mtmoe.data.nlu.table import (
    SPLITS,
    Form,
    Format,
    Kind,
    Source,
    Submission,
    TaskRow,
    TextForm,
    Words,
    chosen_rows,
    load_tables,
)
from fairseq_mtmoe.errors import UserError
from tests.helpers.commands import REPOSITORY

ROW = """
mine:
  title: Mine
  description: Say it.
  kind: classification
  texts: [a]
  labels: [yes_, no_]
  splits:
    train: [{file: Mine/train.tsv}]
"""

KIND = "kind: classification\n  texts: [a]\n  labels: [yes_, no_]"
WORD = "{text: %d, start: a, end: b}"
FINE = "kind: regression\n  bounds: [0, 5]\n  text_form: {reads: '{a}', step: 1e-9}"
BILLION = "a: &a [1, 2]\n" + "".join(f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}]\n" for a, b in pairwise("abcdefghijklmnop"))


def test_the_packages_rows_are_right():
    rows = load_tables()
    assert {"cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"} <= set(rows)
    assert {"boolq", "cb", "copa", "multirc", "record", "wic", "wsc"} <= set(rows)
    assert {"scitail", "imdb", "rotten_tomatoes", "yelp", "sick", "snli"} <= set(rows)
    for name, row in rows.items():
        assert set(SPLITS) <= set(row.splits) or row.kind is Kind.span or (row.head and row.sets("test")), name
        assert row.description.endswith("."), name
        if row.sets("train"):
            assert row.small == (row.splits["train"][0].count <= 10_000), name


def test_the_page_explains_every_field_and_its_example_is_right(write):
    page = (Path(__file__).parents[4] / "docs" / "task_table.md").read_text(encoding="utf-8")
    for part in (TaskRow, Source, Submission, TextForm, Words):
        assert [
            field.name for field in fields(part) if f"{field.name}`" not in page and f"{field.name}:" not in page
        ] == []
    for names in (Kind, Format, Form):
        assert [name for name in names.__members__ if f"`{name}`" not in page] == []
    assert load_tables([write("page.yaml", page.split("```")[1].removeprefix("yaml"))])["reviews"].label == "stars"


def test_a_users_table_adds_and_replaces_rows(write):
    path = write("table.yaml", ROW + ROW.replace("mine:", "rte:"))
    rows = load_tables([path])
    assert rows["mine"].title == rows["rte"].title == "Mine"
    assert rows["mine"].kind is Kind.classification
    assert rows["mine"].splits["train"][0].format is Format.tsv
    assert rows["cola"].title == "CoLA"


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("title: Mine", "titel: Mine", "mine` must be one of title, benchmarks, group, description,"),
        ("title: Mine", "text_form: {read: '{a}'}", "mine: text_form` must be one of reads, writes, referent, step"),
        ("title: Mine", "title: Mine\n  like: yours", "mine: like` must be a task that is known (cola, sst2,"),
        ("title: Mine", "title: Mine\n  max_positions: 7", "mine: max_positions` must be a number of tokens"),
        ("title: Mine", "title: Mine\n  benchmarks: [[a]]", "mine: benchmarks` must be a list of texts or"),
        ("train.tsv}", "train.tsv, part_seed: 1}", "mine: train: part_seed` must be at least 0, and only"),
        ("Mine/train.tsv}", "'/{label}', format: lines_by_label}", "mine: train: file` must be below the data"),
        (
            "kind: classification",
            f"kind: word_pair\n  words: [{WORD % 2}, {WORD % 0}]",
            "words` must be in one of the 1",
        ),
        ("kind: classification", FINE, "text_form: step` must be one that divides the bounds into at most 10,000"),
        # What PyYAML and OmegaConf take, and nobody means.
        ("texts: [a]", "texts: &x [*x]", "line 6 has `*x` within what that stands for"),
        ("labels: [yes_, no_]", f"labels: {'[' * 500}{']' * 500}", "line 7 has values within values more than 30 deep"),
        ("labels: [yes_, no_]", f"labels: [a, 0x{'f' * 6000}]", "line 7 has a number of 6,002 characters"),
        ("Mine/train.tsv", '"Mine\\0.tsv"', "line 9 has a NUL or half a character in a text"),
        ("title: Mine", "title: Mine\n  title: Yours", "line 3 begins what has `title` twice"),
        (ROW, BILLION, "its aliases stand for more than 100,000 values"),
        ("kind: classification", "kind: guessing", "guessing"),
        ("  title: Mine\n", "", "mine` must have `title`, but has not"),
        ("labels: [yes_, no_]", "labels: [yes_]", "mine: labels` must be two or more different ones"),
        ("texts: [a]", "texts: [a, b, c]", "mine: texts` must be one text or two"),
        ("texts: [a]", "texts: [a]\n  choices: [b, c]", "mine: choices` must be fields in a ranking, and only there"),
        (
            KIND,
            "kind: ranking\n  texts: [a]\n  choices: [b, c]",
            "choices` must be one field that lists the candidates",
        ),
        ("texts: [a]", "texts: [a]\n  names: b", "mine: names` must be a field of a ranking without labels, and of no"),
        ("kind: classification", "kind: regression", "mine: bounds` must be the least and the greatest value"),
        ("kind: classification", "kind: word_pair", "mine: words` must be two in a word pair"),
        ("train: [", "training: [", "mine: splits` must be train, valid, test, or one of them"),
        ("{file: Mine/train.tsv}", "{}", "mine: train` must have `file`, but has not"),
        ("train.tsv}", "train.tsv, format: xml}", "xml"),
        ("train.tsv}", "train.tsv, encoding: klingon}", "mine: train: encoding` must be one that Python knows"),
        ("train.tsv}", "train.tsv, part: [0.5, 0.2]}", "mine: train: part` must be two shares from 0 to 1"),
        ("train.tsv}", "train.tsv, keep_ids: ids.tsv}", "mine: train: ids` must be the fields that an id consists of"),
        ("Mine/train.tsv", "'Mine/{label}.tsv'", "mine: train: file` must be with {label} in it"),
        ("  splits:\n    train: [{file: Mine/train.tsv}]", "", "among them `splits`"),
        ("  splits:", "  submissions: {test: {file: a.tsv}}\n  splits:", "for sets of the test data (there are none)"),
        ("train: [", "test: [", "mine: head` must be the task whose head predicts this one, which has no"),
        ("  splits:", "  head: mnli\n  splits:", "mine: head` must be another task of the same kind"),
        (ROW, "- a list", "must be a table of tasks: names, and their fields below them"),
        (ROW, "mine: !!python/object/apply:os.getcwd []", "must be a table of tasks in YAML, but cannot be read"),
    ],
)
def test_wrong_tables(write, before, after, says):
    assert before in ROW
    path = write("table.yaml", ROW.replace(before, after))
    with pytest.raises(UserError) as error:
        load_tables([path])
    assert says in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_texts_mean_what_they_say(write, monkeypatch):
    """No value of the environment, no date, and nothing missing."""
    monkeypatch.setenv("MINE", "secret")
    text = ROW.replace("title: Mine", "title: 2026-11-24").replace("[yes_, no_]", "['${oc.env:MINE}', '???']")
    row = load_tables([write("table.yaml", text)])["mine"]
    assert (row.title, row.labels) == ("2026-11-24", ["${oc.env:MINE}", "???"])


def test_a_row_begins_as_another_one(write):
    own = load_tables()
    text = "mnli:\n  like: mnli\n  max_positions: 512\nmine:\n  like: mnli\n  splits: {test: [{file: mine.tsv}]}\n"
    rows = load_tables([write("table.yaml", text)])
    assert rows["mnli"] == replace(own["mnli"], max_positions=512)
    changed = {"splits", "submissions", "max_positions"}  # of the row above in the same file
    names = [field.name for field in fields(own["mnli"])]
    assert {name for name in names if getattr(rows["mine"], name) != getattr(own["mnli"], name)} == changed
    assert rows["mine"].splits["train"] == own["mnli"].splits["train"]
    assert list(rows["mine"].submissions) == ["test/mismatched"]


def test_tables_of_the_papers():
    """What examples/glue and examples/pemt have otherwise: lengths, and halves that are two."""
    own = load_tables()
    rows = load_tables([REPOSITORY / "examples" / "glue" / "paper.yaml"])
    assert {name: row.max_positions for name, row in rows.items() if row != own[name]} == dict.fromkeys(
        ("mnli", "qnli", "multirc"), 512
    )
    rows = load_tables([REPOSITORY / "examples" / "pemt" / "halves.yaml"])
    for name, row in rows.items():
        if row == own[name]:
            continue
        (first, second), whole = (row.splits["valid"][0], row.splits["test"][0]), own[name].splits
        if first.file == second.file:
            assert (first.part, second.part, first.part_seed) == ([0, 0.5], [0.5, 1], second.part_seed)
            assert first.count + second.count == whole["valid"][0].count
        else:
            assert (first.count, second.part) == (1000, []) and row.splits["train"][0].part == [first.part[1], 1]
            assert round(first.part[1] * whole["train"][0].count) == 1000
            assert row.splits["train"][0].count + 1000 == whole["train"][0].count
        assert not row.submissions.keys() & {"valid", "test"} and row.sets("test") == ["test"]


SPAN = """
asked:
  title: Asked
  description: Find the words.
  kind: span
  texts: [question, context]
  metric: f1
  stride: 64
  splits: {train: [{file: mine.jsonl.gz, format: mrqa}], valid: [{file: mine.json, format: squad}]}
"""


WITH_TEST = ROW.replace(
    "train: [{file: Mine/train.tsv}]", "test: [{file: Mine/test.tsv}]\n  head: rte\n  submissions: {test: %s}"
)
TAGGED = SPAN.replace("kind: span", "kind: word_labels\n  labels: [O, B-x]").replace("[question, context]", "[word]")


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (SPAN.replace("stride: 64", "stride: 0"), "asked: stride` must be a number of tokens, at least 1, but is 0"),
        (SPAN.replace("[question, context]", "[context]"), "asked: texts` must be the question and the passage"),
        (SPAN.replace("format: mrqa", "format: jsonl"), "asked: train: format` must be squad or mrqa for a span, and"),
        (TAGGED, "asked: train: format` must be squad or mrqa for a span, and only there"),
        (TAGGED.replace("mrqa", "conll"), "asked: train: columns` must be the fields of a line"),
        (WITH_TEST % "{form: jsonl}", "mine: submissions` must have `file`, but has not"),
        (WITH_TEST % "{file: ../mine.tsv}", "mine: submissions: file` must be a file's name, but is '../mine.tsv'"),
        (WITH_TEST % "{file: mine.tsv, labels: [a]}", "mine: submissions: labels` must be as many as the task's, 2"),
        (WITH_TEST % "{file: a.jsonl, form: multirc}", "mine: submissions: form` must be one that names an example by"),
        (WITH_TEST % "{file: a.conll, form: conll}", "mine: submissions: form` must be conll where words have labels"),
    ],
)
def test_wrong_rows_of_questions_words_and_submissions(write, table, says):
    path = write("table.yaml", table)
    with pytest.raises(UserError) as error:
        load_tables([path])
    assert says in str(error.value) and str(path) in str(error.value)


def test_a_task_without_training_data_is_not_trained():
    with pytest.raises(UserError, match=r"tasks with training data; the head of mnli predicts this one, but is 'ax'"):
        chosen_rows(load_tables(), ["mnli", "ax"])


def test_a_benchmark_stands_for_its_tasks():
    assert list(chosen_rows(load_tables(), ["all"])) == ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"]
    assert len(chosen_rows(load_tables(), ["glue", "superglue", "sick"])) == 9 + 7 + 1


def test_the_mixture_of_24_tasks():
    """CA-MTL's table 4: GLUE with WNLI, SuperGLUE with its own RTE, MRQA, and labels of words."""
    counts = Counter(row.group for row in chosen_rows(load_tables(), ["mtl24"]).values())
    assert counts == {"GLUE": 9, "SuperGLUE": 8, "MRQA": 6, "NER": 1}


@pytest.mark.parametrize(
    ("names", "says"),
    [(["rte", "rtee"], "'rtee'"), (["rte", "rte"], "different tasks"), (["rte", "all"], "different tasks")],
)
def test_wrong_names(names, says):
    with pytest.raises(UserError, match=says):
        chosen_rows(load_tables(), names)


def test_the_files_that_the_servers_take():
    files = [submission.file for row in load_tables().values() for submission in row.submissions.values()]
    glue = ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI-m", "MNLI-mm", "QNLI", "RTE", "WNLI", "AX"]
    superglue = ["BoolQ", "CB", "COPA", "MultiRC", "ReCoRD", "WiC", "WSC", "RTE", "AX-b", "AX-g"]
    assert sorted(files) == sorted([f"{name}.tsv" for name in glue] + [f"{name}.jsonl" for name in superglue])
