"""Many products of matrices of different sizes in one call, by the library that computes torch's own on a CPU.

`torch.bmm` wants equal sizes, and after each single product cores wait for each other. Intel's MKL, which torch's
builds for x86 bring along, has `sgemm_batch` for this, which torch does not hand on. Whether a build's routine is the
one that is meant is tried out once, with products whose results are known.
"""

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_mtmoe.moe.device_kind import is_on_cpu


@dataclass(frozen=True)
class Operand:
    """One side of P products: the matrix of product p starts at element `offsets[p]` of `base`.

    Its rows are whole in memory, `stride` elements apart, (P,) or one number for all; or, if `transposed`, its columns.
    """

    base: Tensor
    offsets: Tensor
    stride: int | Tensor
    transposed: bool = False

    def addresses(self) -> Tensor:
        return self.base.data_ptr() + self.offsets * self.base.element_size()

    def strides(self) -> Tensor:
        return _filled(len(self.offsets), self.stride) if isinstance(self.stride, int) else self.stride.int()

    def letters(self) -> Tensor:
        return _filled(len(self.offsets), ord("T" if self.transposed else "N"), torch.uint8)


def has_batched_products(*operands: Tensor) -> bool:
    """Whether `batched_products` can be used for tensors of these types and devices."""
    usable = all(is_on_cpu(tensor) and tensor.dtype == torch.float32 for tensor in operands)
    return usable and _routine() is not None


def batched_products(
    left: Operand,
    right: Operand,
    out: Operand,
    rows: Tensor,
    columns: Tensor,
    inner: Tensor,
    scale: float = 1.0,
    adds: bool = False,
    routine: Any = None,
) -> None:
    """Write the P products `scale · left[p] @ right[p]` into `out[p]`.

    Args:
        rows, columns, inner: the sizes of each product, (P,): (rows, inner) times (inner, columns). No size may be 0.
        adds: add them to what is in `out`.
        routine: by default MKL's.
    """
    count = len(rows)
    if count == 0:
        return
    routine = _routine() if routine is None else routine
    # The routine counts along columns first: seen that way, every matrix is transposed, and the sides are swapped.
    first, second = right, left
    arguments = (
        first.letters(), second.letters(), columns.int(), rows.int(), inner.int(), _filled(count, scale, torch.float32),
        first.addresses(), first.strides(), second.addresses(), second.strides(),
        _filled(count, float(adds), torch.float32), out.addresses(), out.strides(),
        # A build with 64-bit sizes would read the number of groups with what comes after: a negative number.
        torch.tensor([count, -1], dtype=torch.int32, device="cpu"), _filled(count, 1),
    )  # fmt: skip
    routine(*(ctypes.c_void_p(argument.data_ptr()) for argument in arguments))


def _filled(count: int, value: float, dtype: torch.dtype = torch.int32) -> Tensor:
    # Said outright: neither torch's default type nor its default device may reach MKL.
    return torch.full((count,), value, dtype=dtype, device="cpu")


@cache
def _routine() -> Any:
    """Return MKL's `sgemm_batch` with 32-bit sizes, as in Fortran; None where it is another or not there."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily  # not before it is needed: it takes a moment

    for name in ("libtorch_cpu.so", "torch_cpu.dll", "libtorch_cpu.dylib"):
        path = Path(torch.__file__).parent / "lib" / name
        if path.exists():
            try:
                routine = ctypes.CDLL(str(path)).SGEMM_BATCH
            except (OSError, AttributeError):
                return None
            routine.restype = None
            with unset_fake_temporarily():  # a trial with tensors that have no memory would crash
                return routine if multiplies_right(routine) else None
    return None


def multiplies_right(routine: Any) -> bool:
    """Whether a routine multiplies two sizes and layouts of small whole numbers, and writes nowhere else."""
    left, right = (torch.arange(1, 40, dtype=torch.float32, device="cpu") for _ in range(2))
    out = torch.full((20,), -1, dtype=torch.float32, device="cpu")
    # (2, 3) times (3, 4), written from element 2 on, and (1, 5) times (5, 2), from 14 on; rows are 5 elements apart.
    batched_products(
        Operand(left, _whole(0, 10), 5),
        Operand(right, _whole(0, 20), 5, transposed=True),
        Operand(out, _whole(2, 14), 5),
        rows=_whole(2, 1),
        columns=_whole(4, 2),
        inner=_whole(3, 5),
        routine=routine,
    )
    expected = torch.full((20,), -1, dtype=torch.long, device="cpu")
    for start, first, second, rows, columns, inner in ((2, 0, 0, 2, 4, 3), (14, 10, 20, 1, 2, 5)):
        one = left.long().as_strided((rows, inner), (5, 1), first)
        other = right.long().as_strided((columns, inner), (5, 1), second)
        expected.as_strided((rows, columns), (5, 1), start).copy_(one @ other.t())
    return torch.equal(out.long(), expected)


def _whole(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.long, device="cpu")
