"""`examples/pemt`: scripts that the README names, with the right sizes, one of which runs through."""

import json
import os
import re
import subprocess

import pytest

from fairseq_mtmoe.data.nlu.table import load_tables
from tests.helpers.benchmark import make_benchmark
from tests.helpers.commands import BIN, ENVIRONMENT, REPOSITORY
from tests.helpers.written_t5 import make_t5

FOLDER = REPOSITORY / "examples" / "pemt"
SCRIPTS = sorted(path for path in FOLDER.glob("*.sh") if path.name != "runs.sh")


def test_the_readme_names_every_script():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+\.sh)`", text, re.MULTILINE)) == {path.name for path in SCRIPTS}


def test_the_sizes_of_tasks_are_those_of_the_table():
    found = re.findall(r"\[(\w+)\]=(\d+)", (FOLDER / "runs.sh").read_text(encoding="utf-8").split("POSITIONS")[0])
    rows = load_tables()
    assert found == [(name, str(rows[name].splits["train"][0].count)) for name, _ in found] and found
