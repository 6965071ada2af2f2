"""`examples/pemt`: scripts that the README names, with the right sizes, one of which runs through."""

import json
import os
import re
import subprocess

import pytest

from fairseq_mtmoe.data.nlu.table import load_tables
from tests.helpers.benchmark import make_benchmark
from tests.helpers.commands import BIN, ENVIRONMENT, REPOSITORY
from tests.helpers.text_to_text import make_t5

FOLDER = REPOSITORY / "examples" / "pemt"
SCRIPTS = sorted(path for path in FOLDER.glob("*.sh") if path.name != "runs.sh")


def test_the_readme_names_every_script():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+\.sh)`", text, re.MULTILINE)) == {path.name for path in SCRIPTS}


def test_the_sizes_of_tasks_are_those_of_the_table():
    own = (FOLDER / "runs.sh").read_text(encoding="utf-8")
    beside = (REPOSITORY / "examples" / "glue" / "stages.sh").read_text(encoding="utf-8")
    added = re.findall(r"\[(\w+)\]=(\d+)", own.split("declare -A POSITIONS")[0])
    rows = load_tables()
    assert added == [(name, str(rows[name].splits["train"][0].count)) for name, _ in added] and added
    known = {name for name, _ in added} | set(re.findall(r"\[(\w+)\]=", beside))
    named = {name for found in re.findall(r"(?:TASKS|SOURCES):-([\w,]+)", own) for name in found.split(",")}
    assert len(named) == 15 and named <= known


@pytest.mark.slow
def test_few_examples_with_sources_and_without(tmp_path):
    """From nothing to the table: a source's file, LoRA and PEMT from four examples, scores; nothing is done twice."""
    make_benchmark(tmp_path, {"train": 300, "dev": 20})
    make_t5(tmp_path / "tiny.pt")
    environment = {
        **ENVIRONMENT, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY), "GLUE_DIR": str(tmp_path),
        "T5": str(tmp_path / "tiny.pt"), "RUNS": str(tmp_path / "runs"), "SEEDS": "7", "SIZE": "", "SOURCES": "cola",
        "TASKS": "rte", "SHOTS": "4",
    }  # fmt: skip
    options = ("--cpu", "--max-update", "2", "--adapter-rank", "4")

    def run():
        return subprocess.run(
            ["bash", FOLDER / "few_shot.sh", *options], cwd=REPOSITORY, env=environment, capture_output=True, text=True,
            timeout=900, check=False,
        )  # fmt: skip

    done = run()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    runs = tmp_path / "runs" / "tiny"
    assert [path.name for path in (runs / "sources-lora" / "cola").glob("*.pt")] == ["cola.pt"]
    log = (runs / "pemt_4-7" / "rte" / "mtmoe.jsonl").read_text(encoding="utf-8")
    begun, *events = [json.loads(line) for line in log.splitlines()]
    assert begun["sizes"] == {"rte": 4}
    assert {tuple(event["sources"]) for event in events if event["event"] == "sources"} == {("cola",)}
    assert all(name in done.stdout for name in ("lora_4", "pemt_4"))
    assert "==" not in run().stdout
