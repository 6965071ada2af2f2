"""`mtmoe reshard` writes a checkpoint's experts into other files."""

from functools import partial

import pytest
import torch

from fairseq_mtmoe.checkpoints.assemble import load_shared_part, whole
from fairseq_mtmoe.checkpoints.sharding import expert_folder
from tests.helpers.invoked import mtmoe
from tests.helpers.refused import refused
from tests.helpers.states import assert_same, trained, write_in_parts

reshard = partial(mtmoe, "reshard")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The path of a checkpoint in two parts, and its state."""
    path = tmp_path_factory.mktemp("run") / "checkpoint_last.pt"
    state, parameters = trained(4)
    write_in_parts(path, state, parameters, 2)
    return path, state


def test_there_and_back(checkpoint, tmp_path):
    source, state = checkpoint
    one, parts = tmp_path / "one.pt", tmp_path / "parts.pt"
    assert reshard(source, one, "--single-file") == f"{one}: all experts in one file\n"
    assert_same(load_shared_part(one), state)
    output = reshard(one, parts, "--experts-per-file", 3)
    assert output == f"{parts}: experts in 2 files in {tmp_path / 'parts.experts'}\n"
    assert_same(whole(parts, load_shared_part(parts)), state)
    assert "in 1 file in" in reshard(source, parts, "--experts-per-file", 4, "--overwrite")
    assert [file.name for file in expert_folder(parts).glob("*/*")] == ["0-3.pt"]
    reshard(source, parts, "--single-file", "--overwrite")
    assert not expert_folder(parts).exists()
    assert_same(load_shared_part(parts), state)


def test_wrong_input_is_one_sentence(checkpoint, tmp_path):
    torch.save({"model": {"encoder.layers.1.fc1.weight": torch.ones(2, 2)}}, tmp_path / "dense.pt")
    for source, options, name in (
        (checkpoint[0], ["--single-file", "--experts-per-file", 2], "--experts-per-file"),
        (checkpoint[0], ["--experts-per-file", 5], "--experts-per-file"),
        (tmp_path / "dense.pt", ["--single-file"], "dense.pt"),
        (tmp_path / "none.pt", ["--experts-per-file", 1], "none.pt"),
    ):
        with refused(name):
            reshard(source, tmp_path / "out.pt", *options)
    assert [path.name for path in tmp_path.iterdir()] == ["dense.pt"]


def test_no_checkpoint_is_lost(checkpoint, tmp_path):
    source, state = checkpoint
    (tmp_path / "link.pt").symlink_to(source)
    for same in (source.parent / "." / source.name, tmp_path / "link.pt"):
        with refused("OUT"):
            reshard(source, same, "--single-file", "--overwrite")
    (tmp_path / "out.pt").write_text("mine")
    with refused("OUT", "--overwrite"):
        reshard(source, tmp_path / "out.pt", "--single-file")
    assert (tmp_path / "out.pt").read_text() == "mine"
    assert_same(whole(source, load_shared_part(source)), state)
