"""From dense to sparse offline: a sparse checkpoint that goes on as the dense one."""

import argparse
import dataclasses
from functools import partial

import pytest
import torch

from fairseq_mtmoe import register
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.models.base_sparse.model import DenseConfig
from fairseq_mtmoe.optim.state import OptimizerState, trained_parameters
from fairseq_mtmoe.sparsify import upcycle as upcycling
from tests.helpers.models import SIZES, batch, dense_model, moe_model
from tests.helpers.refused import refused
from tests.helpers.states import optimizer_of

FC1, EXPERTS = "decoder.layers.1.fc1.weight", "decoder.layers.1.moe.experts.fc1_weight"

register()
upcycle = partial(upcycling.upcycle, "base_moe")


def dense_checkpoint(updates=2, namespace=False, **more):
    model = dense_model(**more).train()
    optimizer = optimizer_of(list(model.parameters()))
    for _ in range(updates):
        optimizer.zero_grad()
        net_input = batch(task_ids=bool(more))
        optimizer.backward(model(**net_input)[0].square().mean())
        optimizer.step()
    options = {**dataclasses.asdict(DenseConfig(**{**SIZES, **more})), "_name": "transformer"}
    return {
        "cfg": {"model": argparse.Namespace(**options) if namespace else options},
        "args": None,
        "model": model.state_dict(),
        "last_optimizer_state": optimizer.state_dict(),
        "extra_state": {"train_iterator": {"epoch": 1}},
    }, model.eval()


@pytest.mark.parametrize(("namespace", "more"), [(False, {}), (True, {}), (False, {"shared_expert_dim": 7})])
def test_upcycled_checkpoint_translates_as_the_dense_one(namespace, more):
    checkpoint, dense = dense_checkpoint(namespace=namespace)
    sparse = upcycle(checkpoint, {"num_experts": 4, **more})
    options = sparse["cfg"]["model"]
    assert options["_name"] == "base_moe" and options["num_experts"] == 4 and options["dense_updates"] == 0
    model = moe_model(seed=9, **more)
    model.load_state_dict(dict(sparse["model"]))
    net_input = batch(task_ids=False, pad=False)
    torch.testing.assert_close(model(**net_input)[0], dense(**net_input)[0], rtol=1e-5, atol=1e-5)
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
    net_input = batch(pad=False)
    for given, trained in (
        ({"conditional": "attention,norm"}, {}),
        ({}, {"conditional": "norm", "task_names": "a,b,c"}),
    ):
        checkpoint, dense = dense_checkpoint(**trained)
        checkpoint["task_state"] = {"langs": ["aa", "bb", "cc"]}
        sparse = upcycle(checkpoint, {"num_experts": 4, **given})
        options = sparse["cfg"]["model"]
        assert options["conditional"] == (given or trained)["conditional"]
        assert options["task_names"] == trained.get("task_names", "aa,bb,cc")
        model = moe_model(seed=9, conditional=options["conditional"])
        model.load_state_dict(dict(sparse["model"]))
        torch.testing.assert_close(model(**net_input)[0], dense(**net_input)[0], rtol=1e-5, atol=1e-5)
        assert ("last_optimizer_state" in sparse) == bool(trained)


def test_upcycled_copies_with_units_drawn_anew():
    """They keep the rest; which ones, and their values, follow from the seed; they have no first moment."""
    checkpoint, _ = dense_checkpoint()
    first, again, other = (
        upcycle(checkpoint, {"num_experts": 4, "expert_reinit_ratio": 0.25}, seed=seed) for seed in (1, 1, 2)
    )
    experts, dense = first["model"][EXPERTS], checkpoint["model"][FC1]
    drawn = (experts != dense).any(2)
    assert drawn.sum(1).tolist() == [6] * 4 and len({tuple(row.tolist()) for row in drawn}) == 4
    for name in (EXPERTS, "encoder.layers.1.moe.gate.weight"):
        value = first["model"][name]
        assert torch.equal(value, again["model"][name]) and not torch.equal(value, other["model"][name])
    model = moe_model(seed=9, expert_reinit_ratio=0.25)
    model.load_state_dict(dict(first["model"]))
    optimizer = optimizer_of([p for _, p in trained_parameters(model)])
    optimizer.load_state_dict(first["last_optimizer_state"])
    moment = OptimizerState.capture(optimizer, trained_parameters(model))[EXPERTS]["exp_avg"]
    names = [name for name, _ in trained_parameters(dense_model())]
    before = checkpoint["last_optimizer_state"]["state"][names.index(FC1)]["exp_avg"]
    assert torch.equal(moment, torch.where(drawn.unsqueeze(2), 0, before)) and before.any()


def test_upcycling_what_is_no_dense_transformer_is_refused():
    checkpoint, _ = dense_checkpoint()
    for wrong in (upcycle(checkpoint, {"num_experts": 4}), {"cfg": None, "model": {}}):
        with pytest.raises(UserError, match="The checkpoint to upcycle must"):
            upcycle(wrong, {"num_experts": 4})
    for options in ({"num_experts": 0}, {"num_expert": 4}):
        with refused(*(name if value else "--num-experts" for name, value in options.items())):
            upcycle(checkpoint, options)
    with refused("--model"):
        upcycling.upcycle("base_dense", checkpoint, {})


def test_without_moments_upcycling_leaves_the_optimizer_out():
    checkpoint, _ = dense_checkpoint()
    states = checkpoint["last_optimizer_state"]["state"]
    factored = {index: {"exp_avg_sq_row": entry["exp_avg_sq"].sum(-1)} for index, entry in states.items()}
    for state in ({}, factored):
        checkpoint["last_optimizer_state"]["state"] = state
        assert "last_optimizer_state" not in upcycle(checkpoint, {"num_experts": 2})
