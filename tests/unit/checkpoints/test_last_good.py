"""In the place of a checkpoint that cannot be used another one is suggested: the newest that is good."""

import os
from pathlib import Path

import pytest
import torch

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.assemble import load_shared_part, whole
from fairseq_mtmoe.checkpoints.copying import copy_with_experts
from fairseq_mtmoe.checkpoints.last_good import newest_good, newest_good_in
from fairseq_mtmoe.checkpoints.layout import shards_of
from fairseq_mtmoe.errors import UserError
from tests.helpers.checkpoint_files import change, dated, verify, with_checksum, without_checksum
from tests.helpers.states import EXPERT, files_of, trained, write_in_parts


def test_the_newest_good_one_is_suggested(tmp_path):
    last = change(dated(with_checksum(tmp_path / "checkpoint_last.pt"), 900), 100)
    change(with_checksum(tmp_path / "checkpoint_best.pt"), 100)
    torch.save({}, tmp_path / "checkpoint_from_2019.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "checkpoint_folder.pt").mkdir()
    (tmp_path / "checkpoint_lost.pt").symlink_to("nowhere")
    with_checksum(tmp_path / "model.pt")
    assert newest_good(last) is None
    with pytest.raises(UserError, match=r"use an older one, there is no good one beside it\.$"):
        verify(last)
    oldest = dated(with_checksum(tmp_path / "checkpoint_1_10.pt"), 300)
    older = dated(without_checksum(tmp_path / "checkpoint2.pt"), 600)
    assert newest_good(last) == newest_good(tmp_path / "new.pt") == older
    with pytest.raises(UserError, match=rf"use an older one: the newest good one beside it is `{older}`\.$"):
        verify(str(last))
    assert newest_good(older) == oldest


def test_a_checkpoint_is_as_good_as_its_experts(tmp_path):
    shards = {}
    for name, time in (("last", 900), ("2", 600), ("1", 300)):
        path = tmp_path / f"checkpoint_{name}.pt"
        shared_part = write_in_parts(path, *trained(4), processes=1)
        (shards[name],) = shards_of(dated(path, time), shared_part)
    damaged = change(shards["last"], 100)
    assert newest_good(damaged) == tmp_path / "checkpoint_2.pt"
    change(shards["2"], 100)
    assert newest_good(damaged) == tmp_path / "checkpoint_1.pt"
    damaged.unlink()
    assert newest_good(damaged) == tmp_path / "checkpoint_1.pt"


def test_paths_without_folders_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with_checksum(Path("checkpoint1.pt"))
    change(with_checksum(Path("checkpoint2.pt")), 100)
    with pytest.raises(UserError, match=r"it is `checkpoint1\.pt`\.$"):
        verify("checkpoint2.pt")


def test_an_older_checkpoint_is_suggested_only_with_all_its_experts(parts, tmp_path):
    """A missing and a damaged expert file, a foreign one, and a checkpoint that is whole."""
    whole_one, missing, damaged, foreign = (tmp_path / f"checkpoint_{number}.pt" for number in range(1, 5))
    for number, path in enumerate((whole_one, missing, damaged, foreign)):
        copy_with_experts(parts, path)
        os.utime(path, (1000 + number, 1000 + number))  # the whole one is the oldest
    files_of(missing)[0].unlink()
    for path, content in ((damaged, b"x"), (foreign, None)):
        file = files_of(path)[0]
        file.unlink()  # its other names keep the content
        file.write_bytes(content or files_of(path)[0].read_bytes())
    assert newest_good(parts) == whole_one
    files_of(parts)[1].unlink()
    with pytest.raises(
        UserError, match=f"copy both, or use an older one: the newest good one beside it is `{whole_one}`"
    ):
        whole(parts, load_shared_part(parts))


def test_only_checkpoints_with_finite_weights_are_suggested(tmp_path):
    def saved(name, value):
        file_io.save({"model": {"weight": torch.tensor([1.0, value]), "version": torch.tensor(3)}}, tmp_path / name)

    for name, value in (("1", 2.0), ("2", float("inf")), ("3", float("nan"))):
        saved(f"checkpoint{name}.pt", value)
    assert newest_good(tmp_path / "checkpoint_last.pt").name == "checkpoint1.pt"
    state, parameters = trained(4)
    write_in_parts(tmp_path / "checkpoint4.pt", state, parameters, processes=2)
    assert newest_good_in(tmp_path).name == "checkpoint4.pt"
    next(value for key, value in state["model"].items() if EXPERT in key)[3].view(-1)[5] = float("nan")
    write_in_parts(tmp_path / "checkpoint4.pt", state, parameters, processes=2)
    assert newest_good_in(tmp_path).name == "checkpoint1.pt"
