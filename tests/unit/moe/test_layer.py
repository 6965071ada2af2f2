"""The layer against its slow reference: outputs and every gradient, and what the layer promises besides."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fairseq_mtmoe.moe import ExpertBank, MoELayer, balance_loss, build_gate, gates, remember_prices
from fairseq_mtmoe.moe.gates import EVALUATIONS
from tests.helpers.layer_reference import slow_forward
from tests.helpers.pairwise import pairwise

pytestmark = pytest.mark.usefixtures("every_device_kind")
N, H, INNER, K = 4, 8, 16, 3
KINDS = ["base", "task", "switch"]
COMBINES = ["paper", "preserving"]
FORMS = ["CPU", "GPU", "GPU_WITH_GROUPED_MM"]
BOTH = [True, False]
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 5e-3}


def make_layer(kind, combine, experts=N, dtype=torch.float32):
    """A layer with decided gates and, where there is one, a blend that lets them speak; relu has a way of its own."""
    torch.manual_seed(0)
    activation = F.relu if combine == "paper" else F.gelu
    layer = MoELayer(build_gate(kind, experts, H, K), ExpertBank(experts, H, INNER, activation=activation), combine)
    if layer.gate.is_learned:
        nn.init.normal_(layer.gate.weight, std=0.3)
    if layer.blend is not None:
        nn.init.constant_(layer.blend, 0.4)
    if dtype != torch.float32 and activation is F.relu:
        # Every other unit is on for every token, the rest off: no rounding takes an input beyond 0.
        bias = layer.experts.fc1_bias
        bias.data.copy_((4 * (-1.0) ** torch.arange(INNER)).expand_as(bias))
    return layer.to(dtype)


def make_inputs(shape, dtype=torch.float32, padding=False, seed=1):
    generator = torch.Generator().manual_seed(seed)
    hidden, branch_input = (torch.randn(*shape, H, generator=generator).to(dtype) for _ in range(2))
    task_ids = torch.randint(K, shape, generator=generator)
    mask = torch.rand(shape, generator=generator) < 0.3 if padding else None
    return hidden, branch_input, mask, task_ids


def run(forward, layer, inputs):
    """The output, and the gradients of both inputs and all parameters under a random loss."""
    hidden, branch_input, mask, task_ids = inputs
    hidden, branch_input = hidden.clone().requires_grad_(), branch_input.clone().requires_grad_()
    output = forward(hidden, branch_input, mask, task_ids)
    weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(2)).to(output.dtype)
    names, wanted = zip(*layer.named_parameters(), strict=True)
    gradients = torch.autograd.grad(
        (output * weight).sum(), [hidden, branch_input, *wanted], allow_unused=True, materialize_grads=True
    )
    return {"output": output, **dict(zip(["hidden", "branch_input", *names], gradients, strict=True))}


def scale_of(name, expected, inputs):
    """What a difference is compared with: the largest value, or what counts as that at least."""
    # The gradient of a single number is a sum whose terms cancel: what is rounded grows with their number.
    least = max(inputs[0][..., 0].numel(), 1) ** 0.5 if name == "blend" else 1e-3
    return max(expected.abs().max().item(), least) if expected.numel() else least


def assert_same_as_reference(layer, inputs, tolerance):
    """As far as the layer's type allows: the reference computes in float32 what a half-precision layer holds."""
    fast = run(layer, layer, inputs)
    exact = copy.deepcopy(layer).float()
    in_float = [tensor.float() if tensor is not None and tensor.is_floating_point() else tensor for tensor in inputs]
    slow = run(lambda *args: slow_forward(exact, *args), exact, in_float)
    for name, expected in slow.items():
        assert fast[name].dtype == inputs[0].dtype
        most = tolerance * scale_of(name, expected, inputs)
        torch.testing.assert_close(fast[name].float(), expected, rtol=0, atol=most, msg=name)


@pairwise(kind=KINDS, training=BOTH, combine=COMBINES, padding=BOTH, dtype=TOLERANCES, every_device_kind=FORMS)
def test_output_and_gradients(kind, combine, training, padding, dtype):
    layer = make_layer(kind, combine, dtype=dtype).train(training)
    assert_same_as_reference(layer, make_inputs((7, 3), dtype, padding), TOLERANCES[dtype])


@pairwise(way=EVALUATIONS, known=BOTH, every_device_kind=FORMS)
def test_output_and_gradients_of_each_way_to_evaluate(way, known):
    layer = make_layer("base", "preserving")
    layer.gate.evaluation = way
    layer.experts.activation = torch.tanh  # which the network of both products does not know
    if known:
        layer(*make_inputs((7, 3), seed=5))
        remember_prices([layer.gate.prices])
    assert_same_as_reference(layer.eval(), make_inputs((7, 3), padding=True), 1e-5)


@pairwise(
    kind=["task", "fixed"], padding=BOTH, copied=[0, gates.MOST_COPIED], dense=[0, gates.DENSE_LIMIT],
    every_device_kind=FORMS,
)  # fmt: skip
def test_output_and_gradients_with_a_task_for_each_sentence(kind, padding, copied, dense, monkeypatch):
    monkeypatch.setattr(gates, "MOST_COPIED", copied)
    monkeypatch.setattr(gates, "DENSE_LIMIT", dense)
    layer = make_layer(kind, "preserving")
    hidden, branch_input, mask, _ = make_inputs((7, 5), padding=padding)
    if padding:
        mask[:, 3] = True  # whatever its task is
    inputs = hidden, branch_input, mask, torch.tensor([2, 0, 2, -1 if padding else 0, 2])
    assert_same_as_reference(layer, inputs, 1e-5)
    output = layer(*inputs)
    torch.testing.assert_close(output, layer(*inputs[:3], inputs[3].expand(7, 5)))
    layer.load.enabled = True
    layer(*inputs)
    real = torch.ones(7, 5, dtype=torch.bool) if mask is None else ~mask
    assert layer.load.counts.sum(1).tolist() == [real[:, 1::2].sum(), 0, real[:, ::2].sum()]


@pairwise(tokens=[0, 1, 3, 8], experts=[1, 4, 5], kind=KINDS, combine=COMBINES, training=BOTH, every_device_kind=FORMS)
def test_few_tokens_and_one_expert(kind, combine, training, tokens, experts):
    layer = make_layer(kind, combine, experts).train(training)
    assert_same_as_reference(layer, make_inputs((tokens,)), 1e-5)


def test_balance_losses_are_summed_over_the_layers_of_a_pass():
    model = nn.ModuleList([make_layer(kind, "paper") for kind in ("switch", "base", "switch")]).append(nn.Linear(H, H))
    x = torch.randn(10, H)
    for passed in ((0, 1, 2), (1, 2)):  # layerdrop leaves the first one out
        for number in passed:
            model[number](x, x)
        right = sum(model[number].last_balance_loss for number in passed if number != 1)
        loss = balance_loss(model)
        torch.testing.assert_close(loss, right)
        model.zero_grad()
        loss.backward()
        trained = [number for number, layer in enumerate(model[:3]) if layer.gate.weight.grad is not None]
        assert trained == [number for number in passed if number != 1]
        assert balance_loss(model) == 0  # which a layer gives once


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_but_padding(kind):
    layer = make_layer(kind, "paper")
    hidden, branch_input, _, task_ids = make_inputs((2, 3))
    output = layer(hidden, branch_input, torch.ones(2, 3, dtype=torch.bool), task_ids)
    assert output.shape == (2, 3, H) and not output.any()
    output.sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


@pairwise(kind=KINDS, combine=COMBINES, experts=[1, N], training=BOTH, every_device_kind=FORMS)
def test_padding_takes_no_part(kind, combine, experts, training):
    """The tokens get what they get without the padding, whatever it contains, and it gets 0."""
    layer = make_layer(kind, combine, experts).train(training)
    hidden, branch_input, mask, task_ids = make_inputs((9, 4), padding=True)
    alone = layer(hidden[~mask], branch_input[~mask], None, task_ids[~mask])
    hidden[mask], branch_input[mask], task_ids[mask] = 1e4, torch.nan, 99
    output = layer(hidden, branch_input, mask, task_ids)
    torch.testing.assert_close(output[~mask], alone)
    assert not output[mask].any()


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_input_gives_the_same_bits(kind):
    inputs = make_inputs((40, 5), padding=True)
    layers = [make_layer(kind, "preserving") for _ in range(2)]
    torch.testing.assert_close(*(run(layer, layer, inputs) for layer in layers), rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_autocast(kind, device):
    layer = make_layer(kind, "preserving")
    inputs = make_inputs((20,), padding=True)
    with torch.autocast(device, torch.bfloat16):
        mixed = run(layer, layer, inputs)
    plain = run(layer, layer, inputs)
    for name, expected in plain.items():
        assert mixed[name].dtype == torch.float32
        assert torch.allclose(mixed[name], expected, atol=0.1 * scale_of(name, expected, inputs)), name


def test_the_state_dict_holds_parameters_alone_and_a_layer_can_be_copied_after_use():
    layer = make_layer("switch", "preserving")
    layer.load.enabled = True
    layer(*make_inputs((5,)))
    experts = {f"experts.fc{n}_{name}" for n in (1, 2) for name in ("weight", "bias")}
    assert set(layer.state_dict()) == {"gate.weight", "blend"} | experts
    twin = copy.deepcopy(layer)
    assert layer.last_balance_loss is not None and twin.last_balance_loss is None
    torch.testing.assert_close(twin.state_dict(), layer.state_dict(), rtol=0, atol=0)
