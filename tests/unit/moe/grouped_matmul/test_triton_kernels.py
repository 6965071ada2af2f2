"""The kernels in Triton, interpreted on a CPU, against one product after the other; and where they are used.

Triton comes with torch's builds for CUDA; elsewhere `pip install triton` lets all of these run.
"""

from functools import partial
from importlib.util import find_spec

import pytest
import torch

from fairseq_mtmoe.moe.device_kind import DeviceKind, device_kind_everywhere, has_triton
from fairseq_mtmoe.moe.grouped_matmul import backends
from fairseq_mtmoe.moe.grouped_matmul.backends import BY_TRITON, IN_ONE, ONE_BY_ONE, backend_for
from fairseq_mtmoe.moe.grouped_matmul.operators import reads_offsets, takes_host_offsets
from fairseq_mtmoe.moe.one_kernel import FORMS
from tests.helpers.pretended_gpu import pretended_gpu

with_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
# Sizes that are no multiple of a tile's, in all three directions; tiles of the fewest rows and of the most.
GROUPS = {
    "few rows": ([3, 0, 17, 1], 5),
    "many rows": ([300, 129, 0, 128, 1], 0),
    "most rows in no group": ([2, 0], 150),
    "no rows": ([0, 0, 0], 0),
}
INPUTS, OUTPUTS = 75, 70


def example(name, dtype):
    counts, padding = GROUPS[name]
    generator = torch.Generator().manual_seed(1)
    shapes = (sum(counts) + padding, INPUTS), (len(counts), OUTPUTS, INPUTS), (len(counts), OUTPUTS)
    rows, weight, bias = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    grad = torch.randn(len(rows), OUTPUTS, generator=generator).to(dtype)
    return rows, torch.tensor(counts).cumsum(0), weight, bias, grad


def assert_close(found, right):
    """As near as sums in float32 come in another order, and rounding to the type at the end."""
    assert found.dtype == right.dtype
    tolerance = {torch.float32: 1e-5, torch.float16: 1e-3}[right.dtype]
    torch.testing.assert_close(found, right, rtol=tolerance, atol=20 * tolerance)


@with_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])  # the interpreter multiplies no bfloat16
@pytest.mark.parametrize("name", GROUPS)
def test_products_are_those_of_one_after_the_other(name, dtype):
    rows, offsets, weight, bias, grad = example(name, dtype)
    # The last one as the gradient's product has them.
    for operands in ((rows, offsets, weight, bias), (rows, offsets, weight, None), (grad, offsets, weight.mT, None)):
        assert_close(*(way.linear(*operands) for way in (BY_TRITON, ONE_BY_ONE)))
    assert_close(*(way.outer(grad, rows, offsets, torch.Tensor.new_empty) for way in (BY_TRITON, ONE_BY_ONE)))


@with_triton
def test_what_stands_in_rows_of_no_group_reaches_nothing():
    rows, offsets, weight, bias, grad = example("most rows in no group", torch.float32)
    rows[offsets[-1] :] = grad[offsets[-1] :] = torch.nan
    assert not BY_TRITON.linear(rows, offsets, weight, bias)[offsets[-1] :].any()
    assert BY_TRITON.outer(grad, rows, offsets, torch.Tensor.new_empty).isfinite().all()


@with_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", GROUPS)
def test_a_product_is_finished_in_one_pass_as_in_three(name, dtype):
    _, offsets, _, bias, product = example(name, dtype)
    product[offsets[-1] :] = torch.nan
    for biases in (bias, None):
        found = backends._finished_by_triton(product.clone(), offsets, biases)
        right = backends._finished(product.clone(), offsets, biases)
        # The interpreter cuts what does not fit into bfloat16 off.
        torch.testing.assert_close(found, right, rtol=2**-7 if dtype == torch.bfloat16 else 0, atol=0)


@with_triton
@pytest.mark.parametrize("name", GROUPS)
def test_sums_and_products_of_no_rows(name):
    _, offsets, weight, _, grad = example(name, torch.float32)
    grad[offsets[-1] :] = torch.nan
    assert_close(backends._sums_by_triton(grad, offsets.int()), backends.sum_one_by_one(grad, offsets))
    assert torch.equal(backends._cleared_by_triton(weight.clone(), offsets.int()), backends._cleared(weight, offsets))


@with_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", GROUPS)
def test_groups_are_filled_up_and_rows_taken_out_of_them(name, dtype):
    rows, offsets, *_ = example(name, dtype)
    rows[offsets[-1] :] = torch.nan
    most = int(offsets.diff(prepend=offsets.new_zeros(1)).max()) + 1
    fill, take = (FORMS[each] for each in ("filled_up", "taken_out"))
    if len(rows) == 0:
        assert torch.equal(fill.kernel(rows, offsets.int(), most), rows.new_zeros(len(offsets), most, INPUTS))
        return
    filled = fill.in_torch(rows, offsets, most)
    assert torch.equal(fill.kernel(rows, offsets.int(), most), filled)
    filled[:, -1] = torch.nan  # what fills up may become anything in a product
    taken = take.in_torch(filled, offsets, len(rows))
    assert torch.equal(take.kernel(filled, offsets.int(), len(rows)), taken)
    assert torch.equal(taken[: offsets[-1]], rows[: offsets[-1]]) and not taken[offsets[-1] :].any()


@with_triton
def test_many_groups():
    rows, weight = torch.randn(50, 16), torch.randn(65, 16, 16)
    offsets = (torch.arange(65) - 14).clamp(min=0)
    assert_close(*(way.linear(rows, offsets, weight, None) for way in (BY_TRITON, ONE_BY_ONE)))


@pytest.mark.parametrize(("capability", "can"), [((7, 5), False), ((8, 0), True), ((8, 9), True), ((9, 0), True)])
def test_it_is_used_where_it_is_and_compiles(capability, can):
    with pretended_gpu(capability):
        assert has_triton(torch.ones(1, device="cuda")) == (can and find_spec("triton") is not None)
        assert not has_triton(torch.ones(1))


@pytest.fixture
def gpu_with_triton(monkeypatch):
    monkeypatch.setattr(backends, "has_triton", lambda tensor: True)
    monkeypatch.setattr(backends, "is_right_by_triton", lambda dtype, device: True)
    with device_kind_everywhere(DeviceKind.GPU):
        yield


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", [1024, 1025])
@pytest.mark.usefixtures("gpu_with_triton")
def test_it_is_used_where_it_is_fast_and_the_host_reads_no_ends_then(dtype, rows, monkeypatch):
    rows, weight = torch.empty(rows, 8, dtype=dtype), torch.empty(2, 16, 8, dtype=dtype)
    is_slow = dtype == torch.float32 and len(rows) > 1024
    assert backend_for(rows, weight, groups=2) is (ONE_BY_ONE if is_slow else BY_TRITON)
    assert reads_offsets(rows, weight) == is_slow
    assert takes_host_offsets(rows, weight)  # if the host has them anyway
    assert backend_for(rows, weight, groups=2, max_rows=len(rows)) not in (ONE_BY_ONE, BY_TRITON)
    assert not takes_host_offsets(rows, weight, max_rows=len(rows))
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert backend_for(rows, weight, groups=2) is BY_TRITON
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not reads_offsets(rows, weight)


@pytest.fixture
def trial():
    """The trial of this process, forgotten before and after."""
    backends.is_right_by_triton.cache_clear()
    yield lambda: backends.is_right_by_triton(torch.float32, torch.device("cpu"))
    backends.is_right_by_triton.cache_clear()


@pytest.mark.parametrize("name", ["linear", "outer"])
@pytest.mark.parametrize("wrong", [lambda right, *args: right(*args) + 0.1, lambda right, *args: 1 / 0])
def test_what_is_wrong_is_not_used(name, wrong, trial, monkeypatch):
    right = {"linear": ONE_BY_ONE.linear, "outer": ONE_BY_ONE.outer}
    monkeypatch.setattr(backends, "BY_TRITON", ONE_BY_ONE)
    for stand_in in ("_finished", "_cleared", "_sums"):
        monkeypatch.setattr(backends, f"{stand_in}_by_triton", getattr(backends, stand_in))
    assert trial()
    backends.is_right_by_triton.cache_clear()
    monkeypatch.setattr(backends, "BY_TRITON", backends.Backend(**{**right, name: partial(wrong, right[name])}))
    assert not trial()


@pytest.mark.skipif(not hasattr(torch.nn.functional, "grouped_mm"), reason="this torch has none")
def test_torchs_kernel_comes_first(gpu_with_triton):
    rows, weight = torch.empty(3, 8, dtype=torch.bfloat16), torch.empty(2, 16, 8, dtype=torch.bfloat16)
    with device_kind_everywhere(DeviceKind.GPU_WITH_GROUPED_MM):
        assert backend_for(rows, weight, groups=2) is IN_ONE
        assert backend_for(rows[:, :7], weight[..., :7], groups=2) is BY_TRITON
        assert backend_for(rows, weight, groups=1024) is BY_TRITON
        assert backend_for(rows.double(), groups=2) is ONE_BY_ONE
