"""`examples/glue`: scripts that bash understands, with the right sizes, one of which runs through."""

import json
import re
import subprocess

import pytest

from fairseq_mtmoe.data.nlu.table import load_tables
from tests.helpers.benchmark import make_benchmark, make_encoder
from tests.helpers.commands import REPOSITORY
from tests.helpers.scripts import run_script

FOLDER = REPOSITORY / "examples" / "glue"
SCRIPTS = sorted(path for path in FOLDER.glob("*.sh") if path.name != "stages.sh")


def test_bash_understands_every_example():
    for script in REPOSITORY.glob("examples/**/*.sh"):
        subprocess.run(["bash", "-n", script], check=True)


def test_the_sizes_of_tasks_are_those_of_the_table():
    text = (FOLDER / "stages.sh").read_text(encoding="utf-8")
    sizes = {name: int(count) for name, count in re.findall(r"\[(\w+)\]=(\d+)", text)}
    rows = load_tables()
    assert sizes == {name: rows[name].splits["train"][0].count for name in sizes}
    lists = [re.findall(r"(?:TASKS|CLEAN|NEW|MORE):-([\w,=]+)", path.read_text(encoding="utf-8")) for path in SCRIPTS]
    named = {
        name
        for found in [*lists, re.findall(r"TASKS:-([\w,]+)", text)]
        for one in found
        for name in re.split("[,=]", one)
    }
    assert named == set(sizes) - {"sick"}


@pytest.mark.rare
def test_few_examples_of_a_new_task(tmp_path):
    """From nothing to the table: a mixture, its gate in a new task with a tenth of the examples, scores."""
    make_benchmark(tmp_path, {"train": 300, "dev": 20})
    make_encoder(tmp_path / "tiny.pt")
    printed = run_script(
        FOLDER / "few_shot.sh", "--cpu", "--max-positions", 24, GLUE_DIR=tmp_path, ENCODER=tmp_path / "tiny.pt",
        RUNS=tmp_path / "runs", SEEDS=1, UPDATES=2, TASKS="cola,wic", SYSTEMS="mt_tag", NEW="rte=wic", SHARES=0.1,
    )  # fmt: skip
    tuned = tmp_path / "runs" / "tiny" / "mt_tag_0.1-1" / "rte"
    begun = json.loads((tuned / "mtmoe.jsonl").read_text(encoding="utf-8").splitlines()[0])
    settings = json.loads((tuned / "scores.json").read_text(encoding="utf-8"))["settings"]
    assert begun["sizes"] == {"rte": 30}
    assert settings["finetune_from_model"].endswith("mt_tag-1/mixture/checkpoint_last.pt")
    assert all(name in printed for name in ("single_task_0.1", "mt_tag_0.1"))
