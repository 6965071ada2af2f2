from collections import Counter
from dataclasses import fields, replace

import pytest

from fairseq_mtmoe.data.nlu import table
from fairseq_mtmoe.data.nlu.table import Format, Kind, chosen_rows, load_tables
from tests.helpers.commands import REPOSITORY
from tests.helpers.refused import refused

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
    for name, row in load_tables().items():
        assert set(table.SPLITS) <= set(row.splits) or row.kind is Kind.span or (row.head and row.sets("test")), name
        assert row.description.endswith("."), name
        if row.sets("train"):
            assert row.small == (row.splits["train"][0].count <= 10_000), name


def test_the_pages_example_is_right(write):
    page = (REPOSITORY / "docs" / "reference" / "task_table.md").read_text(encoding="utf-8")
    assert load_tables([write("page.yaml", page.split("```yaml")[1].split("```")[0])])["reviews"].label == "stars"


def test_a_users_table_adds_and_replaces_rows(write):
    path = write("table.yaml", ROW + ROW.replace("mine:", "rte:"))
    rows = load_tables([path])
    assert rows["mine"].title == rows["rte"].title == "Mine"
    assert rows["mine"].kind is Kind.classification
    assert rows["mine"].splits["train"][0].format is Format.tsv
    assert rows["cola"].title == "CoLA"


TITLE, KIND, TEXTS, LABELS = "title: Mine", "kind: classification", "texts: [a]", "labels: [yes_, no_]"
OF_KIND, FILE, TRAIN = f"{KIND}\n  {TEXTS}\n  {LABELS}", "Mine/train.tsv", "train: [{file: Mine/train.tsv}]"
WORD = "{text: %d, start: a, end: b}"
FINE = "kind: regression\n  bounds: [0, 5]\n  text_form: {reads: '{a}', step: %s}"
SPAN = ROW.replace(OF_KIND, "kind: span\n  texts: [question, context]\n  metric: f1\n  stride: 64")
SPAN = SPAN.replace(FILE, "mine.jsonl.gz, format: mrqa")
TAGGED = ROW.replace(OF_KIND, "kind: word_labels\n  texts: [word]\n  labels: [O, B-x]")
TAGGED = TAGGED.replace(FILE, "a.conll, format: conll, columns: [word, label]")
PREDICTED = ROW.replace(TRAIN, "test: [{file: Mine/test.tsv}]\n  head: rte\n  submissions: {test: FORM}")
WRONG = {
    ROW: [
        (TITLE, "titel: Mine", "mine: title"),
        (TITLE, f"{TITLE}\n  like: yours", "mine: like"),
        (KIND, f"kind: word_pair\n  words: [{WORD % 2}, {WORD % 0}]", "mine: words"),
        (KIND, "kind: regression", "mine: bounds"),
        (KIND, FINE % 0, "mine: text_form: step"),
        (LABELS, "labels: [yes_]", "mine: labels"),
        (LABELS, f"{LABELS}\n  text_form: {{reads: nothing}}", "mine: text_form: reads"),
        (LABELS, f"{LABELS}\n  text_form: {{reads: '{{a}}', writes: [y, y]}}", "mine: text_form: writes"),
        (LABELS, "labels: [x, y, z]\n  text_form: {reads: '{a}', referent: b}", "mine: text_form: referent"),
        (TEXTS, "texts: [a, b, c]", "mine: texts"),
        (TEXTS, f"{TEXTS}\n  choices: [b, c]", "mine: choices"),
        (OF_KIND, f"kind: ranking\n  {TEXTS}\n  choices: [b, c]", "mine: choices"),
        ("train: [", "training: [", "mine: splits"),
        (FILE, "train.tsv, part: [0.5, 0.2]", "mine: train: part"),
        (FILE, "'Mine/{label}.tsv'", "mine: train: file"),
        (f"  splits:\n    {TRAIN}", "", "mine: head"),
        ("  splits:", "  submissions: {test: {file: a.tsv}}\n  splits:", "mine: submissions"),
        ("train: [", "test: [", "mine: head"),
        ("  splits:", "  head: mnli\n  splits:", "mine: head"),
        (ROW, "mine: [a list]", "mine"),
    ],
    SPAN: [
        ("stride: 64", "stride: 0", "mine: stride"),
        ("[question, context]", "[context]", "mine: texts"),
        ("format: mrqa", "format: jsonl", "mine: train: format"),
    ],
    TAGGED: [
        ("[O, B-x]", "[B-x, I-x]", "mine: labels"),
        ("texts: [word]", "texts: [word, pos]", "mine: texts"),
        ("texts: [word]", "texts: [word]\n  text_form: {reads: 'a {a}'}", "mine: text_form"),
        ("kind: word_labels", "kind: classification", "mine: train: format"),
        (", columns: [word, label]", "", "mine: train: columns"),
    ],
    PREDICTED: [
        ("FORM", "{form: jsonl}", "mine: submissions: file"),
        ("FORM", "{file: ../mine.tsv}", "mine: submissions: file"),
        ("FORM", "{file: mine.tsv, labels: [a]}", "mine: submissions: labels"),
        ("FORM", "{file: a.jsonl, form: multirc}", "mine: submissions: form"),
        ("FORM", "{file: a.conll, form: conll}", "mine: submissions: form"),
    ],
}


@pytest.mark.parametrize(
    ("text", "before", "after", "where"), [(text, *change) for text, changes in WRONG.items() for change in changes]
)
def test_wrong_tables(write, text, before, after, where):
    assert before in text
    with refused(f"table.yaml: {where}"):
        load_tables([write("table.yaml", text.replace(before, after))])


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


@pytest.mark.parametrize("name", ["multirc", "copa", "sst2"])
def test_what_belongs_to_labels_follows_them_into_another_order(name, write):
    """Texts that T5 writes, candidates, and a server's labels."""
    before = load_tables()[name]
    labels = ", ".join(f"'{label}'" for label in before.labels[::-1])
    row = load_tables([write("table.yaml", f"{name}: {{like: {name}, labels: [{labels}]}}")])[name]
    assert row.labels == before.labels[::-1] and row.choices == before.choices[::-1]
    assert row.text_form.writes == before.text_form.writes[::-1]
    assert [of.labels for of in row.submissions.values()] == [of.labels[::-1] for of in before.submissions.values()]


def test_tables_of_the_papers():
    """GLUE's has other lengths; in PEMT's two parts, each with its own count, make up a set of the package's."""
    own = load_tables()
    rows = load_tables([REPOSITORY / "examples" / "glue" / "paper.yaml"])
    lengths = {name: row.max_positions for name, row in rows.items() if row != own[name]}
    assert lengths == dict.fromkeys(("mnli", "qnli", "multirc"), 512)
    rows = load_tables([REPOSITORY / "examples" / "pemt" / "halves.yaml"])
    for name, row in ((name, row) for name, row in rows.items() if row != own[name]):
        valid, test = row.splits["valid"][0], row.splits["test"][0]
        rest = test if valid.file == test.file else row.splits["train"][0]
        whole = own[name].splits["valid" if rest is test else "train"][0]
        assert valid.part[1] == rest.part[0] and valid.part_seed == rest.part_seed, name
        assert valid.count + rest.count == whole.count, name


def test_a_benchmark_stands_for_its_tasks():
    """CA-MTL's table 4 is the last: GLUE with WNLI, SuperGLUE with its own RTE, MRQA, and labels of words."""
    assert list(chosen_rows(load_tables(), ["all"])) == ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"]
    assert len(chosen_rows(load_tables(), ["glue", "superglue", "sick"])) == 9 + 7 + 1
    counts = Counter(row.group for row in chosen_rows(load_tables(), ["mtl24"]).values())
    assert counts == {"GLUE": 9, "SuperGLUE": 8, "MRQA": 6, "NER": 1}


@pytest.mark.parametrize("names", [["rte", "rtee"], ["rte", "all"], ["mnli", "ax"]])
def test_wrong_names(names):
    """Unknown, twice by a benchmark, without training data."""
    with refused("--glue-tasks"):
        chosen_rows(load_tables(), names)
