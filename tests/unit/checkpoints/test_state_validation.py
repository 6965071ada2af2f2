"""What loading refuses: files that execute, that become much larger than they are, or hold wrong values."""

import math
import os
import random
import sys
import zipfile
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils

from fairseq_mtmoe import register
from fairseq_mtmoe.checkpoints import assemble, checksum, file_io, last_good, loading
from fairseq_mtmoe.checkpoints.copying import remove_orphans
from fairseq_mtmoe.checkpoints.file_io import peek
from fairseq_mtmoe.checkpoints.sharding import has_experts
from fairseq_mtmoe.errors import UserError
from tests.helpers.checkpoint_files import verify
from tests.helpers.pickles import checkpoint, write_pickle
from tests.helpers.states import trained, write_in_parts

register()

LOADERS = {
    "load": lambda path: file_io.load(path),
    "mapped": lambda path: file_io.load(path, mapped=True),
    "fairseq's": lambda path: checkpoint_utils.load_checkpoint_to_cpu(path),
    "average": lambda path: loading.load_ema(path),
    "experts": lambda path: assemble.load_mapped(path),
}


def refused(path, words: str, load=file_io.load) -> None:
    """Loading ends in one sentence with these words."""
    with pytest.raises(UserError) as caught:
        load(str(path))
    sentence = str(caught.value)
    assert words in sentence and str(path) in sentence and "\n" not in sentence, sentence


def with_moments(**entry):
    group = {"lr": 0.1, "betas": (0.9, 0.98), "eps": 1e-8, "params": [0]}
    return checkpoint(last_optimizer_state={"state": {0: entry}, "param_groups": [group]})


def with_group(**options):
    return checkpoint(last_optimizer_state={"state": {}, "param_groups": [{"params": [0]} | options]})


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ([], "a checkpoint's dictionary, but holds a list"),
        (checkpoint(model=[]), "a dictionary or null as `model`, but holds []"),
        (checkpoint(model={"w": 3}), "a tensor as `model.w`, but holds 3"),
        (checkpoint(model={"w": torch.zeros(2, device="meta")}), "holds"),
        (checkpoint(model={"w": torch.eye(3).to_sparse()}), "tensors with all their values, but holds some without"),
        (checkpoint(args="yes"), "a namespace or null as `args`, but holds 'yes'"),
        (checkpoint(extra_state={"train_iterator": {"epoch": 10**12}}), ".epoch`, but holds 1000000000000"),
        (
            checkpoint(extra_state={"train_iterator": {"epoch": 1, "iterations_in_epoch": -1}}),
            "as `extra_state.train_iterator.iterations_in_epoch`",
        ),
        (checkpoint(optimizer_history=[{"num_updates": -5}]), "as `optimizer_history.0.num_updates`, but holds -5"),
        (with_moments(step="7"), "0.step`, but holds '7'"),
        (with_moments(exp_avg=None), "a tensor as `last_optimizer_state.state.0.exp_avg`, but holds null"),
        (with_group(betas=(0.9, 1)), "a number from 0 to below 1 as `last_optimizer_state.param_groups.0.betas.1`"),
        (with_group(eps=math.inf), "a finite number from 0 or 2 values as `last_optimizer_state.param_groups.0.eps`"),
        (with_group(params=3), "a list as `last_optimizer_state.param_groups.0.params`, but holds 3"),
        (
            checkpoint(last_optimizer_state={"a": {"state": {}, "param_groups": 3}}),
            "`last_optimizer_state.a.param_groups`, but holds 3",
        ),
        (
            checkpoint(extra_state={"GlueTask": {"training_seconds": 1.0, "gates": {"since": None}}}),
            "`extra_state.GlueTask.gates.start`, but holds none",
        ),
        (checkpoint(task_state={"langs": "en,de"}), "a list of languages as `task_state.langs`, but holds 'en,de'"),
        (checkpoint(task_state={"langtoks": {"main": ("tgt", torch.ones(2))}}), "a tensor of the shape (2,); it"),
        (checkpoint(task_state={"lang_pairs": ["en-de", ()]}), "a pair of languages as `task_state.lang_pairs.1`, bu"),
        (checkpoint(task_state={"task_ids": []}), "one of target, source, pair as `task_state.task_ids`, but"),
        (checkpoint(extra_state={"metrics": {"train": [(1, "loss", "AverageMeter", {})]}}), "with its values as `ex"),
        (checkpoint(optimizer_history=[]), "a list that is not empty or null as `optimizer_history`, but holds []"),
        ({"model": {f"w{i}": torch.zeros(300_000)[None].expand(10**6, -1) for i in range(3)}}, "many times that"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_state_may_not_be(tmp_path, state, words):
    torch.save(state, tmp_path / "a.pt")
    refused(tmp_path / "a.pt", words)


def test_files_of_before_archives_are_checked_too(tmp_path):
    torch.save(
        checkpoint(model={"w": torch.ones(1).expand(1000, 1000)}),
        tmp_path / "a.pt",
        _use_new_zipfile_serialization=False,
    )
    for load in LOADERS.values():
        refused(tmp_path / "a.pt", "many times that", load)


def test_an_archive_that_grows_is_refused(tmp_path):
    torch.save(checkpoint(model={"w": torch.zeros(10**6)}), tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as plain, zipfile.ZipFile(tmp_path / "a.pt", "w") as packed:
        for entry in plain.infolist():
            packed.writestr(entry.filename, plain.read(entry), zipfile.ZIP_DEFLATED)
    refused(tmp_path / "a.pt", "is truncated or damaged")
    checksum.write_checksum(tmp_path / "a.pt")
    assert verify(tmp_path / "a.pt")
    for load in LOADERS.values():
        refused(tmp_path / "a.pt", "records as torch writes them, but holds compressed or overlapping ones", load)


def test_nothing_is_executed_whatever_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")

    class Touch:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    for old in (False, True):
        torch.save(checkpoint(model={"w": Touch()}), tmp_path / "a.pt", _use_new_zipfile_serialization=not old)
        for load in LOADERS.values():
            refused(tmp_path / "a.pt", "which loading could execute", load)
    assert not last_good.newest_good(tmp_path / "b.pt") and not (tmp_path / "executed").exists()


def test_every_load_of_torch_in_the_package_says_weights_only():
    sources = Path(sys.modules["fairseq_mtmoe"].__file__).parent.rglob("*.py")
    lines = [line for source in sources for line in source.read_text("utf-8").splitlines() if "torch.load(" in line]
    assert lines and all("weights_only=True" in line for line in lines), lines


def test_what_checkpoints_hold_is_loaded(tmp_path):
    weights = OrderedDict(w=torch.arange(6.0).view(2, 3).t(), h=torch.ones(2, dtype=torch.bfloat16))
    weights["tied"] = weights["w"]
    weights._metadata = OrderedDict({"": {"version": 1}})
    state = checkpoint(
        args=Namespace(arch="transformer", betas=(0.9, 0.98), pairs=["a-b"], languages={"a", "b"}),
        model=weights, criterion=OrderedDict(),
        extra_state={"metrics": {"train": [(10, "loss", "AverageMeter", {"val": None, "sum": 0, "count": 0})]}},
        last_optimizer_state=with_moments(step=3, exp_avg=torch.nn.Parameter(torch.zeros(3)))["last_optimizer_state"],
        dtype=torch.float16, size=torch.Size([2]),
    )  # fmt: skip
    for old in (False, True):
        torch.save(state, tmp_path / "a.pt", _use_new_zipfile_serialization=not old)
        loaded = file_io.load(str(tmp_path / "a.pt"))
        assert list(loaded) == list(state) and loaded["args"] == state["args"]
        assert all(torch.equal(loaded["model"][key], value) for key, value in weights.items())
        assert loaded["model"]._metadata == weights._metadata


def test_the_states_of_several_optimizers_are_loaded(tmp_path):
    one = {"state": {}, "param_groups": [{"params": [0]}]}
    state = checkpoint(last_optimizer_state={"first": one, "second": one, "loss_scale": 128.0})
    torch.save(state, tmp_path / "a.pt")
    assert list(file_io.load(str(tmp_path / "a.pt"))["last_optimizer_state"]) == ["first", "second", "loss_scale"]


KINDS = ("folder", "pipe", "device", "dangling link", "looping link", "link to itself through a folder")


def place(path, kind: str) -> None:
    """Something else in the place of a file."""
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        target = {"device": "/dev/zero", "dangling link": "nowhere", "looping link": path.name}
        path.symlink_to(target.get(kind, path / "x"))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_refused_and_passed_over(tmp_path, kind):
    odd, good, damaged = tmp_path / "checkpoint_best.pt", tmp_path / "checkpoint1.pt", tmp_path / "checkpoint_last.pt"
    place(odd, kind)
    for load in LOADERS.values():
        refused(odd, "must be a checkpoint file, but ", load)
    refused(odd, "must be a checkpoint file, but ", lambda path: file_io.copy(path, f"{path}.copy"))
    assert not has_experts(peek(odd) or {})
    remove_orphans(tmp_path)
    file_io.save(checkpoint(), str(good))
    damaged.write_bytes(good.read_bytes()[:-100])
    refused(damaged, f"the newest good one beside it is `{good}`")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_of_experts_is_refused(tmp_path, kind):
    state, parameters = trained()
    shared_part = write_in_parts(tmp_path / "checkpoint_last.pt", state, parameters, 2)
    file = tmp_path / "checkpoint_last.experts" / shared_part["experts"]["id"] / "2-3.pt"
    file.unlink()
    place(file, kind)
    path = str(tmp_path / "checkpoint_last.pt")
    refused(file, "must be there", lambda _: assemble.whole(path, assemble.load_mapped(path)))


def test_experts_in_other_numbers_than_are_named_are_refused(tmp_path):
    state, parameters = trained()
    path = tmp_path / "checkpoint_last.pt"
    shared_part = write_in_parts(path, state, parameters, 2)
    folder = tmp_path / "checkpoint_last.experts" / shared_part["experts"]["id"]
    content = torch.load(folder / "2-3.pt")
    key = next(iter(content["model"]))
    content["model"][key] = content["model"][key][:1].clone()
    shared_part["experts"]["files"][1]["sha256"] = file_io.save(content, str(folder / "2-3.pt"))
    file_io.save(shared_part, str(path))
    refused(folder / "2-3.pt", "must be the file that was saved with", lambda _: assemble.whole(path, shared_part))
    shared_part["experts"]["files"][1] |= {"count": 10**12, "name": f"2-{10**12 + 1}.pt"}
    shared_part["experts"]["num_experts"] = 10**12 + 2
    os.rename(folder / "2-3.pt", folder / f"2-{10**12 + 1}.pt")
    refused(folder, "must be the file that was saved with", lambda _: assemble.whole(path, shared_part))


def test_no_odd_file_does_harm(tmp_path):
    """Random changes to files of both formats, with new checksums: loaded or refused in a sentence, never executed."""
    draw, path, loaded = random.Random(1), tmp_path / "checkpoint_last.pt", 0
    state = checkpoint(model={f"layer.{i}": torch.zeros(2) for i in range(20)}, task_state={"langs": ["a", "b"]})
    for old in (False, True):
        torch.save(state, path, _use_new_zipfile_serialization=not old)
        data = path.read_bytes()
        if not old:
            with zipfile.ZipFile(path) as archive:
                records = {entry.filename.split("/", 1)[1]: archive.read(entry) for entry in archive.infolist()}
            data = records["data.pkl"]
            tensors = {f"_{name[5:]}": content for name, content in records.items() if name.startswith("data/")}
        for _ in range(40):
            changed = bytearray(data)
            for _ in range(draw.choice((1, 1, 2, 8))):
                changed[draw.randrange(min(len(changed), 2500))] = draw.randrange(256)
            if old:
                path.write_bytes(changed)
            else:
                write_pickle(path, bytes(changed), **tensors)
            try:
                loaded += isinstance(file_io.load(str(path)), dict)
            except UserError as error:
                assert str(path) in str(error) and "\n" not in str(error)
    assert 0 < loaded < 75
