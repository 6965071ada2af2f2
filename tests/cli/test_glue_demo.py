"""`make demo-glue` at a reduced size: its own tasks, and the commands of its script with a tiny encoder."""

import csv
import importlib
import json
import random
import sys

import pytest
from fairseq_cli import validate

from fairseq_mtmoe.data.nlu.reading import read_split
from fairseq_mtmoe.data.nlu.table import Kind, chosen_rows, load_tables
from tests.helpers.benchmark import make_encoder
from tests.helpers.commands import REPOSITORY
from tests.helpers.invoked import mtmoe
from tests.helpers.refused import refused
from tests.helpers.scripts import called_by
from tests.helpers.training import run_here

DEMO = REPOSITORY / "examples/glue/demo"
TRAIN = {"word_order": 120, "same_text": 120, "nearness": 30, "next_sentence": 30, "function_name": 12}
MADE = ("--libraries", "joblib,sphinx", "--size", "120")


@pytest.fixture(scope="module")
def maker():
    """The module `make_tasks`, which like its neighbour is of no package."""
    sys.path.insert(0, str(DEMO))
    try:
        return importlib.import_module("make_tasks")
    finally:
        sys.path.remove(str(DEMO))


@pytest.fixture(scope="module")
def data(maker, tmp_path_factory):
    folder = tmp_path_factory.mktemp("glue_demo") / "glue" / "data"
    maker.command.main([str(folder), *MADE], standalone_mode=False)
    return folder


def records(path):
    lines = path.read_text().splitlines()
    if path.suffix == ".jsonl":
        return list(map(json.loads, lines))
    return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_sentences_are_a_docstrings_prose_and_names_become_words(maker):
    docstring = "Return the *nearest* node of :class:`~networkx.Graph` ``G``.\n\n    >>> no(sentence)\n"
    assert sys.modules["docstrings"].sentences_of(docstring) == ["Return the nearest node of Graph G."]
    names = {"HTTPResponseBase": ["http", "response", "base"], "_fit2d": ["fit", "d"]}
    assert {name: list(maker.words_of(name)) for name in names} == names
    words = ["The", "graph,", "and", "the", "edges", "of", "the", "graph", "are", "new."]
    other = maker.exchanged(" ".join(words), random.Random(1)).split()
    assert sum(a != b for a, b in zip(words, other, strict=True)) == 2 and sorted(other) == sorted(words)


def test_subpackages_are_dealt_out_whole(maker):
    description = sys.modules["docstrings"].Description
    known = [
        description(library, f"{library}.{part}", "", "", (f"{library} {part} {n}",))
        for library in "ab" for part in range(20) for n in range(300 if part == 7 else 10)
    ]  # fmt: skip
    splits = maker.split_descriptions(known, random.Random(1))
    parts = {split: {d.part for d in descriptions} for split, descriptions in splits.items()}
    assert sum(map(len, parts.values())) == len(set.union(*parts.values())) == 40
    assert sorted(d.sentences for d in known) == sorted(d.sentences for dealt in splits.values() for d in dealt)
    assert {"a.7", "b.7"} <= parts["train"]  # larger than what is held out
    assert {split: len(dealt) for split, dealt in splits.items()} == {"train": 720, "valid": 180, "test": 80}


def test_files_are_what_the_table_says(data):
    for name, row in chosen_rows(load_tables([DEMO / "tasks.yaml"]), tuple(TRAIN)).items():
        read = {split: read_split(data, row, split, labelled=split != "test") for split in ("train", "valid", "test")}
        assert [len(read[split]) for split in ("train", "valid", "test")] == [TRAIN[name], 12, 8]
        assert not any("label" in record or "score" in record for record in records(next((data / name).glob("test.*"))))
        labels = [example.label for example in read["train"]]
        if row.kind is not Kind.regression:
            assert sum(labels) == len(labels) / 2
            assert labels != labels[:2] * (len(labels) // 2)  # in turn: a number would tell the label
        else:
            assert set(labels) == {0, 1, 2, 3}


def test_no_text_of_one_split_is_in_another(data):
    """A sentence with exchanged words is the set of its words."""
    fields, found = ("sentence", "sentence1", "sentence2", "premise", "choice1", "choice2"), {}
    for split in ("train", "valid", "test"):
        tasks = [records(path) for path in data.glob(f"*/{split}.*")]
        found[split] = {" ".join(sorted(one[f].split())) for task in tasks for one in task for f in fields if f in one}
        assert len(tasks) == len(TRAIN) and len(found[split]) > 30
    assert len(set.union(*found.values())) == sum(map(len, found.values()))


def test_it_is_made_once_and_the_same_again(maker, data, tmp_path, capsys):
    maker.command.main([str(data)], standalone_mode=False)
    assert capsys.readouterr().out == f"{data} exists already\n"
    maker.command.main([str(tmp_path / "again"), *MADE], standalone_mode=False)
    files = [path.relative_to(data) for path in data.glob("*/*.*")]
    assert len(files) == 15
    assert [file for file in files if (tmp_path / "again" / file).read_bytes() != (data / file).read_bytes()] == []


@pytest.mark.parametrize(
    ("options", "name"),
    [(("click",), "--libraries"), (("click,no_such",), "no_such"), (("click,rich", "--size", "5000"), "--libraries")],
)
def test_what_it_cannot_be_made_of_is_refused(maker, options, name, tmp_path):
    with refused(name):
        maker.command.main([str(tmp_path / "data"), "--libraries", *options], standalone_mode=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.rare
@pytest.mark.slow
def test_its_commands_run_one_after_the_other(data, monkeypatch):
    """Each that the script calls, in its order and in this process, with a tiny encoder and two updates."""
    runs = data.parents[1]
    make_encoder(runs / "glue" / "encoder.pt")
    commands = called_by(DEMO / "demo.sh", RUNS=runs)
    assert commands[0] == ["python", f"{DEMO}/make_tasks.py", str(data)]
    tiny = ("--max-update", 2, "--max-positions", 12, "--virtual-epoch-size", 64)
    monkeypatch.chdir(REPOSITORY)
    for command, *arguments in commands[1:]:
        arguments = [argument.removesuffix("_minilm") for argument in arguments]
        if command == "mtmoe":
            mtmoe(*arguments)
        elif command == "fairseq-train":
            run_here((*arguments, *tiny))
        else:
            monkeypatch.setattr(sys, "argv", [command, *arguments])
            validate.cli_main()
    scores = json.loads((runs / "glue" / "mt_tag" / "scores" / "scores.json").read_text())
    mixture = {"word_order", "same_text", "nearness", "next_sentence"}
    assert set(scores["tasks"]) == mixture
    assert {path.stem for path in (runs / "glue" / "predictions").iterdir()} >= mixture
    assert (runs / "glue" / "mt_tag" / "plots" / "experts.png").exists()
    assert "new_task_reused_gate" in (runs / "glue" / "report.html").read_text()
