"""`make demo-glue` at a reduced size: its own tasks, and the commands of its script with a tiny encoder."""

import importlib
import json
import sys
from itertools import chain

import pytest
from fairseq_cli import validate

from fairseq_mtmoe.nlu.data.reading import read_split, sets_of
from fairseq_mtmoe.nlu.data.table import load_tables
from tests.helpers.benchmark import make_encoder
from tests.helpers.commands import REPOSITORY
from tests.helpers.invoked import mtmoe
from tests.helpers.scripts import called_by
from tests.helpers.training import run_here

DEMO = REPOSITORY / "examples/glue/demo"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("glue_demo") / "glue" / "data"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DEMO)  # the maker and its neighbour are of no package
        maker = importlib.import_module("make_tasks")
    maker.command.main([str(folder), "--libraries", "joblib,sphinx", "--size", "120"], standalone_mode=False)
    return folder


def test_no_text_of_one_split_is_in_another(data):
    """A sentence with exchanged words is the set of its words."""
    rows, found = load_tables([DEMO / "tasks.yaml"]), []
    for split in ("train", "valid", "test"):
        tasks = [read_split(task_set, labelled=False) for task_set in sets_of(data, rows, split) if task_set.place]
        texts = chain.from_iterable(texts for task in tasks for example in task for texts in example.candidates)
        found.append({" ".join(sorted(text.split())) for text in texts})
        assert len(tasks) == 5 and len(found[-1]) > 30
    assert len(set.union(*found)) == sum(map(len, found))


@pytest.mark.scheduled
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
