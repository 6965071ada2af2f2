"""The steps of `docs/development/add_a_system.md`, followed: a folder, a row in the battery, no more."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import commands
from tests.helpers.commands import PLUGIN, REPOSITORY, training_arguments

TOY = Path(__file__).parents[2] / "systems" / "toy"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project to which the toy has been added; returns its folder and the environment that finds it."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("fairseq_mtmoe", "tests"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "toy"))
    shutil.copy(REPOSITORY / "pyproject.toml", folder)
    shutil.copytree(
        TOY, folder / "fairseq_mtmoe/toy", ignore=shutil.ignore_patterns("row.py", "own_tests.py", "__pycache__")
    )
    shutil.copy(TOY / "row.py", folder / "tests/systems/rows/toy.py")
    shutil.copy(TOY / "own_tests.py", folder / "tests/unit/test_toy.py")
    return folder, {**os.environ, "PYTHONPATH": str(folder), "PYTHONWARNINGS": "ignore"}


@pytest.mark.scheduled
def test_it_passes_the_battery_and_keeps_the_import_rule(project):
    folder, environment = project
    files = ("tests/integration/systems/test_battery.py", "tests/unit/test_toy.py", "tests/unit/test_imports.py")
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-k", "toy or one_way", *files]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    found = re.search(r"== (\d+) passed, \d+ deselected in", result.stdout)
    assert found and int(found[1]) > 10, result.stdout[-2000:]


def test_it_trains_generates_and_is_sparsified_from_the_command_line(project, digits, tmp_path):
    folder, environment = project
    options = ("--arch", "toy_tiny", "--dense-updates", 5, "--max-update", 10, "--disable-validation")
    arguments = training_arguments(digits, tmp_path, *options)
    plugin = [str(folder / "fairseq_mtmoe") if part == PLUGIN[1] else part for part in arguments]
    trained = commands.run("fairseq-train", *plugin)  # which takes the plugin from `--user-dir`
    assert "sparsified after 5 dense updates: 2 layers" in trained.stdout + trained.stderr
    evaluate = ("evaluate", digits, "--path", tmp_path / "checkpoint_last.pt", "--out", tmp_path / "scores", "--cpu",
                "--max-tokens", 4000)  # fmt: skip
    with commands.start_command("mtmoe", *evaluate, environment=environment) as process:
        assert process.wait(500) == 0 and "BLEU" in process.out(), process.err()[-3000:]
