import argparse
import os

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from fairseq_mtmoe import register
from fairseq_mtmoe.checkpoints import assemble, file_io, loading
from fairseq_mtmoe.checkpoints.file_io import CheckpointFile, newest_good_in, peek, suggested_fallback
from fairseq_mtmoe.checkpoints.loading import load_context
from fairseq_mtmoe.checkpoints.rewriting import copy_with_experts
from fairseq_mtmoe.checkpoints.sharding import shards_of
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.moe.parallel.placement import are_whole
from tests.helpers import states
from tests.helpers.checkpoint_files import change, dated, verify, with_checksum, without_checksum
from tests.helpers.refused import refused
from tests.helpers.states import EXPERT, files_of, trained

register()

STATE = {"cfg": {"model": argparse.Namespace(dropout=0.1)}, "args": None, "model": {"w": torch.arange(1000.0)}}
EMA = {"w": torch.ones(1000), "h": torch.ones(3, dtype=torch.half), "n": torch.arange(3)}
EMA["tied"] = EMA["w"]
HISTORY = [{"optimizer_name": "A", "lr_scheduler_state": {}}]
OF_A_RUN = {**STATE, "optimizer_history": HISTORY, "extra_state": {"ema": EMA}}


def test_the_moving_average_becomes_the_model_as_in_fairseq(tmp_path):
    path = str(tmp_path / "checkpoint.pt")
    file_io.save(OF_A_RUN, path)
    loaded = loading.load_ema(path)["model"]
    assert list(loaded) == ["w", "h", "n", "tied"] and loaded["w"].data_ptr() != loaded["tied"].data_ptr()
    assert [weight.dtype for weight in loaded.values()] == [torch.float, torch.float, torch.long, torch.float]
    assert torch.equal(loaded["w"], torch.ones(1000)) and torch.equal(loaded["h"], torch.ones(3))
    file_io.save(STATE, path)
    with refused("checkpoint.pt", "--store-ema"):
        loading.load_ema(path)
    with refused(path):  # STATE is not of a run
        checkpoint_utils.load_checkpoint_to_cpu(path)


def test_a_file_elsewhere_is_left_to_fairseqs_path_manager(tmp_path, monkeypatch):
    path, store, handled = str(tmp_path / "checkpoint.pt"), tmp_path / "store", []
    file_io.save(OF_A_RUN, path)
    monkeypatch.setattr(PathManager, "path_requires_pathmanager", lambda name: name.startswith("s3://"))
    monkeypatch.setattr(PathManager, "get_local_path", lambda name: path)
    monkeypatch.setattr(PathManager, "supports_rename", lambda name: False)
    monkeypatch.setattr(PathManager, "open", lambda name, mode: handled.append(name) or store.open(mode))
    monkeypatch.setattr(os, "remove", lambda name: None)
    assert checkpoint_utils.load_checkpoint_to_cpu("s3://checkpoint.pt")["model"]["w"].shape == (1000,)
    file_io.save_anywhere(STATE, "s3://checkpoint1.pt")
    assert handled == ["s3://checkpoint1.pt"] and torch.equal(torch.load(store)["model"]["w"], torch.arange(1e3))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_full_disk_keeps_the_last_good_checkpoint(tmp_path, monkeypatch):
    path = str(tmp_path / "checkpoint_last.pt")
    file_io.save(STATE, path)

    def open_on_a_full_disk(name, mode):
        return open("/dev/full" if "w" in mode else name, mode)

    monkeypatch.setattr(file_io, "open", open_on_a_full_disk, raising=False)
    with pytest.raises(UserError, match="No space left on device; what was there before is as it was"):
        file_io.save({"model": {"w": torch.zeros(1_000_000)}}, path)
    with pytest.raises(UserError, match="No space left on device"):
        copy_with_experts(path, tmp_path / "checkpoint_best.pt")
    monkeypatch.undo()
    states.assert_same(file_io.load(path), STATE)
    assert os.listdir(tmp_path) == ["checkpoint_last.pt"]


def test_a_signal_while_a_file_is_written_is_no_fault_of_the_disk(tmp_path):
    """torch closes its archive in the middle of a tensor, and complains of that alone."""
    with pytest.raises(KeyboardInterrupt), file_io.complete_or_absent(str(tmp_path / "checkpoint_last.pt")):
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 592")
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_one_sentence_at_the_start(tmp_path):
    file_io.expect_writable(str(tmp_path / "new"))
    assert os.listdir(tmp_path / "new") == []
    (tmp_path / "file").write_text("")
    with refused("--save-dir"):
        file_io.expect_writable(str(tmp_path / "file" / "new"))


@pytest.mark.parametrize("mapped", [False, True])
def test_a_file_that_takes_its_place_meanwhile_is_not_read(tmp_path, mapped):
    path, other = states.save_all(tmp_path, *({"model": {"w": value}} for value in (torch.ones(3), torch.zeros(3))))
    with CheckpointFile(path) as file:
        assert file.digest is not None
        os.replace(other, path)
        read = file.load(mapped)
    assert torch.equal(read["model"]["w"], torch.ones(3))
    path.unlink()
    assert torch.equal(read["model"]["w"], torch.ones(3))


def test_a_file_that_never_was_a_checkpoint_is_told_apart(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(UserError, match="is not a checkpoint"):
        verify(tmp_path / "notes.txt")


def test_the_newest_good_one_is_suggested(tmp_path, monkeypatch):
    last = change(dated(with_checksum(tmp_path / "checkpoint_last.pt"), 900), 100)
    change(with_checksum(tmp_path / "checkpoint_best.pt"), 100)
    torch.save({}, tmp_path / "checkpoint_from_2019.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "checkpoint_folder.pt").mkdir()
    (tmp_path / "checkpoint_lost.pt").symlink_to("nowhere")
    with_checksum(tmp_path / "model.pt")
    for name, value in (("infinite", float("inf")), ("nan", float("nan"))):
        file_io.save({"model": {"weight": torch.tensor([1.0, value])}}, str(tmp_path / f"checkpoint_{name}.pt"))
    with pytest.raises(UserError, match="there is no good one beside it"):
        verify(last)
    oldest = dated(with_checksum(tmp_path / "checkpoint_1_10.pt"), 300)
    older = dated(without_checksum(tmp_path / "checkpoint2.pt"), 600)
    assert newest_good_in(tmp_path) == older and newest_good_in(tmp_path, without=older.name) == oldest
    monkeypatch.chdir(tmp_path)
    with refused("checkpoint_last.pt", "checkpoint2.pt"):
        verify("checkpoint_last.pt")
    with refused("run/x.pt"):
        file_io.load("./run/x.pt")
    assert peek("./run/x.pt") is None


def test_an_older_checkpoint_is_suggested_only_with_all_its_experts(tmp_path):
    last, *others = (tmp_path / f"checkpoint{number}.pt" for number in range(5))
    sparse, parameters = trained(4)
    next(value for key, value in sparse["model"].items() if EXPERT in key)[3].view(-1)[5] = float("nan")
    states.write_in_parts(tmp_path / "checkpoint_nan.pt", sparse, parameters, processes=2)
    states.write_in_parts(last, *trained(4), processes=2)
    for time, path in enumerate(others):
        copy_with_experts(last, path)
        dated(path, 1000 + time)  # the whole one is the oldest
    whole, missing, *wrong = others
    files_of(missing)[0].unlink()
    for (file, other), content in zip(map(files_of, wrong), (b"x", None), strict=True):
        file.unlink()  # its other names keep the content
        file.write_bytes(content or other.read_bytes())  # damaged, and foreign
    (shard, _), shared_part = files_of(last), assemble.load_shared_part(last)
    assert list(shards_of(last, shared_part)) == files_of(last)
    for path in (last, shard):
        assert suggested_fallback(path).endswith(f"beside it is `{whole}`")
    shard.unlink()
    with refused(shard.name, whole.name):
        assemble.whole(last, shared_part)


def test_fairseq_reads_all_experts_and_moments_or_what_a_read_function_returns(checkpoint, parts, monkeypatch):
    """Models for generation are whole and read no moments."""
    found, state = checkpoint_utils.load_checkpoint_to_cpu(str(parts)), checkpoint[0]
    states.assert_same(found["model"], state["model"], "model")
    states.assert_same(found["last_optimizer_state"], state["last_optimizer_state"])
    with load_context(read=lambda asked: {**assemble.load_shared_part(asked), "asked": asked}):
        found = checkpoint_utils.load_checkpoint_to_cpu(str(parts))
    assert found["asked"] == str(parts) and not any(EXPERT in key for key in found["model"])
    assert found["cfg"].model._name == "base_moe"  # fairseq's upgrade of a dict

    def build(*args, **kwargs):
        state = checkpoint_utils.load_checkpoint_to_cpu(str(parts))
        assert are_whole() and "last_optimizer_state" not in state
        assert any(".moe.experts." in key for key in state["model"])
        raise KeyboardInterrupt

    monkeypatch.setattr("fairseq.tasks.setup_task", build)
    with pytest.raises(KeyboardInterrupt):
        checkpoint_utils.load_model_ensemble_and_task([str(parts)])
    assert not are_whole()
