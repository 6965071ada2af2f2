"""Checkpoint files: complete or absent, and never executed."""

import argparse
import os
import pickle

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from fairseq_mtmoe import register
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.errors import UserError


@pytest.fixture(autouse=True, scope="module")
def plugin():
    register()


class Touch:
    """Unpickling this creates a file: what a hostile checkpoint could do."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def state():
    return {"cfg": {"model": argparse.Namespace(dropout=0.1)}, "args": None, "model": {"w": torch.arange(1000.0)}}


def test_saved_checkpoint_loads_equal(tmp_path):
    path = str(tmp_path / "checkpoint.pt")
    file_io.save(state(), path)
    loaded = file_io.load(path)
    assert torch.equal(loaded["model"]["w"], state()["model"]["w"]) and loaded["cfg"]["model"].dropout == 0.1
    assert os.listdir(tmp_path) == ["checkpoint.pt"]


def test_fairseq_saves_copies_and_loads_through_these_functions(tmp_path):
    register()  # a second time changes nothing
    first, second = str(tmp_path / "a.pt"), str(tmp_path / "b.pt")
    checkpoint_utils.torch_persistent_save({**state(), "optimizer_history": [{"optimizer_name": "A"}]}, first)
    assert PathManager.copy(first, second, overwrite=True) and not PathManager.copy(first, second)
    assert file_io.load(second)["model"]["w"].shape == (1000,)
    assert checkpoint_utils.torch_persistent_save is file_io.save
    assert hasattr(checkpoint_utils.load_checkpoint_to_cpu, "installed_by")


def test_an_error_of_another_kind_comes_through_as_it_is(tmp_path):
    with pytest.raises(RuntimeError, match="illegal") as caught, file_io.complete_or_absent(str(tmp_path / "a.pt")):
        raise RuntimeError("an illegal memory access")
    assert caught.value.__cause__ is None and not os.listdir(tmp_path)


def test_loading_never_executes(tmp_path):
    path, proof = str(tmp_path / "bad.pt"), tmp_path / "executed"
    torch.save({"model": Touch(proof)}, path)
    for load in (file_io.load, checkpoint_utils.load_checkpoint_to_cpu):
        with pytest.raises(UserError, match="holds other Python objects"):
            load(path)
    assert not proof.exists()
    with open(path, "wb") as file:
        pickle.dump(Touch(proof), file)
    with pytest.raises(UserError, match=r"bad\.pt"):
        file_io.load(path)
    assert not proof.exists()


@pytest.mark.parametrize("keep", [0, 10, 2000, -1])
def test_truncated_file_is_one_sentence(tmp_path, keep):
    path = str(tmp_path / "checkpoint.pt")
    file_io.save(state(), path)
    with open(path, "rb") as file:
        content = file.read()
    with open(path, "wb") as file:
        file.write(content[:keep])
    with pytest.raises(UserError, match="truncated or damaged; use an older one"):
        file_io.load(path)


def test_a_file_of_another_kind_is_no_whole_checkpoint(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("# A heading\n")
    with pytest.raises(UserError, match="must be a whole checkpoint"):
        file_io.load(str(path))


def test_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="must be a checkpoint file, but there is none"):
        file_io.load(str(tmp_path / "none.pt"))
    with pytest.raises(UserError, match="Is a directory"):
        file_io.load(str(tmp_path))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_full_disk_keeps_the_last_good_checkpoint(tmp_path, monkeypatch):
    path = str(tmp_path / "checkpoint_last.pt")
    file_io.save(state(), path)
    real_open = open

    def open_on_a_full_disk(name, mode="r", *args, **kwargs):
        return real_open("/dev/full" if "w" in mode else name, mode, *args, **kwargs)

    monkeypatch.setattr(file_io, "open", open_on_a_full_disk, raising=False)
    big = {"model": {"w": torch.zeros(1_000_000)}}
    with pytest.raises(UserError, match="No space left on device; what was there before is as it was"):
        file_io.save(big, path)
    with pytest.raises(UserError, match="No space left on device"):
        file_io.copy(path, str(tmp_path / "checkpoint_best.pt"), overwrite=True)
    monkeypatch.undo()
    assert torch.equal(file_io.load(path)["model"]["w"], state()["model"]["w"])
    assert os.listdir(tmp_path) == ["checkpoint_last.pt"]


def test_an_interrupted_save_leaves_nothing_behind(tmp_path):
    path = str(tmp_path / "checkpoint_last.pt")
    with pytest.raises(KeyboardInterrupt), file_io.complete_or_absent(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    with pytest.raises(ZeroDivisionError), file_io.complete_or_absent(path) as file:
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []
