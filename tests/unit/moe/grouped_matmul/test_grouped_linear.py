"""Grouped products: all ways to compute them agree with plain ones, in values and in every gradient."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from fairseq_mtmoe.moe.device_kind import DeviceKind, device_kind_everywhere
from fairseq_mtmoe.moe.grouped_matmul import operators as grouped
from fairseq_mtmoe.moe.grouped_matmul.backends import (
    BATCHED,
    IN_ONE,
    ONE_BY_ONE,
    backend_for,
    padded_backend,
    sum_in_one,
    sum_one_by_one,
)
from fairseq_mtmoe.moe.grouped_matmul.mkl_batch import has_batched_products
from fairseq_mtmoe.moe.grouped_matmul.operators import ACTIVATIONS, grouped_linear, grouped_network, offsets_at_hand
from tests.helpers.pairwise import pairwise

INPUTS, OUTPUTS = 8, 12
GROUPS = {
    "even": ([4, 4, 4], 0),
    "uneven": ([3, 0, 5, 2], 0),
    "idle at both ends": ([0, 0, 7, 0], 0),
    "one group": ([5], 0),
    "padding after the last": ([2, 3], 4),
    "nothing but padding": ([0, 0], 3),
    "no rows": ([0, 0], 0),
    "several pieces, sliced": ([1000, 300, 0, 1], 13),
}
BACKENDS = {"one by one": ONE_BY_ONE, "filled up": padded_backend(1000), "filled up with room": padded_backend(1003)}
if hasattr(F, "grouped_mm"):
    BACKENDS["in one"] = IN_ONE
if has_batched_products(torch.zeros(1)):
    BACKENDS["batched"] = BATCHED
with_grouped_mm = pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="this torch has no grouped product")


def example(name, bias=True, dtype=torch.float32):
    counts, padding = GROUPS[name]
    generator = torch.Generator().manual_seed(1)
    rows, weight, biases = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        for shape in ((sum(counts) + padding, INPUTS), (len(counts), OUTPUTS, INPUTS), (len(counts), OUTPUTS))
    )
    return rows, torch.tensor(counts).cumsum(0), weight, biases if bias else None


def plainly(rows, offsets, weight, bias):
    """The same with torch's linear layer and its gradients."""
    parts, start = [], 0
    for group, end in enumerate(offsets.tolist()):
        parts.append(F.linear(rows[start:end], weight[group], None if bias is None else bias[group]))
        start = end
    return torch.cat([*parts, rows.new_zeros(len(rows) - start, weight.shape[1])])


def gradients(function, rows, offsets, *others):
    rows, *others = (None if tensor is None else tensor.clone().requires_grad_() for tensor in (rows, *others))
    output = function(rows, offsets, *others)
    (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum().backward()
    return [output.detach(), *(tensor.grad for tensor in (rows, *others) if tensor is not None)]


@pairwise(way=BACKENDS, name=GROUPS, bias=[True, False])
def test_every_way_gives_the_plain_products_and_gradients(name, bias, way, monkeypatch):
    monkeypatch.setattr(grouped, "backend_for", lambda *operands, **settings: BACKENDS[way])
    right = gradients(plainly, *example(name, bias, torch.float64))
    found = gradients(grouped_linear, *example(name, bias))
    torch.testing.assert_close(found, [value.float() for value in right], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", GROUPS)
def test_the_network_is_its_three_parts(name, activation):
    rows, offsets, weight, bias = example(name, dtype=torch.float64)
    generator = torch.Generator().manual_seed(2)
    shapes = weight.mT.shape, (len(weight), INPUTS)
    weight2, bias2 = (torch.randn(shape, generator=generator).double() for shape in shapes)

    def in_parts(rows, offsets, weight, bias, weight2, bias2):
        return grouped_linear(activation(grouped_linear(rows, offsets, weight, bias)), offsets, weight2, bias2)

    ways = partial(grouped_network, activation), in_parts
    torch.testing.assert_close(*(gradients(way, rows, offsets, weight, bias, weight2, bias2) for way in ways))
    torch.testing.assert_close(sum_in_one(rows, offsets), sum_one_by_one(rows, offsets))  # a GPU's and a CPU's


def test_strides_do_not_matter():
    rows, offsets, weight, bias = example("uneven")
    wide_rows = torch.stack([rows, rows], 2)[:, :, 0]
    wide_weight = torch.stack([weight, weight], 3)[..., 0]
    expected = plainly(rows, offsets, weight, bias)
    torch.testing.assert_close(grouped_linear(wide_rows, offsets, wide_weight, bias), expected)
    transposed = weight.transpose(1, 2).contiguous().transpose(1, 2)
    torch.testing.assert_close(grouped_linear(rows, offsets, transposed, bias), expected)


@with_grouped_mm
def test_the_host_reads_ends_for_the_types_that_autocast_makes(device):
    rows, weight, offsets = torch.ones(3, 8), torch.ones(2, 16, 8), torch.tensor([1, 3])
    on_host = offsets.clone()
    with device_kind_everywhere(DeviceKind.GPU_WITH_GROUPED_MM):
        assert offsets_at_hand(offsets, rows, weight, None, on_host) is on_host
        with torch.autocast(device, dtype=torch.bfloat16):
            assert offsets_at_hand(offsets, rows, weight, None, on_host) is offsets


@with_grouped_mm
@pytest.mark.parametrize("max_rows", [None, 2])
def test_a_thousand_groups_and_more_have_their_products_and_gradients(max_rows):
    generator = torch.Generator().manual_seed(1)
    rows, weight = (torch.randn(shape, generator=generator) for shape in ((2048, 8), (1030, 16, 8)))
    offsets = (torch.arange(1030) * 2).clamp(max=2048)
    with device_kind_everywhere(DeviceKind.GPU_WITH_GROUPED_MM):
        inputs = [tensor.bfloat16().requires_grad_() for tensor in (rows, weight)]
        chosen = [backend_for(*inputs, groups=groups, max_rows=max_rows) is IN_ONE for groups in (1023, 1024)]
        assert chosen == [True, False]
        output = grouped_linear(inputs[0], offsets, inputs[1], max_rows=max_rows)
        output.sum().backward()
    expected = gradients(plainly, rows, offsets, weight, None)[0]
    torch.testing.assert_close(output.float(), expected, rtol=0.02, atol=0.05)
    assert inputs[1].grad[1:1025].any(2).all() and not inputs[1].grad[1025:].any()


def test_the_operators_keep_torchs_rules(request):
    if request.config.getoption("--device") == "pretended":
        pytest.skip("torch's check makes tensors on the device behind its back")
    rows, offsets, weight, bias = example("padding after the last")
    for tensor in (rows, weight, bias):
        tensor.requires_grad_()
    torch.library.opcheck(torch.ops.mtmoe.grouped_linear.default, (rows, offsets, weight, bias, 4))
    grad = torch.randn(len(rows), OUTPUTS)
    torch.library.opcheck(torch.ops.mtmoe.grouped_outer.default, (grad, rows.detach(), offsets, None))
    torch.library.opcheck(torch.ops.mtmoe.grouped_sum.default, (grad, offsets))


@pytest.mark.skipif("batched" not in BACKENDS, reason="this build of torch has no batched products")
def test_torchs_default_type_does_not_reach_the_products(set_default_dtype):
    operands = example("uneven")
    set_default_dtype(torch.float64)
    torch.testing.assert_close(BATCHED.linear(*operands), plainly(*operands))
