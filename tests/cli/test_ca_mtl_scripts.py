"""`examples/ca_mtl`: scripts with the right sizes, one of which runs through."""

import json
import re
import subprocess

import pytest

from fairseq_mtmoe.data.nlu.table import chosen_rows, load_tables
from tests.helpers.benchmark import make_benchmark, make_encoder
from tests.helpers.commands import REPOSITORY
from tests.helpers.scripts import run_script

FOLDER = REPOSITORY / "examples" / "ca_mtl"


def test_the_sizes_of_new_tasks_are_those_of_the_table():
    found = re.findall(r"\[(\w+)\]=(\d+)", (FOLDER / "new_tasks.sh").read_text(encoding="utf-8"))
    rows = load_tables()
    assert found == [(name, str(rows[name].splits["train"][0].count)) for name, _ in found] and found


def test_the_mixtures_have_as_many_tasks_as_they_are_called_by():
    found = re.findall(r"\[(\d+)\]=([\w,]+)", (FOLDER / "many_tasks.sh").read_text(encoding="utf-8"))
    rows = load_tables()
    assert [len(chosen_rows(rows, tasks.split(","))) for _, tasks in found] == [int(number) for number, _ in found]
    assert [number for number, _ in found] == ["9", "15", "24"]


@pytest.mark.parametrize("script", ["ca_mtl/new_tasks.sh", "glue/few_shot.sh", "glue/gates.sh"])
def test_a_new_task_of_unknown_size_is_refused_before_anything_is_trained(tmp_path, script):
    variables = {"PATH": "/usr/bin:/bin", "GLUE_DIR": "/nowhere", "ENCODER": "tiny.pt", "NEW": "anli"}
    command = ["bash", FOLDER.parent / script]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == "" and not list(tmp_path.iterdir())
    assert re.fullmatch(r"`NEW` must be some of .*scitail.*, but has anli: add its number to EXAMPLES.\n", done.stderr)


@pytest.mark.rare
def test_a_new_task_from_the_mixture_and_alone(tmp_path):
    """From nothing to the table: CA-MTL's mixture, a grown checkpoint, few of the new task's examples, scores."""
    make_benchmark(tmp_path, {"train": 300, "dev": 20})
    make_encoder(tmp_path / "tiny.pt")
    printed = run_script(
        FOLDER / "new_tasks.sh", "--cpu", "--max-positions", 24, GLUE_DIR=tmp_path, ENCODER=tmp_path / "tiny.pt",
        RUNS=tmp_path / "runs", SEEDS=1, UPDATES=2, ARCH="ca_mtl", TASKS="cola,wic", NEW="rte", STARTS="wic",
        SHARES=0.01, FEW_UPDATES=12,
    )  # fmt: skip
    runs = tmp_path / "runs" / "tiny"
    adapted = runs / "from_wic_0.01-1" / "rte"
    events = [json.loads(line) for line in (adapted / "mtmoe.jsonl").read_text(encoding="utf-8").splitlines()]
    begun = events[0]
    validated = [event["update"] for event in events if event["event"] == "valid"]
    assert validated == [2, 4, 6, 8, 10, 12], "an epoch of few examples is an update, and validations are ten at most"
    settings = json.loads((adapted / "scores.json").read_text(encoding="utf-8"))["settings"]
    assert begun["sizes"] == {"rte": 3} and not (adapted / "begin.pt").exists()
    assert settings["finetune_from_model"].endswith("begin.pt")
    assert settings["conditional"] == "attention,bottleneck,alignment,norm"
    mixture = [json.loads(line) for line in (runs / "ca_mtl-1" / "mtmoe.jsonl").read_text().splitlines()]
    trained = sum(sum(event["trained"].values()) for event in mixture if event["event"] == "selection")
    assert trained == 2 * 7  # an epoch has a tenth of all updates' examples, and one more
    assert all(name in printed for name in ("alone_0.01", "from_wic_0.01"))
