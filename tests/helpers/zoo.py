"""Data and checkpoints that the tests of several files read: fixtures of `tests/conftest.py` of the same names."""

import fcntl
import os
import shutil
from pathlib import Path

import pytest

from fairseq_mtmoe import register
from tests.helpers import translated_text, untrained
from tests.helpers.benchmark import make_benchmark, make_encoder, make_words_and_entities
from tests.helpers.digits import make_digit_corpus
from tests.helpers.text_to_text import make_t5


def folder_of(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is made once for all processes of a run of tests; those that change files copy it."""
    own = tmp_path_factory.getbasetemp()
    zoo = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "zoo"
    zoo.mkdir(exist_ok=True)
    folder, complete = zoo / name, zoo / f"{name}.complete"
    with open(zoo / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)  # what an exception has left
            folder.mkdir()
            register()
            MAKERS[name](folder)
            complete.touch()
    return folder


def _text_data(folder: Path) -> None:
    """A data directory of a SentencePiece model's pieces, and `sparse.pt`, a model of it that babbles."""
    translated_text.make_text_data(folder)
    untrained.save_model(folder, folder / "sparse.pt", *translated_text.SPARSE)


def _stock(folder: Path) -> None:
    """`checkpoint.pt`, a stock transformer, and `data`; it imitates the references of en-aa, which alone have text."""
    data, checkpoint = untrained.make_data(folder / "data"), folder / "checkpoint.pt"
    untrained.save_model(data, checkpoint)
    untrained.write_raw(data, "en-aa", untrained.imitate(data, checkpoint, "en-aa"))


def _benchmark(folder: Path) -> None:
    """A benchmark of eight tasks, and untrained models: `encoder.pt` and `t5.pt`."""
    for make in (make_benchmark, make_words_and_entities):
        make(folder, {"train": 40, "dev": 21})
    make_encoder(folder / "encoder.pt")
    make_t5(folder / "t5.pt")


MAKERS = {
    "digits": lambda folder: make_digit_corpus(folder, train=200, valid=21, test=13),
    "many_digits": make_digit_corpus,  # enough to learn to translate
    "text_data": _text_data,
    "stock": _stock,
    "benchmark": _benchmark,
}
