"""Each file of a checkpoint is looked up by its name once, and what is checked is what is read."""

import os
import resource

import pytest
import torch

from fairseq_mtmoe.checkpoints import assemble, file_io
from fairseq_mtmoe.checkpoints.copying import copy_with_experts
from fairseq_mtmoe.checkpoints.file_io import CheckpointFile, peek
from fairseq_mtmoe.checkpoints.last_good import newest_good
from fairseq_mtmoe.checkpoints.reshard import write_in_parts
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement
from tests.helpers.opened import opened_from_now
from tests.helpers.states import trained


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A whole checkpoint of four experts, and the same in parts of two."""
    folder = tmp_path_factory.mktemp("checkpoints")
    state, parameters = trained(4)
    file_io.save(state, str(folder / "whole.pt"))
    write_in_parts(folder / "whole.pt", folder / "parts.pt", 2)
    return folder, parameters


def local(path, parameters):
    """As a training process reads it that has experts 0 and 1."""
    own = [(name, (2, *shape[1:]) if ".moe.experts." in name else shape) for name, shape in parameters]
    return assemble.load_local(path, ExpertPlacement(4, 0, 2), own, False)


def test_a_whole_checkpoint_is_opened_once(checkpoints):
    folder, parameters = checkpoints
    for load in (lambda path: file_io.load(str(path)), assemble.load_mapped, peek, lambda p: local(p, parameters)):
        opened = opened_from_now()
        assert load(folder / "whole.pt")["model"]
        assert opened() == ["whole.pt"]


def test_of_a_checkpoint_in_parts_each_needed_file_is_opened_once(checkpoints):
    folder, parameters = checkpoints
    opened = opened_from_now()
    assert local(folder / "parts.pt", parameters)["model"]
    assert opened() == ["parts.pt", "0-1.pt"]  # experts 2 and 3 are another process's
    opened = opened_from_now()
    assert assemble.whole(folder / "parts.pt", assemble.load_shared_part(folder / "parts.pt"))["model"]
    assert opened() == ["parts.pt", "0-1.pt", "2-3.pt"]


def test_copying_opens_once_what_it_copies(checkpoints, tmp_path):
    folder, _ = checkpoints
    for name in ("whole.pt", "parts.pt"):
        opened = opened_from_now()
        copy_with_experts(folder / name, tmp_path / "copy.pt")
        assert opened().count(name) == 1 and not {"0-1.pt", "2-3.pt"} & set(opened())  # these get a second name


def test_a_fallback_is_found_by_opening_each_file_once(checkpoints, tmp_path):
    folder, _ = checkpoints
    copy_with_experts(folder / "parts.pt", tmp_path / "checkpoint1.pt")
    opened = opened_from_now()
    assert newest_good(tmp_path / "checkpoint_last.pt") == tmp_path / "checkpoint1.pt"
    assert opened() == ["checkpoint1.pt", "0-1.pt", "2-3.pt"]


@pytest.fixture
def one_more_file():
    """A limit that lets a process open one file at a time beside those that it has open when it is called."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def limit():
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))

    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_sentences_name_the_file_and_not_its_descriptor(tmp_path, one_more_file):
    """torch, which maps a file by its descriptor's name, opens it once and then, to map it, once more."""
    path = tmp_path / "checkpoint.pt"
    file_io.save({"model": {"w": torch.ones(3)}}, str(path))
    with CheckpointFile(path) as file:
        one_more_file()
        with pytest.raises(
            UserError, match=f"loading it ends in .*open file <{path}> .*: Too many open files"
        ) as caught:
            file.load(mapped=True)
    assert "/proc/" not in str(caught.value)


def test_a_file_is_peeked_at_once(checkpoints):
    folder, _ = checkpoints
    with CheckpointFile(folder / "whole.pt") as file:
        assert file.peek() is file.peek() is not None


@pytest.mark.parametrize("mapped", [False, True])
def test_a_file_that_takes_its_place_meanwhile_is_not_read(tmp_path, mapped):
    path = tmp_path / "checkpoint.pt"
    file_io.save({"model": {"w": torch.ones(3)}}, str(path))
    file_io.save({"model": {"w": torch.zeros(3)}}, str(tmp_path / "other.pt"))
    with CheckpointFile(path) as file:
        assert file.verify() is not None
        os.replace(tmp_path / "other.pt", path)
        read = file.load(mapped)
    assert torch.equal(read["model"]["w"], torch.ones(3))
    path.unlink()
    assert torch.equal(read["model"]["w"], torch.ones(3))


def test_loading_verifies_and_a_damaged_file_is_a_sentence(tmp_path):
    path = tmp_path / "checkpoint.pt"
    file_io.save({"model": {"w": torch.ones(3)}}, str(path))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with CheckpointFile(path) as file, pytest.raises(UserError, match="is truncated or damaged"):
        file.load()
    with pytest.raises(UserError, match="must be a checkpoint file, but there is none"):
        CheckpointFile(tmp_path / "none.pt")
