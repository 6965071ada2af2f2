"""Banks of adapters and the mixture of them: equal to loops, gradients included, in all types."""

import copy

import pytest
import torch
from torch import nn

from fairseq_mtmoe.moe import BottleneckBank, LoraBank, MixtureGate, TargetAdapter
from fairseq_mtmoe.moe.mixture import layer_similarity
from tests.helpers.adapter_reference import slow_mixture, slow_similarity

L, B, D, H, K, R = 5, 4, 10, 6, 3, 2
KINDS = {
    "lora": lambda k=K, r=R: LoraBank(k, D, H, r, scale=1.3),
    "bottleneck": lambda k=K, r=R: BottleneckBank(k, D, H, r),
}
both = pytest.mark.parametrize("kind", KINDS)


def trained(kind, *sizes):
    """A bank in which nothing is 0."""
    torch.manual_seed(0)
    bank = KINDS[kind](*sizes)
    for parameter in bank.parameters():
        nn.init.normal_(parameter)
    return bank


def output_of(bank, x, weights, base=None):
    return bank.widen(bank.narrow(x), weights, x.new_zeros(*x.shape[:2], H) if base is None else base)


def weights_of(shape):
    return torch.randn(*shape, K).softmax(-1).requires_grad_()


def assert_same(fast, slow, inputs, **tolerance):
    """Of two ways the output and, with this tolerance, the gradients."""
    torch.testing.assert_close(fast, slow)
    weight = torch.randn_like(slow)
    torch.testing.assert_close(*(torch.autograd.grad(way, inputs, weight) for way in (fast, slow)), **tolerance)


@both
@pytest.mark.parametrize("shape", [(), (B,)], ids=["one for all", "each sentence"])
def test_a_mixture_is_the_weighted_sum_of_its_adapters(kind, shape):
    bank, weights = trained(kind), weights_of(shape)
    x, base = torch.randn(L, B, D, requires_grad=True), torch.randn(L, B, H, requires_grad=True)
    fast, slow = output_of(bank, x, weights, base), base + slow_mixture(bank, x, weights)
    assert_same(fast, slow, [base, x, weights, *bank.parameters()])
    torch.testing.assert_close(output_of(bank, x, None), slow_mixture(bank, x, torch.ones(K)))


@both
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(kind, dtype):
    bank, x, weights = trained(kind).to(dtype), torch.randn(L, B, D).to(dtype), weights_of((B,))
    wide = copy.deepcopy(bank).float()
    mixed = output_of(bank, x, weights)
    assert mixed.dtype == dtype
    torch.testing.assert_close(mixed.float(), slow_mixture(wide, x.float(), weights), rtol=0.03, atol=0.1)
    for output in (mixed, 30_000 * torch.randn(L, B, H)):  # under autocast streams are float32, beyond float16's range
        similarity = layer_similarity(bank.cosines(bank.narrow(x), output), weights)
        assert similarity.dtype == torch.float32
        wanted = slow_similarity(wide, x.float(), output.float(), weights)
        torch.testing.assert_close(similarity, wanted, rtol=0.03, atol=0.01)


@both
def test_under_autocast(kind, device, request):
    if request.config.getoption("--device") == "pretended":
        pytest.skip("what it computes is under a CPU's autocast, and what it says of its device is not")
    bank, x, weights, gate = trained(kind), torch.randn(L, B, D), weights_of((B,)), MixtureGate(K, 5)
    nn.init.normal_(gate.weight)
    summary = torch.randn(B, 5)
    with torch.autocast(device, dtype=torch.bfloat16):
        mixed, weights_BK = output_of(bank, x, weights), gate(summary)
        similarity = layer_similarity(bank.cosines(bank.narrow(x), mixed.float()), weights)
    torch.testing.assert_close(similarity, slow_similarity(bank, x, mixed.float(), weights), rtol=0.03, atol=0.01)
    torch.testing.assert_close(mixed.float(), slow_mixture(bank, x, weights), rtol=0.03, atol=0.1)
    assert torch.equal(weights_BK, gate(summary)) and weights_BK.dtype == torch.float32


@both
def test_frozen_sources_keep_no_more_than_their_narrow_activations(kind):
    bank = trained(kind).requires_grad_(False)
    x, base = torch.randn(L, B, D, requires_grad=True), torch.randn(L, B, H, requires_grad=True)
    x, base = x * 2, base * 2  # as inside of a model: no leaves
    weights, kept = weights_of((B,)), []
    frozen = {parameter.untyped_storage().data_ptr() for parameter in bank.parameters()}

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in frozen:
            kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output_of(bank, x, weights, base).sum()
    of_tokens = {tensor.data_ptr(): tensor.numel() for tensor in kept if len(tensor) in (L, L * B)}
    assert sum(of_tokens.values()) <= L * B * K * R


@both
def test_new_adapters_add_nothing_are_like_nothing_and_are_drawn_one_by_one(kind):
    torch.manual_seed(0)
    bank, x = KINDS[kind](4, 64), torch.randn(L, B, D, requires_grad=True)
    output = torch.randn(L, B, H, requires_grad=True)
    assert torch.equal(output_of(bank, x, torch.full((4,), 0.25)), torch.zeros(L, B, H))
    cosines = bank.cosines(bank.narrow(x), output)
    assert torch.equal(cosines, torch.zeros(L, B, 4))
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(cosines.sum(), (x, output)))
    assert layer_similarity(cosines, torch.ones(4), torch.ones(B, L, dtype=torch.bool)) == 0  # nothing but padding
    assert not torch.allclose(bank.down[0], bank.down[1]) and torch.equal(bank.member(1)["down"], bank.down[1])
    assert bank.down.abs().max() <= D**-0.5 and bank.down.std().item() == pytest.approx((3 * D) ** -0.5, rel=0.05)
    adapter = TargetAdapter(64, 32)
    assert adapter.down.weight.std().item() == pytest.approx(0.01, rel=0.1) and not adapter.up.bias.any()


@both
@pytest.mark.parametrize("shape", [(), (B,)], ids=["one for all", "each sentence"])
def test_similarities_are_those_of_outputs_that_are_never_made(kind, shape):
    bank, weights = trained(kind), weights_of(shape)
    x, output = torch.randn(L, B, D, requires_grad=True), torch.randn(L, B, H, requires_grad=True)
    padding = torch.arange(L) >= torch.tensor([[1], [L], [2], [L]])
    inputs = [x, output, weights, *bank.parameters()]
    for mask in (None, padding):
        fast = layer_similarity(bank.cosines(bank.narrow(x), output), weights, mask)
        slow = slow_similarity(bank, x, output, weights, mask)
        assert_same(fast, slow, inputs, rtol=1e-4, atol=1e-6)


@both
def test_lengths_in_half_precision_are_right_where_most_cancels_out(kind):
    bank, output = trained(kind, 1), torch.randn(L, B, H)
    with torch.no_grad():
        bank.up[0, 1] = bank.up[0, 0] + 0.02 * torch.randn(H)
        if kind == "bottleneck":
            bank.up_bias.zero_()
    bank.bfloat16()
    narrow = torch.tensor([1.0, -1.0]).expand(L, B, R).bfloat16()
    expert_H = (bank.up[0, 0].float() - bank.up[0, 1].float()).expand(L, B, H)
    seen = ((output.bfloat16() @ bank.up[0].t()).float() * narrow.float()).sum(-1)  # a product rounds, too
    found = bank.cosines(narrow, output.bfloat16()).squeeze(-1)
    torch.testing.assert_close(found, seen / expert_H.norm(dim=-1) / output.norm(dim=-1), rtol=0.02, atol=0.02)
