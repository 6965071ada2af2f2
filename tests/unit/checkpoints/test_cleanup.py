"""Orphans are removed: shards that no shared part names, and nothing else."""

import pytest

from fairseq_mtmoe.checkpoints.copying import remove_orphans
from fairseq_mtmoe.checkpoints.layout import expert_folder
from fairseq_mtmoe.io.files import replacing
from tests.helpers.states import files_of


def test_what_no_shared_part_names_is_removed_and_nothing_else(parts, tmp_path):
    kept = files_of(parts)
    stale = expert_folder(parts) / "00112233445566aa"
    foreign = [
        expert_folder(parts) / "notes.txt",
        expert_folder(parts) / "other" / "0-1.pt",
        expert_folder(parts) / "bbbbbbbbbbbbbbbb" / "notes.txt",
        tmp_path / "my.experts" / "0-1.pt",
        tmp_path / "out.experts" / "0123456789abcdef" / "0-1.pt",  # whose shared part another command is going to write
        tmp_path / "folder" / "0123456789abcdef" / "0-1.pt",
    ]
    with pytest.raises(KeyboardInterrupt), replacing(stale / "4-7.pt") as partial:
        raise KeyboardInterrupt
    gone = [stale / "0-3.pt", partial, tmp_path / "checkpoint_1_2.experts" / "0123456789abcdef" / "0-7.pt"]
    for file in (*foreign, *gone):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    remove_orphans(tmp_path)
    assert all(file.exists() for file in (*kept, *foreign)) and not any(file.exists() for file in gone)
    assert not stale.exists() and not (tmp_path / "checkpoint_1_2.experts").exists()


def test_cleaning_up_one_checkpoint_leaves_the_others(parts, tmp_path):
    other = tmp_path / "checkpoint_7.experts" / "0123456789abcdef" / "0-7.pt"
    stale = expert_folder(parts) / "00112233445566aa" / "0-3.pt"
    for file in (other, stale):
        file.parent.mkdir(parents=True)
        file.write_text("x")
    remove_orphans(parts)
    assert other.exists() and not stale.exists() and len(files_of(parts)) == 2


def test_all_stays_beside_a_shared_part_that_cannot_be_read(parts):
    stale = expert_folder(parts) / "00112233445566aa" / "0-3.pt"
    stale.parent.mkdir()
    stale.write_text("x")
    parts.write_bytes(parts.read_bytes()[:-3000])
    remove_orphans(parts)
    assert stale.exists() and len(files_of(parts)) == 3


def test_a_file_of_another_name_has_no_shards(tmp_path):
    file = tmp_path / "model.experts" / "0123456789abcdef" / "0-1.pt"
    file.parent.mkdir(parents=True)
    file.write_text("x")
    remove_orphans(tmp_path / "model.bin")
    assert file.exists()
