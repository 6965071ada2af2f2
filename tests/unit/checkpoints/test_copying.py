"""Copies of checkpoints in parts: they share their shards, and are whole or not made."""

import os
import shutil

import pytest

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.assemble import load_shared_part, whole
from fairseq_mtmoe.checkpoints.copying import copy_with_experts
from fairseq_mtmoe.checkpoints.layout import expert_folder
from fairseq_mtmoe.errors import UserError
from tests.helpers.states import assert_same, files_of, trained, write_in_parts


def test_a_copy_shares_the_files_and_outlives_the_original(checkpoint, parts, tmp_path):
    target = tmp_path / "elsewhere" / "checkpoint_best.pt"
    write_in_parts(target, *trained(4, seed=2), processes=4)
    copy_with_experts(parts, target)
    assert [file.name for file in files_of(target)] == ["0-1.pt", "2-3.pt"]  # those of before are gone
    assert all(map(os.path.samefile, files_of(parts), files_of(target)))
    copy_with_experts(parts, target)
    shutil.rmtree(expert_folder(parts))
    parts.unlink()
    assert_same(whole(target, load_shared_part(target)), checkpoint[0])


def test_a_copy_to_another_disk_is_a_copy(checkpoint, parts, tmp_path, monkeypatch):
    def no_link(source, target):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", no_link)
    copy_with_experts(parts, tmp_path / "copy.pt")
    assert not any(map(os.path.samefile, files_of(parts), files_of(tmp_path / "copy.pt")))
    assert_same(whole(tmp_path / "copy.pt", load_shared_part(tmp_path / "copy.pt")), checkpoint[0])


def test_a_copy_of_a_whole_checkpoint_takes_the_place_of_one_in_parts(checkpoint, parts, tmp_path):
    file_io.save(checkpoint[0], str(tmp_path / "whole.pt"))
    copy_with_experts(tmp_path / "whole.pt", parts)
    assert not expert_folder(parts).exists()
    assert_same(load_shared_part(parts), checkpoint[0])


def test_a_copy_that_lacks_a_file_changes_nothing(checkpoint, parts, tmp_path):
    target = tmp_path / "checkpoint_best.pt"
    state, parameters = trained(4, seed=2)
    write_in_parts(target, state, parameters, 2)
    files_of(parts)[1].unlink()
    with pytest.raises(UserError, match=r"2-3\.pt` must be a checkpoint file, but there is none"):
        copy_with_experts(parts, target)
    assert len(files_of(target)) == 2
    assert_same(whole(target, load_shared_part(target)), state)
