"""MKL's batched product is tried out before it is used, and left alone where it computes something else."""

import ctypes

import pytest
import torch

from fairseq_mtmoe.moe import ExpertBank
from fairseq_mtmoe.moe.grouped_matmul import mkl_batch
from fairseq_mtmoe.moe.grouped_matmul.backends import ONE_BY_ONE, backend_for
from fairseq_mtmoe.moe.grouped_matmul.mkl_batch import has_batched_products, multiplies_right

pytestmark = pytest.mark.skipif(
    not has_batched_products(torch.zeros(1)), reason="this build of torch has no batched products"
)
OUT = 11  # its position among the arguments


def does_nothing(*arguments):
    """As a build with 64-bit sizes, which finds a negative number of groups."""


def writes_beyond(*arguments):
    mkl_batch._routine()(*arguments)
    first = ctypes.cast(arguments[OUT], ctypes.POINTER(ctypes.c_int64))[0]
    ctypes.cast(first, ctypes.POINTER(ctypes.c_float))[4] = 0.0


@pytest.mark.parametrize("autocast", [False, True])
def test_the_routine_is_right_here_and_another_one_is_found_out(autocast):
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        assert multiplies_right(mkl_batch._routine())
        assert not multiplies_right(does_nothing) and not multiplies_right(writes_beyond)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_neither_a_default_type_nor_fake_tensors_reach_the_trial(dtype, set_default_dtype):
    from torch._subclasses.fake_tensor import FakeTensorMode

    right = mkl_batch._routine() is not None
    mkl_batch._routine.cache_clear()
    set_default_dtype(dtype)
    with FakeTensorMode():
        assert (mkl_batch._routine() is not None) == right


def test_without_it_products_come_one_after_the_other(monkeypatch):
    torch.manual_seed(0)
    bank, rows, offsets = ExpertBank(3, 4, 8), torch.randn(9, 4), torch.tensor([4, 4, 8])
    expected = bank(rows, offsets)
    monkeypatch.setattr(mkl_batch, "_routine", lambda: None)
    assert backend_for(rows, bank.fc1_weight, groups=len(bank.fc1_weight)) is ONE_BY_ONE
    torch.testing.assert_close(bank(rows, offsets), expected)
