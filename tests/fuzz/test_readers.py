"""A few tries of each reader; `make test-fuzz` makes more."""

import itertools
import os
import subprocess
import sys

import pytest

from tests.fuzz.harness import Reader, attempt
from tests.helpers.commands import REPOSITORY


@pytest.mark.rare
def test_new_files_are_a_value_or_a_sentence(tmp_path):
    # In a process of its own: V8 waits for ever in a fork of a process that has drawn charts, as other tests do.
    environment = {**os.environ, "FUZZ_SEED": "0", "FUZZ_TRIES": "3", "FUZZ_KEPT": str(tmp_path)}
    command = [sys.executable, "-m", "tests.fuzz"]
    result = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr[-3000:]}"
    assert result.stdout.count("  3 tries, 0 findings") == result.stdout.count("FUZZ_SEED=0") >= 12


ENDINGS = {
    "more than 1 seconds": lambda folder, draw: sum(itertools.count()),
    "MemoryError": lambda folder, draw: bytearray(1 << 36),
    "signal 6": lambda folder, draw: os.abort(),
    "ZeroDivisionError": lambda folder, draw: 1 / 0,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_ends_otherwise_is_found_and_its_files_are_kept(ending, tmp_path):
    def make(draw, folder):
        (folder / "file").write_text(str(draw.random()))

    reader = Reader("x", make, ENDINGS[ending], seconds=1)
    found = attempt(reader, "3-4", tmp_path)
    assert found is not None and found.what.startswith(ending) and found.folder.name == "x-3-4"
    first = (found.folder / "file").read_text()
    assert attempt(reader, "3-4", tmp_path) is not None and (found.folder / "file").read_text() == first
    assert attempt(Reader("x", make, lambda folder, draw: None), "3-4", tmp_path) is None
