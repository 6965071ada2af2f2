"""From dense to sparse in the middle of a run: weights, optimizer, moving average."""

import argparse
import copy

import pytest
import torch
from fairseq.dataclass.configs import EMAConfig
from fairseq.models.ema.ema import EMA
from fairseq.optim.adafactor import FairseqAdafactor

from fairseq_mtmoe.optim.state import OptimizerState, trained_parameters
from fairseq_mtmoe.sparsify.in_training import maybe_sparsify, sparsify_average
from tests.helpers.models import batch, dense_model, moe_model, perturb
from tests.helpers.refused import refused
from tests.helpers.states import optimizer_of

ADAFACTOR = {
    "lr": [0.01], "adafactor_eps": "(1e-30, 1e-3)", "clip_threshold": 1.0, "decay_rate": -0.8, "beta1": None,
    "weight_decay": 0.0, "scale_parameter": False, "relative_step": False, "warmup_init": False,
}  # fmt: skip
FC1, EXPERTS = "decoder.layers.1.fc1.weight", "decoder.layers.1.moe.experts.fc1_weight"


def read(optimizer, model):
    return OptimizerState.capture(optimizer, trained_parameters(model))


def train(model, optimizer, updates):
    for _ in range(updates):
        optimizer.zero_grad()
        optimizer.backward(model(**batch())[0].float().square().mean())
        optimizer.step()


def trained_dense(kind, monkeypatch, **options):
    """A model at the end of its dense updates, and its optimizer, in full or half precision."""
    model = moe_model(dense_updates=3, **options).train()
    if kind != "plain":
        model.bfloat16()
        monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # as in `optimizer_of`
    optimizer = optimizer_of([p for _, p in trained_parameters(model)], kind)
    train(model, optimizer, 3)
    return model, optimizer


@pytest.mark.parametrize("kind", ["plain", "masters", "flat"])
def test_optimizer_state_travels(kind, monkeypatch):
    model, optimizer = trained_dense(kind, monkeypatch)
    dense = copy.deepcopy(read(optimizer, model))
    assert maybe_sparsify(model, optimizer, 3)
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


@pytest.mark.parametrize("kind", ["plain", "flat"])
def test_units_drawn_anew_forget_the_first_moment_alone(kind, monkeypatch):
    model, optimizer = trained_dense(kind, monkeypatch, expert_reinit_ratio=0.5)
    dense = {key: torch.as_tensor(value).clone() for key, value in read(optimizer, model)[FC1].items()}
    weight = model.get_parameter(FC1).detach().clone()
    assert maybe_sparsify(model, optimizer, 3)

    drawn = model.get_submodule("decoder.layers.1.moe.experts").reinitialized
    sparse, experts = read(optimizer, model)[EXPERTS], model.get_parameter(EXPERTS).detach()
    assert drawn.sum(1).tolist() == [12] * 4 and sparse["step"] == dense["step"]
    for expert in range(4):
        new = drawn[expert]
        assert torch.equal(experts[expert][~new], weight[~new]) and not torch.equal(experts[expert][new], weight[new])
        assert torch.equal(sparse["exp_avg_sq"][expert], dense["exp_avg_sq"])
        assert not sparse["exp_avg"][expert][new].any()
        assert torch.equal(sparse["exp_avg"][expert][~new], dense["exp_avg"][~new])
        if kind != "plain":
            assert torch.equal(sparse["master"][expert][~new], dense["master"][~new])
            assert torch.equal(sparse["master"][expert][new], experts[expert][new].float())


@pytest.mark.parametrize("kind", ["plain", "masters"])
def test_a_shared_expert_takes_its_units_with_their_moments(kind, monkeypatch):
    """Together with each expert's they are the dense layer's, and so is the model."""
    model, optimizer = trained_dense(kind, monkeypatch, shared_expert_dim=10)
    dense, before = read(optimizer, model), model(**batch(pad=False))[0]
    assert maybe_sparsify(model, optimizer, 3)
    tolerance = 1e-5 if kind == "plain" else 0.05
    torch.testing.assert_close(model(**batch(pad=False))[0], before, rtol=tolerance, atol=tolerance)
    sparse, bank, shared = read(optimizer, model), EXPERTS.removesuffix("fc1_weight"), "decoder.layers.1.moe.shared."
    for name, units in (("fc1.weight", 0), ("fc1.bias", 0), ("fc2.weight", 1)):
        target = name.replace(".", "_")
        for key, value in dense[f"decoder.layers.1.{name}"].items():
            own, of_all = sparse[bank + target][key], sparse[shared + target][key]
            if torch.is_tensor(value) and value.dim():
                assert all(torch.equal(torch.cat([each, of_all], units), value) for each in own), key
            else:
                assert own == of_all == value
    assert sparse[bank + "fc2_bias"]["exp_avg"].shape == (4, 16) and shared + "fc2_bias" not in sparse


def test_gates_are_the_same_at_every_ratio():
    gates = []
    for ratio in (0.0, 0.5):
        model = moe_model(dense_updates=3, expert_reinit_ratio=ratio)
        torch.manual_seed(5)
        model.sparsify()
        gates.append([value for name, value in model.state_dict().items() if "gate.weight" in name])
    assert all(map(torch.equal, *gates))


def test_sparsification_waits_for_its_update_and_happens_once():
    model = moe_model(dense_updates=3)
    optimizer = optimizer_of([p for _, p in trained_parameters(model)])
    assert not maybe_sparsify(model, optimizer, 0) and not maybe_sparsify(model, optimizer, 2) and model.is_dense
    assert maybe_sparsify(model, optimizer, 3) and not model.is_dense
    assert not maybe_sparsify(model, optimizer, 4)
    assert not maybe_sparsify(dense_model(), None, 4)


@pytest.mark.parametrize(
    ("fp32", "options"), [(False, {"expert_reinit_ratio": 0.5}), (True, {"expert_reinit_ratio": 0.5}),
                          (True, {"shared_expert_dim": 10})]
)  # fmt: skip
def test_a_moving_average_becomes_sparse_from_its_own_weights(fp32, options):
    """But for units that are drawn anew, which are the model's."""
    model = moe_model(dense_updates=3, **options)
    average = EMA(model, EMAConfig(store_ema=True, ema_fp32=fp32, ema_decay=0.5))
    perturb(model)
    average.step(model, 1)

    def held():
        return average.fp32_params if fp32 else average.get_model().state_dict()

    dense = {key: value.clone() for key, value in held().items()}
    assert not torch.equal(dense[FC1], model.get_parameter(FC1))
    model.sparsify()
    sparsify_average(average, model)
    bank, gate, size = model.get_submodule(EXPERTS.rpartition(".")[0]), "decoder.layers.1.moe.gate.weight", 24
    if "shared_expert_dim" in options:
        size = 14
        assert torch.equal(held()["decoder.layers.1.moe.shared.fc1_weight"], dense[FC1][size:])
    for name in ("fc1_weight", "fc1_bias"):
        key, dense_key = EXPERTS.replace("fc1_weight", name), FC1.replace("fc1.weight", name.replace("_", "."))
        own, drawn = model.get_parameter(key), bank.reinitialized_part(name)
        assert (drawn is not None) == ("expert_reinit_ratio" in options)
        drawn = torch.tensor(False) if drawn is None else drawn
        assert torch.equal(held()[key], torch.where(drawn, own, dense[dense_key][:size]))
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
    optimizer = FairseqAdafactor(argparse.Namespace(**ADAFACTOR), parameters)
    assert not maybe_sparsify(model, optimizer, 0)
    train(model, optimizer, 1)
    with refused("--dense-updates", "--optimizer"):
        maybe_sparsify(model, optimizer, 1)
