"""Checkpoint files: complete or absent, and never executed."""

import argparse
import os
import pickle

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from fairseq_mtmoe import register
from fairseq_mtmoe.checkpoints import file_io, loading
from fairseq_mtmoe.checkpoints.file_io import readable
from fairseq_mtmoe.errors import UserError
from tests.helpers.checkpoint_files import verify


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


def test_what_is_saved_and_copied_loads(tmp_path):
    first, second = str(tmp_path / "a.pt"), str(tmp_path / "b.pt")
    file_io.save_anywhere(state(), first, in_background=True)
    file_io.copy(first, second)
    assert file_io.load(second)["model"]["w"].shape == (1000,)
    assert verify(first) == verify(second) is not None
    assert hasattr(checkpoint_utils.load_checkpoint_to_cpu, "patched_by")


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


def flip_a_weight(path):
    with open(path, "r+b") as file:
        at = file.read().index(torch.arange(500.0, 502).numpy().tobytes())
        file.seek(at)
        file.write(b"\1")


def fairseq_state():
    ema = {"w": torch.ones(1000), "h": torch.ones(3, dtype=torch.half), "n": torch.arange(3)}
    ema["tied"] = ema["w"]
    history = [{"optimizer_name": "A", "lr_scheduler_state": {}}]
    return {**state(), "optimizer_history": history, "extra_state": {"ema": ema}}


LOADERS = {
    "ours": file_io.load,
    "fairseq's": lambda path: checkpoint_utils.load_checkpoint_to_cpu(path),
    "average": loading.load_ema,
}


@pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("save", [file_io.save, torch.save], ids=["ours", "stock"])
def test_every_way_to_load_refuses_a_flipped_weight_and_offers_an_older_file(tmp_path, save, load):
    older, path = str(tmp_path / "checkpoint1.pt"), str(tmp_path / "checkpoint_last.pt")
    save(fairseq_state(), older)
    save(fairseq_state(), path)
    assert load(path)["model"]["w"].shape == (1000,)
    flip_a_weight(path)
    with pytest.raises(UserError) as caught:
        load(path)
    assert str(caught.value) == (
        f"`{path}` must be a whole checkpoint, but is truncated or damaged; use an older one: the newest good one "
        f"beside it is `{older}`."
    )


def test_a_saved_file_has_a_checksum(tmp_path):
    path = str(tmp_path / "checkpoint.pt")
    assert file_io.save(state(), path) == verify(path)


def test_a_file_from_before_archives_loads(tmp_path):
    path = str(tmp_path / "checkpoint.pt")
    torch.save(fairseq_state(), path, _use_new_zipfile_serialization=False)
    for load in LOADERS.values():
        assert load(path)["model"]["w"].shape == (1000,)


def test_a_copy_has_a_checksum_and_a_damaged_one_is_not_made(tmp_path):
    last, best = tmp_path / "checkpoint_last.pt", tmp_path / "checkpoint_best.pt"
    file_io.save(state(), str(last))
    file_io.copy(str(last), str(best))
    assert best.read_bytes() == last.read_bytes() and verify(best)
    flip_a_weight(last)
    with pytest.raises(UserError, match=r"`.*checkpoint_last\.pt` must be a whole .* beside it is `.*_best\.pt`"):
        file_io.copy(str(last), str(best))
    assert verify(best) and len(os.listdir(tmp_path)) == 2
    with pytest.raises(UserError, match="there is none"):
        file_io.copy(str(tmp_path / "none.pt"), str(best))


def test_the_moving_average_becomes_the_model_as_in_fairseq(tmp_path):
    path = str(tmp_path / "checkpoint.pt")
    file_io.save(fairseq_state(), path)
    loaded = loading.load_ema(path)["model"]
    assert list(loaded) == ["w", "h", "n", "tied"] and loaded["w"].data_ptr() != loaded["tied"].data_ptr()
    assert [weight.dtype for weight in loaded.values()] == [torch.float, torch.float, torch.long, torch.float]
    assert torch.equal(loaded["w"], torch.ones(1000)) and torch.equal(loaded["h"], torch.ones(3))
    for without in ({**fairseq_state(), "extra_state": {}}, state()):
        file_io.save(without, path)
        with pytest.raises(UserError, match=r"must hold a moving average of the weights \(`--store-ema`\)"):
            loading.load_ema(path)


def test_a_file_elsewhere_is_left_to_fairseqs_path_manager(tmp_path, monkeypatch):
    path = str(tmp_path / "checkpoint.pt")
    file_io.save(fairseq_state(), path)
    monkeypatch.setattr(PathManager, "path_requires_pathmanager", lambda name: name == "s3://checkpoint.pt")
    monkeypatch.setattr(PathManager, "get_local_path", lambda name: path)
    monkeypatch.setattr(os, "remove", lambda name: None)
    assert checkpoint_utils.load_checkpoint_to_cpu("s3://checkpoint.pt")["model"]["w"].shape == (1000,)


def test_fairseqs_path_manager_saves_what_is_elsewhere(tmp_path, monkeypatch):
    file, handled = tmp_path / "there", []
    monkeypatch.setattr(PathManager, "path_requires_pathmanager", lambda name: name.startswith("s3://"))
    monkeypatch.setattr(PathManager, "supports_rename", lambda name: False)
    monkeypatch.setattr(PathManager, "open", lambda name, mode: handled.append((name, mode)) or file.open(mode))
    file_io.save_anywhere(state(), "s3://checkpoint1.pt")
    assert handled == [("s3://checkpoint1.pt", "wb")]
    assert torch.equal(torch.load(file)["model"]["w"], state()["model"]["w"])


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


def test_what_is_of_no_run_is_said_to_be_none(tmp_path):
    path = str(tmp_path / "0-3.pt")
    file_io.save({"experts": {}}, path)
    with pytest.raises(UserError, match=r"0-3\.pt` must be a checkpoint of a run, but is none"):
        checkpoint_utils.load_checkpoint_to_cpu(path)


def test_a_whole_file_that_is_no_checkpoint_is_not_called_damaged(tmp_path):
    path = str(tmp_path / "0-3.pt")
    file_io.save({"best_loss": 1.0}, path)
    with pytest.raises(
        UserError, match=r"0-3\.pt` must be .* it is whole, but loading it ends in .*KeyError: 'optimizer'"
    ):
        checkpoint_utils.load_checkpoint_to_cpu(path)
    torch.save({"best_loss": 1.0}, path)  # it has no checksum
    with pytest.raises(
        UserError, match=r"it may be truncated or damaged, but loading it ends in .*KeyError: 'optimizer'"
    ):
        checkpoint_utils.load_checkpoint_to_cpu(path)
    with pytest.raises(UserError, match="none is good"), readable(path):
        raise UserError("none is good")
    with open(path, "wb") as file:
        torch.save({"n": 3}, file, _use_new_zipfile_serialization=False)
        file.seek(40)
        file.write(b"\0" * 20)
    with pytest.raises(UserError, match="it may be truncated or damaged, but loading it ends in 'UnpicklingError'"):
        file_io.load(path)


def test_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="must be a checkpoint file, but there is none"):
        file_io.load(str(tmp_path / "none.pt"))
    with pytest.raises(UserError, match="must be a checkpoint file, but is a folder instead"):
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
        file_io.copy(path, str(tmp_path / "checkpoint_best.pt"))
    monkeypatch.undo()
    assert torch.equal(file_io.load(path)["model"]["w"], state()["model"]["w"])
    assert os.listdir(tmp_path) == ["checkpoint_last.pt"]


def test_an_interrupted_save_leaves_nothing_behind(tmp_path):
    path = str(tmp_path / "checkpoint_last.pt")
    with pytest.raises(KeyboardInterrupt), file_io.complete_or_absent(path) as partial:
        partial.write_bytes(b"half")
        raise KeyboardInterrupt
    with pytest.raises(ZeroDivisionError), file_io.complete_or_absent(path):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


def test_a_save_into_no_folder_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"`.*/file/a\.pt` cannot be written: (File exists|Not a directory); what was"):
        file_io.save(state(), str(tmp_path / "file" / "a.pt"))


def test_a_folder_that_cannot_be_written_is_one_sentence_at_the_start(tmp_path, monkeypatch):
    file_io.expect_writable(str(tmp_path / "new"))
    assert os.listdir(tmp_path / "new") == []
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "new"):
        with pytest.raises(UserError, match=rf"`--save-dir` must be a folder in which .* but is '{folder}': Not a dir"):
            file_io.expect_writable(str(folder))

    def refuse(*arguments, **options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "makedirs", refuse)
    monkeypatch.setattr(checkpoint_utils, "open", refuse, raising=False)
    for folder in (tmp_path / "new", tmp_path / "newer"):
        with pytest.raises(UserError, match=rf"but is '{folder}': Read-only file system\.$"):
            file_io.expect_writable(str(folder))
