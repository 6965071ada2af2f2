"""Expert shards: read by processes with any experts, and refused where they are not what was saved."""

import os
import shutil

import pytest
import torch

from fairseq_mtmoe.checkpoints.assemble import ShardReader, load_shared_part, whole
from fairseq_mtmoe.checkpoints.file_io import CheckpointFile
from fairseq_mtmoe.checkpoints.layout import expert_folder
from fairseq_mtmoe.errors import UserError
from tests.helpers.states import files_of, trained, write_in_parts

FC1 = "decoder.layers.1.moe.experts.fc1_weight"


def test_reading_takes_what_overlaps_from_each_file_and_verifies_each_once(checkpoint, parts, monkeypatch):
    shared_part, verified = load_shared_part(parts), []

    def note(file):
        verified.append(os.path.basename(file._path))

    verify = CheckpointFile.verify
    monkeypatch.setattr(CheckpointFile, "verify", lambda self: self._is_verified or note(self) or verify(self))
    content = ShardReader(parts, shared_part).read(1, 2)
    assert torch.equal(content["model"][FC1], checkpoint[0]["model"][FC1][1:3]) and len(verified) == 2
    assert {tuple(v.shape[:1]) for v in content["optimizer"][FC1].values() if torch.is_tensor(v)} == {(2,)}
    verified.clear()
    reader = ShardReader(parts, shared_part)
    assert set(reader.read(2, 1, ["model"])) == {"first", "count", "model"} and reader.read(3, 1)["first"] == 3
    assert verified == ["2-3.pt"]


def test_what_is_read_does_not_depend_on_the_files_any_more(parts):
    content = ShardReader(parts, load_shared_part(parts)).read(0, 4)
    before = content["model"][FC1].clone()
    for file in files_of(parts):
        file.write_bytes(bytes(file.stat().st_size))
    assert torch.equal(content["model"][FC1], before)


def test_a_missing_file_is_named_with_the_folder_to_copy(parts):
    shared_part = load_shared_part(parts)
    files_of(parts)[1].unlink()
    with pytest.raises(UserError, match=r"2-3\.pt` must be there.*checkpoint_last\.experts` must lie beside"):
        ShardReader(parts, shared_part).read(0, 4)
    ShardReader(parts, shared_part).read(0, 2)  # nobody else needs it
    shutil.rmtree(expert_folder(parts))
    with pytest.raises(UserError, match=r"0-1\.pt` must be there"):
        whole(parts, shared_part)


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9, 0.999])
def test_a_flipped_bit_is_found(parts, place):
    file = files_of(parts)[0]
    content = bytearray(file.read_bytes())
    content[int(len(content) * place)] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"0-1\.pt"):
        ShardReader(parts, load_shared_part(parts)).read(0, 1)


def test_the_file_of_another_save_is_refused(checkpoint, parts, tmp_path):
    state, parameters = trained(4, seed=2)
    write_in_parts(tmp_path / "other.pt", state, parameters, 2)
    mine, others = files_of(parts)[0], files_of(tmp_path / "other.pt")[0]
    shutil.copy(others, mine)
    with pytest.raises(UserError, match=r"0-1\.pt` must be the file that was saved with `.*checkpoint_last\.pt`"):
        ShardReader(parts, load_shared_part(parts)).read(0, 1)
