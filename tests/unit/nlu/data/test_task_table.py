import json
from collections import Counter
from dataclasses import replace

import pytest

from fairseq_mtmoe.nlu.data import table
from fairseq_mtmoe.nlu.data.table import Format, Kind, Source, chosen_rows, load_tables
from tests.helpers.commands import REPOSITORY
from tests.helpers.refused import refused

ROW = {"title": "Mine", "description": "Say it.", "kind": "classification", "texts": ["a"], "labels": ["yes_", "no_"],
       "splits": {"train": [{"file": "Mine/train.tsv"}]}}  # fmt: skip


@pytest.fixture
def load(write):
    def load_rows(**rows):
        return load_tables([write("table.yaml", json.dumps(rows))])

    return load_rows


def test_the_packages_rows_are_right():
    for name, row in load_tables().items():
        assert set(table.SPLITS) <= set(row.splits) or row.kind is Kind.span or (row.head and row.sets("test")), name
        assert row.description.endswith("."), name
        if row.sets("train"):
            assert row.small == (row.splits["train"][0].count <= 10_000), name


def test_a_users_table_adds_and_replaces_rows(write):
    page = (REPOSITORY / "docs" / "reference" / "task_table.md").read_text(encoding="utf-8")
    example = page.split("```yaml")[1].split("```")[0]
    rows = load_tables([write("table.yaml", f"{example}\nrte: {json.dumps(ROW)}")])
    assert (rows["reviews"].label, rows["rte"].title, rows["cola"].title) == ("stars", "Mine", "CoLA")
    assert rows["rte"].kind is Kind.classification and rows["rte"].splits["train"][0].format is Format.tsv


def source(**options):
    return {"splits": {"train": [{"file": "a.tsv", **options}]}}


def submission(**options):
    return {"splits": {"test": [{"file": "a.tsv"}]}, "head": "rte", "submissions": {"test": options}}


SPAN = {"kind": "span", "texts": ["question", "context"], "labels": [], **source(format="mrqa")}
TAGGED = {"kind": "word_labels", "labels": ["O", "B-x"], **source(format="conll", columns=["a", "label"])}
WORD = {"text": 0, "start": "b", "end": "c"}
WRONG = [
    ({"titel": "Yours"}, "mine: titel"),
    ({"like": "yours"}, "mine: like"),
    ({"kind": "word_pair", "words": [WORD, {**WORD, "text": 2}]}, "mine: words"),
    ({"kind": "regression"}, "mine: bounds"),
    ({"labels": ["yes_"]}, "mine: labels"),
    ({"text_form": {"reads": "nothing"}}, "mine: text_form.reads"),
    ({"text_form": {"reads": "{a}", "writes": ["y", "y"]}}, "mine: text_form: writes"),
    ({"text_form": {"reads": "{a}", "referent": "b"}, "labels": ["x", "y", "z"]}, "mine: text_form: referent"),
    ({"text_form": {"reads": "{a}", "step": 0}}, "mine: text_form.step"),
    ({"texts": ["a", "b", "c"]}, "mine: texts"),
    ({"choices": ["b", "c"]}, "mine: choices"),
    ({"kind": "ranking", "labels": [], "choices": ["b", "c"]}, "mine: choices"),
    ({"splits": {"training": [{"file": "a.tsv"}]}}, "mine: splits"),
    ({"splits": {}}, "mine: head"),
    ({"head": "mnli"}, "mine: head"),
    ({"submissions": {"test": {"file": "a.tsv"}}}, "mine: submissions"),
    (source(part=[0.5]), "mine: splits.train.0.part"),
    (source(file="{label}.tsv"), "mine: train: file"),
    ({**SPAN, "stride": 0}, "mine: stride"),
    ({**SPAN, "texts": ["context"]}, "mine: texts"),
    ({**SPAN, **source(format="jsonl")}, "mine: train: format"),
    ({**TAGGED, "labels": ["B-x", "I-x"]}, "mine: labels"),
    ({**TAGGED, "texts": ["a", "b"]}, "mine: texts"),
    (submission(file="../mine.tsv"), "mine: submissions: file"),
    (submission(file="mine.tsv", labels=["a"]), "mine: submissions: labels"),
    (submission(file="a.jsonl", form="multirc"), "mine: submissions: form"),
    (submission(file="a.conll", form="conll"), "mine: submissions: form"),
]


@pytest.mark.parametrize(("changes", "where"), WRONG)
def test_wrong_rows(load, changes, where):
    load(mine=ROW)
    with refused(f"table.yaml: {where}"):
        load(mine={**ROW, **changes})


def test_a_row_begins_as_another_one_and_new_labels_without_what_follows_their_order(load):
    before = load_tables()["mnli"]
    mine = {"like": "mnli", "splits": {"test": [{"file": "mine.tsv"}]}}
    rows = load(mnli={"like": "mnli", "max_positions": 512}, mine=mine)
    assert rows["mnli"] == replace(before, max_positions=512)
    splits = before.splits | {"test": [Source("mine.tsv")]}
    others = {"test/mismatched": before.submissions["test/mismatched"]}
    assert rows["mine"] == replace(rows["mnli"], splits=splits, submissions=others)  # of the row above in the file
    for name in ("multirc", "copa", "sst2"):
        row = {"like": name, "labels": load_tables()[name].labels[::-1], "choices": ["b", "a"] * (name == "copa")}
        made = load(**{name: row})[name]
        assert (made.labels, made.text_form, made.submissions) == (row["labels"], None, {})


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
    # Wrong names are unknown, twice by a benchmark, or without training data.
    for names in (["rte", "rtee"], ["rte", "all"], ["mnli", "ax"]):
        with refused("--glue-tasks"):
            chosen_rows(load_tables(), names)
