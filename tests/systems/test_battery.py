"""The shared battery: what every system must pass. A system joins by a row in `SYSTEMS`."""

import dataclasses
from typing import Any

import pytest
import torch

from fairseq_mtmoe.moe import remember_prices, running_prices
from fairseq_mtmoe.slots import expert_layers
from tests.helpers.models import batch, dense_model, moe_model, perturb, without_ids

# A system's name -> its options on the 2+2-block model of tests/helpers/models.py.
SYSTEMS: dict[str, dict[str, Any]] = {
    "base": dict(expert_gates="base"),
    "base, greedy evaluation": dict(expert_gates="base", base_evaluation="greedy"),
    "base, trained by prices": dict(expert_gates="base", base_training="prices"),
    "base, the paper's combine": dict(expert_gates="base", expert_combine="paper"),
    "task": dict(expert_gates="task"),
    "switch": dict(expert_gates="switch"),
    "base,task": dict(expert_gates="base,task", encoder_layers=4, decoder_layers=4),
    "dense, then base": dict(expert_gates="base", dense_updates=20),
    "pre-norm": dict(expert_gates="base", encoder_normalize_before=True, decoder_normalize_before=True),
}
systems = pytest.mark.parametrize("options", SYSTEMS.values(), ids=SYSTEMS.keys())


def copy_loss(model):
    """Cross-entropy of naming the target's own tokens: two of three tasks read them forwards, one backwards."""
    net_input = batch()
    logits, _ = model(**net_input)
    target = net_input["prev_output_tokens"]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=1)


def train(model, updates, lr=0.005):
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr)
    model.train()
    for _ in range(updates):
        optimizer.zero_grad()
        loss = copy_loss(model)
        loss.backward()
        optimizer.step()
        remember_prices(running_prices(model))
    return loss.item()


@systems
def test_it_learns(options):
    model = moe_model(**options)
    if options.get("dense_updates"):
        train(model, options["dense_updates"])
        model.sparsify()
    first = copy_loss(model.eval()).item()
    train(model, 60)
    assert copy_loss(model.eval()).item() < first / 3


@systems
def test_saves_and_loads_equal(options, tmp_path):
    model = moe_model(**options)
    if options.get("dense_updates"):
        model.sparsify()
    perturb(model)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other = moe_model(seed=2, **options)
    other.load_state_dict(torch.load(tmp_path / "model.pt"))
    assert torch.equal(other(**batch())[0], model(**batch())[0])


@systems
@pytest.mark.parametrize("training", [True, False])
def test_one_expert_equals_dense(options, training):
    """With one expert, copied from the dense twin, the model is the twin; with the paper's combine at gate value 1."""
    shape = {key: value for key, value in options.items() if "layers" in key or "normalize" in key}
    dense = dense_model(**shape).train(training)
    perturb(dense)
    model = moe_model(**{**options, "num_experts": 1, "dense_updates": 1}).train(training)
    model.load_state_dict(dense.state_dict())
    model.sparsify()
    for layer in expert_layers(model).values():
        torch.nn.init.normal_(layer.gate.weight)  # what it says must not matter
        if layer.blend is None:
            layer.gate.register_forward_hook(with_gates_at_one)
    net_input = batch()
    real = net_input["prev_output_tokens"].ne(1)
    right = dense(**without_ids(net_input))[0]
    torch.testing.assert_close(model(**net_input)[0][real], right[real], rtol=1e-5, atol=1e-5)


def with_gates_at_one(gate, inputs, routing):
    return dataclasses.replace(routing, gate_T=torch.ones_like(routing.gate_T))


@systems
def test_frozen_stays_frozen(options):
    model = moe_model(**options)
    if options.get("dense_updates"):
        model.sparsify()
    model.encoder.requires_grad_(False)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    train(model, 3)
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    # The embeddings are shared with the decoder; freezing the encoder freezes them too.
    assert changed and all(name.startswith("decoder.") for name in changed)
    assert any(".moe.experts." in name for name in changed)


@systems
@pytest.mark.usefixtures("every_form")
def test_every_parameter_gets_a_gradient(options):
    """None may be left out: data-parallel training waits for all of them."""
    model = moe_model(**options).train()
    if options.get("dense_updates"):
        model.sparsify()
    copy_loss(model).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


@systems
def test_the_same_seed_gives_the_same_run(options):
    def run():
        model = moe_model(**options)
        losses = train(model, 5)
        return losses, model.state_dict()

    (first_loss, first), (second_loss, second) = run(), run()
    assert first_loss == second_loss and all(torch.equal(first[key], second[key]) for key in first)
