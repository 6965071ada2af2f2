"""Truncated, damaged and foreign files: a reader ends with a value or one sentence, in its time and memory.

`make test-fuzz` makes more tries than `make test-all`, from FUZZ_SEED.
"""

import faulthandler
import gzip
import multiprocessing
import os
import random
import resource
import traceback
from pathlib import Path

import pytest

from tests.helpers.damage import damage, value_or_sentence
from tests.scheduled.readers import READERS, Reader

TRIES = int(os.environ.get("FUZZ_TRIES", "6"))
SEED = os.environ.get("FUZZ_SEED", "0")
MEMORY = 3 << 30  # bytes more than the process has when the try begins
SECONDS = 30  # of the processor
LONGEST = 300  # seconds on a busy machine
FOREIGN = (b"", b"\0" * 4096, b"\x89PNG\r\n\x1a\n" + b"\1" * 200, gzip.compress(b"text"), b"a line\n" * 50, b"[1, {}]")


def accident(draw: random.Random, content: bytes) -> bytes:
    """The content cut, changed in some places, or that of another kind of file."""
    kind = draw.choice(("cut", "damaged", "foreign"))
    if kind == "cut":
        return content[: draw.randrange(len(content))]
    return damage(draw, content) if kind == "damaged" else draw.choice(FOREIGN)


def end_of_try(reader: Reader, seed: str, folder: Path) -> str:
    """Return what is wrong with the end of a try in a process of its own; empty if nothing is."""
    path = reader.write(folder)
    path.write_bytes(accident(random.Random(seed), path.read_bytes()))
    report = folder.with_suffix(".report")
    child = multiprocessing.get_context("fork").Process(target=_try, args=(reader, folder, report))
    child.start()
    child.join(LONGEST)
    if child.is_alive():
        child.kill()
        return f"it takes more than {LONGEST} seconds"
    return report.read_text() if report.exists() else f"exit code {child.exitcode}" * bool(child.exitcode)


def _try(reader: Reader, folder: Path, report: Path) -> None:
    faulthandler.disable()
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    used = int(sum(os.times()[:2]))
    resource.setrlimit(resource.RLIMIT_CPU, (used + SECONDS, used + SECONDS + 1))
    try:
        value_or_sentence(lambda: reader.read(folder))
    except BaseException:
        report.write_text(traceback.format_exc())
    os._exit(0)


@pytest.mark.parametrize("name", READERS)
def test_a_file_after_an_accident_is_a_value_or_a_sentence(name, tmp_path):
    (tmp_path / "whole").mkdir()
    READERS[name].write(tmp_path / "whole")
    READERS[name].read(tmp_path / "whole")
    for number in range(TRIES):
        folder = tmp_path / str(number)
        folder.mkdir()
        seed = f"{name} {SEED} {number}"
        assert end_of_try(READERS[name], seed, folder) == "", f"{seed}: {folder}"
