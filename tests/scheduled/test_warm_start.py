import subprocess

import pytest

from tests.helpers.commands import BIN, ENVIRONMENT, REPOSITORY
from tests.helpers.warm_start import run_forked


@pytest.mark.parametrize(("command", "arguments"), [
    ("fairseq-train", ["--user-dir", "fairseq_mtmoe", "--task", "translation_heated", "--arch", "base_moe", "x",
                       "--save-dir", "{folder}"]),
    ("mtmoe", ["evaluate", "nowhere", "--path", "nothing.pt"]),
])  # fmt: skip
def test_the_same_code_and_output_as_a_fresh_process(command, arguments, tmp_path):
    arguments = [argument.format(folder=tmp_path) for argument in arguments]
    forked = run_forked(command, arguments, None, REPOSITORY, ENVIRONMENT, seconds=100)
    fresh = [str(BIN / command), *arguments]
    fresh = subprocess.run(fresh, capture_output=True, text=True, cwd=REPOSITORY, env=ENVIRONMENT)
    assert seen_of(forked) == seen_of(fresh)


def seen_of(result):
    """What a command leaves, without the time, a traceback's lines, and what other packages say when imported."""
    lines = f"{result.returncode}\n{result.stdout}\nand errors:\n{result.stderr}".splitlines()
    lines = [line.split(" | ", 1)[-1] for line in lines if not line.startswith((" ", "Traceback"))]
    return [line for line in lines if not any(name in line for name in ("fairscale", "tensorboardX"))]
