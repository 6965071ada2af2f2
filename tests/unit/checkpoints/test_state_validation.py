"""What loading refuses: files that execute, that become much larger than they are, or hold wrong values."""

import math
import os
import sys
from argparse import Namespace
from collections import OrderedDict
from functools import partial
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils

from fairseq_mtmoe import register
from fairseq_mtmoe.checkpoints import assemble, file_io, loading
from fairseq_mtmoe.checkpoints.file_io import peek
from fairseq_mtmoe.checkpoints.rewriting import remove_orphans
from tests.helpers.refused import refused

register()

LOADERS = (
    *(file_io.load, partial(file_io.load, mapped=True), loading.load_ema),
    *(checkpoint_utils.load_checkpoint_to_cpu, partial(assemble.load_shared_part, mapped=True)),
)


def refuses(path, *names, load=file_io.load) -> None:
    with refused(str(path), *names) as caught:
        load(str(path))
    assert "\n" not in str(caught.value)


def checkpoint(**parts):
    return {
        "args": None, "cfg": {"model": {"_name": "transformer"}, "task": {"_name": "translation"}},
        "model": {"w": torch.zeros(3)}, "optimizer_history": [{"num_updates": 2, "optimizer_name": "FairseqAdam",
        "lr_scheduler_state": {"best": None}}], "extra_state": {"train_iterator": {"epoch": 1}},
    } | parts  # fmt: skip


def moments(entry, **options):
    group = {"lr": 0.1, "betas": (0.9, 0.98), "eps": 1e-8, "params": [0]}
    return {"state": {0: entry}, "param_groups": [group | options]}


def with_optimizer(state):
    return checkpoint(last_optimizer_state=state)


@pytest.mark.parametrize(("state", "names"), [
    ([], []),
    (checkpoint(model=[]), ["model"]),
    (checkpoint(model={"w": torch.eye(3).to_sparse()}), []),
    (checkpoint(extra_state={"train_iterator": {"epoch": 10**12}}), ["extra_state.train_iterator.epoch"]),
    (with_optimizer(moments({"step": "7"})), ["last_optimizer_state.state.0.step"]),
    (with_optimizer(moments({}, betas=(0.9, 1))), ["last_optimizer_state.param_groups.0.betas.1"]),
    (with_optimizer(moments({}, eps=math.inf)), ["last_optimizer_state.param_groups.0.eps"]),
    (with_optimizer({"a": {"state": {}, "param_groups": 3}}), ["last_optimizer_state.a.param_groups"]),
    (checkpoint(extra_state={"GlueTask": {"training_seconds": 1.0, "gates": {"since": None}}}), []),
    (checkpoint(task_state={"langs": "en,de"}), ["task_state.langs"]),
    (checkpoint(task_state={"lang_pairs": ["en-de", ()]}), ["task_state.lang_pairs.1"]),
    (checkpoint(extra_state={"metrics": {"train": [(1, "loss", "exit", {})]}}), []),
    (checkpoint(optimizer_history=[]), ["optimizer_history"]),
    ({"model": {f"w{i}": torch.zeros(300_000)[None].expand(10**6, -1) for i in range(3)}}, []),
], ids=range(14))  # fmt: skip
def test_what_a_state_may_not_be(tmp_path, state, names):
    torch.save(state, tmp_path / "a.pt")
    refuses(tmp_path / "a.pt", *names)


@pytest.mark.parametrize("old", [False, True])
def test_every_way_in_refuses_what_executes_or_grows_whatever_the_environment_says(tmp_path, monkeypatch, old):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    touch = type("Touch", (), {"__reduce__": lambda self: (os.mkdir, (str(tmp_path / "executed"),))})()
    for value, names in ((touch, ["argparse.Namespace"]), (torch.ones(1).expand(2000, 1000), [])):
        torch.save(checkpoint(model={"w": value}), tmp_path / "a.pt", _use_new_zipfile_serialization=not old)
        for load in LOADERS:
            refuses(tmp_path / "a.pt", *names, load=load)
    assert not (tmp_path / "executed").exists()


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
        last_optimizer_state=moments({"step": 3, "exp_avg": torch.nn.Parameter(torch.zeros(3))}),
        dtype=torch.float16, size=torch.Size([2]),
    )  # fmt: skip
    for old in (False, True):
        torch.save(state, tmp_path / "a.pt", _use_new_zipfile_serialization=not old)
        loaded = file_io.load(str(tmp_path / "a.pt"))
        assert list(loaded) == list(state) and loaded["args"] == state["args"]
        assert all(torch.equal(loaded["model"][key], value) for key, value in weights.items())
        assert loaded["model"]._metadata == weights._metadata
    nested = ["a value"]
    for _ in range(60):
        nested = [nested, nested]  # a small file, in which 2^60 names lead to the value
    optimizer = {"first": moments({}), "loss_scale": 128.0}
    torch.save(checkpoint(criterion={"nested": nested}, last_optimizer_state=optimizer), tmp_path / "a.pt")
    loaded = file_io.load(str(tmp_path / "a.pt"))
    assert list(loaded["last_optimizer_state"]) == ["first", "loss_scale"] and loaded["criterion"]


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere")], ids=range(3))
def test_what_is_no_file_is_refused_and_passed_over(tmp_path, make):
    odd, good, damaged = (tmp_path / f"checkpoint{name}.pt" for name in ("_best", "1", "_last"))
    make(odd)
    for load in (*LOADERS, lambda path: file_io.copy(path, f"{path}.copy")):
        refuses(odd, load=load)
    assert peek(odd) is None
    remove_orphans(tmp_path)
    file_io.save(checkpoint(), str(good))
    damaged.write_bytes(good.read_bytes()[:-100])
    refuses(damaged, str(good))
