"""`mtmoe` itself: what it lists, and what it does not wait for."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairseq_mtmoe import cli
from fairseq_mtmoe.cli.main import COMMANDS, commands
from tests.helpers.invoked import invoked
from tests.helpers.refused import refused

IMPORT_ALL = """
import importlib, sys
from click.testing import CliRunner
from fairseq_mtmoe.cli.main import COMMANDS, commands

assert CliRunner().invoke(commands, ["--help"]).exit_code == 0
print(*(name for name in sys.modules if name.startswith("fairseq_mtmoe.cli.")))
groups = "prepare", "prepare corpora"
for line in (*groups, "evaluate", "download", "extend", "report", "suggest"):
    for arguments, code in (["--help"], 0), (["--nonsense"], 2):
        assert CliRunner().invoke(commands, [*line.split(), *arguments]).exit_code == code, line
print(*({"numpy", "sacrebleu", "fontTools", "yaml", "torch"} & sys.modules.keys()))
for name in COMMANDS.keys() - {"upcycle"}:  # whose options are a model's
    assert CliRunner().invoke(commands, [name, "--help"]).exit_code == 0, name
print(*({"torch", "fairseq", "transformers", "scipy", "altair", "dask"} & sys.modules.keys()))
"""


def test_a_checkpoint_that_is_not_there_is_said(tmp_path):
    (tmp_path / "text").write_text("a\n")
    text, out = tmp_path / "text", tmp_path / "out"
    for line in (
        "translate nope.pt --from en --to de", f"translate {text}:nope.pt --from en --to de",
        f"score nope.pt {text} {text} --from en --to de", "evaluate data --path nope.pt",
        "predict data --path nope.pt", f"export-hf nope.pt {out}", f"add-task nope.pt {out} --task sst2",
        f"extend nope.pt {out} --language sw --text {text} --like en", f"merge nope.pt {out}",
    ):  # fmt: skip
        with refused("nope.pt"):
            invoked(*line.split())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_output_without_room_is_one_sentence():
    """In a process of its own, as Python writes the rest of the output when it ends."""
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", "from fairseq_mtmoe.cli.main import main; main()", "--version"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: The output cannot be written: No space left on device.\n"


def test_help_lists_each_command_and_imports_none():
    of_files = {path.stem.replace("_", "-") for path in Path(cli.__file__).parent.glob("[!_]*.py")}
    assert COMMANDS.keys() | {"main"} == of_files
    shown = invoked("--help").stdout
    assert all(f"{name} " in shown and summary in shown for name, summary in COMMANDS.items())
    page = (Path(cli.__file__).parents[2] / "docs/reference/commands.rst").read_text()
    assert all(f":prog: mtmoe {name}\n" in page for name in COMMANDS)
    assert "Did you mean 'translate'?" in CliRunner().invoke(commands, ["translat"]).output
    assert 'fairseq-train DATA --user-dir "$(mtmoe user-dir)"' in CliRunner().invoke(commands, ["train", "DATA"]).output
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=True)
    by_help, by_light, by_all = done.stdout.splitlines()
    assert by_help == "fairseq_mtmoe.cli.main"
    assert by_light == by_all == ""
