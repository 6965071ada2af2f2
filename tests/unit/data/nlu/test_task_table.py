from collections import Counter
from dataclasses import fields
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


def test_the_files_that_the_servers_take():
    files = [submission.file for row in load_tables().values() for submission in row.submissions.values()]
    glue = ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI-m", "MNLI-mm", "QNLI", "RTE", "WNLI", "AX"]
    superglue = ["BoolQ", "CB", "COPA", "MultiRC", "ReCoRD", "WiC", "WSC", "RTE", "AX-b", "AX-g"]
    assert sorted(files) == sorted([f"{name}.tsv" for name in glue] + [f"{name}.jsonl" for name in superglue])


def test_the_page_explains_every_field_and_its_example_is_right(write):
    page = (Path(__file__).parents[4] / "docs" / "task_table.md").read_text(encoding="utf-8")
    for part in (TaskRow, Source, Submission, TextForm, Words):
        assert [
            field.name for field in fields(part) if f"{field.name}`" not in page and f"{field.name}:" not in page
        ] == []
    for names in (Kind, Format, Form):
        assert [name for name in names.__members__ if f"`{name}`" not in page] == []
    assert load_tables([write("page.yaml", page.split("```")[1].removeprefix("yaml"))])["reviews"].label == "stars"


def test_sets_of_a_split():
    rows = load_tables()
    assert rows["mnli"].sets("valid") == ["valid", "valid/mismatched"]
    assert rows["rte"].sets("valid") == ["valid"]


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
        ("title: Mine", "titel: Mine", "mine` must be fields of a task (docs/task_table.md), but Key 'titel' not in"),
        ("kind: classification", "kind: guessing", "guessing"),
        ("  title: Mine\n", "", "missing mandatory value: title"),
        ("labels: [yes_, no_]", "labels: [yes_]", "mine: labels` must be two or more different ones"),
        ("labels: [yes_, no_]", "labels: [no_, no_]", "mine: labels` must be two or more different ones"),
        ("texts: [a]", "texts: [a, b, c]", "mine: texts` must be one text or two"),
        ("texts: [a]", "texts: []", "mine: texts` must be one text or two"),
        ("texts: [a]", "texts: [a]\n  choices: [b, c]", "mine: choices` must be fields in a ranking, and only there"),
        ("kind: classification", "kind: ranking", "mine: choices` must be fields in a ranking, and only there"),
        ("kind: classification", "kind: ranking\n  choices: [b]", "mine: choices` must be as many as labels, 2"),
        (
            "kind: classification\n  texts: [a]\n  labels: [yes_, no_]",
            "kind: ranking\n  texts: [a]\n  choices: [b, c]",
            "mine: choices` must be one field that lists the candidates, where a ranking has no labels, but is ['b', ",
        ),
        ("texts: [a]", "texts: [a]\n  names: b", "mine: names` must be a field of a ranking without labels, and of no"),
        ("kind: classification", "kind: regression", "mine: bounds` must be the least and the greatest value"),
        ("kind: classification", "kind: regression\n  bounds: [5, 0]", "mine: bounds` must be the least and"),
        ("kind: classification", "kind: word_pair", "mine: words` must be two in a word pair"),
        ("train: [", "training: [", "mine: splits` must be train, valid, test, or one of them"),
        ("train: [{file: Mine/train.tsv}]", "train: []", "mine: splits` must be train, valid, test, or one of them"),
        ("{file: Mine/train.tsv}", "{}", "missing mandatory value: file"),
        ("train.tsv}", "train.tsv, format: xml}", "xml"),
        ("train.tsv}", "train.tsv, encoding: klingon}", "mine: train: encoding` must be one that Python knows"),
        ("train.tsv}", "train.tsv, part: [0.5, 0.2]}", "mine: train: part` must be two shares from 0 to 1"),
        ("train.tsv}", "train.tsv, keep_ids: ids.tsv}", "mine: train: ids` must be the fields that an id consists of"),
        ("train.tsv}", "train.tsv, format: lines_by_label}", "mine: train: file` must be with {label} in it"),
        ("Mine/train.tsv", "'Mine/{label}.tsv'", "mine: train: file` must be with {label} in it"),
        ("  splits:\n    train: [{file: Mine/train.tsv}]", "", "among them `splits`"),
        (
            "  splits:",
            "  submissions: {test: {file: a.tsv}}\n  splits:",
            "for sets of the test data (there are none), but is {'test'",
        ),
        ("  splits:", "  submissions: a.tsv\n  splits:", "for sets of the test data (there are none), but is 'a.tsv'"),
        (
            "train: [",
            "test: [",
            "mine: head` must be the task whose head predicts this one, which has no training data",
        ),
        (
            "  splits:",
            "  head: mnli\n  splits:",
            "mine: head` must be another task of the same kind with as many labels",
        ),
        (
            "  splits:",
            "  head: wic\n  splits:",
            "mine: head` must be another task of the same kind with as many labels",
        ),
        (
            "  splits:",
            "  head: wick\n  splits:",
            "mine: head` must be another task of the same kind with as many labels",
        ),
        (ROW, "- a list", "must be a table of tasks: names, and their fields below them"),
        (ROW, "mine: {", "must be a table of tasks in YAML, but cannot be read"),
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


def test_a_users_row_of_questions(write):
    row = load_tables([write("table.yaml", SPAN)])["asked"]
    assert (row.kind, row.stride, row.longest_answer) == (Kind.span, 64, 30)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("stride: 64", "stride: 0", "asked: stride` must be a number of tokens, at least 1, but is 0 instead"),
        ("stride: 64", "longest_answer: -1", "asked: longest_answer` must be a number of tokens, at least 1"),
        ("[question, context]", "[context]", "asked: texts` must be the question and the passage of a span"),
        ("stride: 64", "labels: [a, b]", "asked: texts` must be the question and the passage of a span, which has no"),
        ("format: mrqa", "format: jsonl", "asked: train: format` must be squad or mrqa for a span, and only there"),
        ("kind: span", "kind: classification", "asked: train: format` must be squad or mrqa for a span, and only"),
        ("stride: 64", "head: mnli", "asked: head` must be another task of the same kind"),
    ],
)
def test_wrong_rows_of_questions(write, before, after, says):
    path = write("table.yaml", SPAN.replace(before, after))
    with pytest.raises(UserError) as error:
        load_tables([path])
    assert says in str(error.value) and str(path) in str(error.value)


WITH_TEST = ROW.replace(
    "train: [{file: Mine/train.tsv}]", "test: [{file: Mine/test.tsv}]\n  head: rte\n  submissions: {test: %s}"
)


def test_a_users_submission(write):
    path = write("table.yaml", WITH_TEST % "{file: mine.jsonl, form: jsonl, labels: [1, 2]}")
    row = load_tables([path])["mine"]
    assert row.submissions == {"test": Submission("mine.jsonl", Form.jsonl, [1, 2])}


@pytest.mark.parametrize(
    ("submission", "says"),
    [
        (
            "{form: jsonl}",
            "mine: submissions` must be fields of a task (docs/task_table.md), but Structured config of type",
        ),
        ("{file: ../mine.tsv}", "mine: submissions: file` must be a file's name, but is '../mine.tsv'"),
        ("{file: mine.tsv, labels: [a]}", "mine: submissions: labels` must be as many as the task's, 2, but is ['a']"),
        ("{file: mine.tsv, form: xml}", "xml"),
        ("{file: mine.jsonl, form: multirc}", "mine: submissions: form` must be one that names an example by a single"),
    ],
)
def test_wrong_submissions(write, submission, says):
    path = write("table.yaml", WITH_TEST % submission)
    with pytest.raises(UserError) as error:
        load_tables([path])
    assert says in str(error.value)


def test_a_task_without_training_data_is_not_trained():
    with pytest.raises(UserError, match=r"tasks with training data; the head of mnli predicts this one, but is 'ax'"):
        chosen_rows(load_tables(), ["mnli", "ax"])


def test_chosen_rows_are_in_the_order_asked_for():
    assert list(chosen_rows(load_tables(), ["rte", "cola"])) == ["rte", "cola"]


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
