"""From dense to sparse: in the middle of a run, with optimizer and moving average; and offline, as a checkpoint."""

import argparse
import copy
import dataclasses
from functools import partial

import pytest
import torch
from fairseq.dataclass.configs import EMAConfig
from fairseq.models.ema.ema import EMA
from fairseq.optim.adafactor import FairseqAdafactor

from fairseq_mtmoe import register
from fairseq_mtmoe.checkpoints.optimizer_state import OptimizerState, trained_parameters
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.training.sparsify import upcycle as upcycling
from fairseq_mtmoe.training.sparsify.in_training import maybe_sparsify, sparsify_average
from fairseq_mtmoe.translation.base_sparse.model import DenseConfig
from tests.helpers.models import SIZES, batch, dense_model, moe_model, perturb
from tests.helpers.refused import refused
from tests.helpers.states import optimizer_of

FC1, EXPERTS = "decoder.layers.1.fc1.weight", "decoder.layers.1.moe.experts.fc1_weight"


def read(optimizer, model):
    return OptimizerState.capture(optimizer, trained_parameters(model))


def train(model, optimizer, updates, **given):
    for _ in range(updates):
        optimizer.zero_grad()
        optimizer.backward(model(**batch(**given))[0].float().square().mean())
        optimizer.step()


@pytest.mark.parametrize("kind", ["plain", "masters", "flat"])
def test_optimizer_state_travels(kind, monkeypatch):
    model = moe_model(dense_updates=3).train()
    if kind != "plain":
        model.bfloat16()
        monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # as in `optimizer_of`
    optimizer = optimizer_of([p for _, p in trained_parameters(model)], kind)
    train(model, optimizer, 3)
    dense = copy.deepcopy(read(optimizer, model))
    assert not maybe_sparsify(model, optimizer, 0) and not maybe_sparsify(model, optimizer, 2) and model.is_dense
    assert maybe_sparsify(model, optimizer, 3) and not model.is_dense
    assert not maybe_sparsify(model, optimizer, 4) and not maybe_sparsify(dense_model(), None, 4)
    sparse = read(optimizer, model)
    assert set(dense[FC1]) >= {"exp_avg", "exp_avg_sq", "step"} and dense[FC1]["exp_avg"].abs().sum() > 0
    for key, value in dense[FC1].items():
        copies = sparse[EXPERTS][key]
        if torch.is_tensor(value) and value.dim():
            assert copies.shape == (4, *value.shape) and all(torch.equal(each, value) for each in copies), key
        else:
            assert copies == value
    untouched = "decoder.layers.0.fc1.weight"
    assert all(torch.equal(sparse[untouched][key], dense[untouched][key]) for key in ("exp_avg", "exp_avg_sq"))
    assert "exp_avg" not in sparse["decoder.layers.1.moe.gate.weight"] or kind == "flat"

    before = model.get_parameter(EXPERTS).detach().float().clone()
    train(model, optimizer, 2)
    after = model.get_parameter(EXPERTS).detach().float()
    assert not torch.equal(before, after)  # the optimizer holds the new parameters …
    assert not torch.equal(after[0], after[1])  # … and the copies diverge


@pytest.mark.parametrize("fp32", [False, True])
def test_a_moving_average_becomes_sparse_from_its_own_weights(fp32):
    model = moe_model(dense_updates=3)
    average = EMA(model, EMAConfig(store_ema=True, ema_fp32=fp32, ema_decay=0.5))
    perturb(model)
    average.step(model, 1)

    def held():
        return average.fp32_params if fp32 else average.get_model().state_dict()

    dense = {key: value.clone() for key, value in held().items()}
    assert not torch.equal(dense[FC1], model.get_parameter(FC1))
    model.sparsify()
    sparsify_average(average, model)
    gate = "decoder.layers.1.moe.gate.weight"
    for name in ("weight", "bias"):
        key, dense_key = EXPERTS.replace("weight", name), FC1.replace("weight", name)
        assert torch.equal(held()[key], dense[dense_key].expand_as(held()[key]))
    assert torch.equal(held()[gate], model.get_parameter(gate)) and set(held()) == set(model.state_dict())
    assert not any(parameter.requires_grad for parameter in average.get_model().parameters())
    before = held()[EXPERTS].clone()
    average.step(model, 2)
    torch.testing.assert_close(average.get_model().get_parameter(EXPERTS), (model.get_parameter(EXPERTS) + before) / 2)


def test_what_cannot_become_sparse_is_said_at_the_first_update():
    model = moe_model(dense_updates=3).train()
    parameters = [p for _, p in trained_parameters(model)]
    grouped = optimizer_of([{"params": parameters[:2]}, {"params": parameters[2:]}])
    with refused("--dense-updates"):
        maybe_sparsify(model, grouped, 0)
    with refused("--dense-updates"):
        maybe_sparsify(model, optimizer_of([*parameters, torch.nn.Parameter(torch.ones(1))]), 0)
    parser = argparse.ArgumentParser()
    FairseqAdafactor.add_args(parser)
    optimizer = FairseqAdafactor(parser.parse_args([], argparse.Namespace(lr=[0.01])), parameters)
    assert not maybe_sparsify(model, optimizer, 0)
    train(model, optimizer, 1)
    with refused("--dense-updates", "--optimizer"):
        maybe_sparsify(model, optimizer, 1)


register()
upcycle = partial(upcycling.upcycle, "base_moe")


def dense_checkpoint(**more):
    model = dense_model(**more).train()
    optimizer = optimizer_of(list(model.parameters()))
    train(model, optimizer, 2, task_ids=bool(more))
    options = {**dataclasses.asdict(DenseConfig(**{**SIZES, **more})), "_name": "transformer"}
    return {
        "cfg": {"model": options},
        "args": None,
        "model": model.state_dict(),
        "last_optimizer_state": optimizer.state_dict(),
        "extra_state": {"train_iterator": {"epoch": 1}},
    }, model.eval()


def assert_translates_as(dense, sparse, net_input, **options):
    model = moe_model(seed=9, **options)
    model.load_state_dict(dict(sparse["model"]))
    torch.testing.assert_close(model(**net_input)[0], dense(**net_input)[0], rtol=1e-5, atol=1e-5)


def test_upcycled_checkpoint_translates_as_the_dense_one():
    checkpoint, dense = dense_checkpoint()
    checkpoint["cfg"]["model"] = argparse.Namespace(**checkpoint["cfg"]["model"])  # as fairseq keeps it
    sparse = upcycle(checkpoint, {"num_experts": 4})
    options = sparse["cfg"]["model"]
    assert (options["_name"], options["num_experts"], options["dense_updates"]) == ("base_moe", 4, 0)
    assert_translates_as(dense, sparse, batch(task_ids=False, pad=False))
    assert "fc1.weight" in str(checkpoint["model"].keys())  # the input is as it was


def test_task_gates_get_one_gate_for_each_remembered_language_or_pair():
    checkpoint, _dense = dense_checkpoint()
    with refused("--expert-gates"):
        upcycle(checkpoint, {"num_experts": 4, "expert_gates": "task"})
    checkpoint["task_state"] = {"langs": ["aa", "bb", "en"]}
    sparse = upcycle(checkpoint, {"num_experts": 4, "expert_gates": "task"})
    assert sparse["model"]["encoder.layers.1.moe.gate.weight"].shape == (3, 4, 16)
    assert sparse["cfg"]["model"]["task_names"] == "aa,bb,en" and sparse["task_state"] == checkpoint["task_state"]
    checkpoint["task_state"] |= {"task_ids": "pair", "lang_pairs": ["en-aa", "en-bb"]}
    sparse = upcycle(checkpoint, {"num_experts": 4, "expert_gates": "task"})
    assert sparse["cfg"]["model"]["task_names"] == "en-aa,en-bb"


def test_conditional_parts_begin_anew_and_those_that_are_there_stay():
    """A dense model without them, and then one with trained ones; the sparse models translate as they do."""
    there = {"conditional": "norm", "task_names": "a,b,c"}
    for given, trained in (({"conditional": "attention,norm"}, {}), ({}, there)):
        checkpoint, dense = dense_checkpoint(**trained)
        checkpoint["task_state"] = {"langs": ["aa", "bb", "cc"]}
        sparse = upcycle(checkpoint, {"num_experts": 4, **given})
        options = sparse["cfg"]["model"]
        assert options["conditional"] == (given or trained)["conditional"]
        assert options["task_names"] == trained.get("task_names", "aa,bb,cc")
        assert_translates_as(dense, sparse, batch(pad=False), conditional=options["conditional"])
        assert ("last_optimizer_state" in sparse) == bool(trained)


def test_copies_have_moments_and_averages_and_gates_follow_from_the_seed():
    checkpoint, _ = dense_checkpoint()
    average = {name: value + 1 for name, value in checkpoint["model"].items()}
    checkpoint["extra_state"] |= {"ema": average, "ema_fp32_params": average, "best": 1.0}
    first, again, other = (upcycle(checkpoint, {"num_experts": 4}, seed=seed) for seed in (1, 1, 2))
    gate = "encoder.layers.1.moe.gate.weight"
    assert torch.equal(first["model"][gate], again["model"][gate])
    assert not torch.equal(first["model"][gate], other["model"][gate])
    model = moe_model(seed=9)
    optimizer = optimizer_of([p for _, p in trained_parameters(model)])
    optimizer.load_state_dict(first["last_optimizer_state"])
    moment = OptimizerState.capture(optimizer, trained_parameters(model))[EXPERTS]["exp_avg"]
    names = [name for name, _ in trained_parameters(dense_model())]
    before = checkpoint["last_optimizer_state"]["state"][names.index(FC1)]["exp_avg"]
    assert torch.equal(moment, before.expand_as(moment)) and before.any()
    assert "best" not in first["extra_state"]  # another model's
    for name in ("ema", "ema_fp32_params"):  # experts are copies of the average's own layers, gates are the model's
        sparse = first["extra_state"][name]
        model.load_state_dict(dict(sparse))
        assert torch.equal(sparse[EXPERTS], average[FC1].expand_as(sparse[EXPERTS]))
        untouched = "encoder.layers.0.fc1.weight"
        assert torch.equal(sparse[gate], first["model"][gate]) and torch.equal(sparse[untouched], average[untouched])
    assert checkpoint["extra_state"]["ema"] is average and FC1 in average


def test_upcycling_what_is_no_dense_transformer_is_refused():
    checkpoint, _ = dense_checkpoint()
    for wrong in (upcycle(checkpoint, {"num_experts": 4}), {"cfg": None, "model": {}}):
        with pytest.raises(UserError, match="The checkpoint to upcycle"):
            upcycle(wrong, {"num_experts": 4})
    with refused("--num-expert"):
        upcycle(checkpoint, {"num_expert": 4})
    with refused("--model"):
        upcycling.upcycle("base_dense", checkpoint, {})
    # Factored moments are left out.
    states = checkpoint["last_optimizer_state"]["state"]
    factored = {index: {"exp_avg_sq_row": entry["exp_avg_sq"].sum(-1)} for index, entry in states.items()}
    checkpoint["last_optimizer_state"]["state"] = factored
    assert "last_optimizer_state" not in upcycle(checkpoint, {"num_experts": 2})
