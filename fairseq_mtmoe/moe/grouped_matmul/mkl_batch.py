"""Many products of matrices of different sizes in one call, by the library that computes torch's own on a CPU.

`torch.bmm` wants equal sizes, and products one after the other leave a processor's cores waiting for each other at the
end of each. Intel's MKL, which torch's builds for x86 bring along, has a routine for just this, `sgemm_batch`, that
torch does not hand on. Here it is called where it is; elsewhere (`has_batched_products`) there is no such thing.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Operand:
    """One side of P products: the matrix of product p starts at element `offsets[p]` of `base`.

    Its rows are whole in memory, `stride` elements apart; or, if `transposed`, its columns are.
    """

    base: Tensor
    offsets: Tensor
    stride: int
    transposed: bool = False

    def addresses(self) -> Tensor:
        """Where the matrices start in memory, (P,)."""
        return self.base.data_ptr() + self.offsets * self.base.element_size()


def has_batched_products(*operands: Tensor) -> bool:
    """Whether `batched_products` can be used for tensors of these types and devices."""
    usable = all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in operands)
    return usable and _routine() is not None


def batched_products(left: Operand, right: Operand, out: Operand, rows: Tensor, columns: Tensor, inner: Tensor) -> None:
    """Write the P products `left[p] @ right[p]` into `out[p]`.

    Args:
        rows, columns, inner: the sizes of each product, (P,): (rows, inner) times (inner, columns). No size may be 0.
    """
    count = len(rows)
    if count == 0:
        return
    # The routine counts along columns first: seen that way, every matrix is transposed, and the sides change places.
    first, second = right, left
    arguments = (
        _filled(count, _letter(first), torch.uint8), _filled(count, _letter(second), torch.uint8),
        columns.int(), rows.int(), inner.int(), _filled(count, 1, torch.float32),
        first.addresses(), _filled(count, first.stride), second.addresses(), _filled(count, second.stride),
        _filled(count, 0, torch.float32), out.addresses(), _filled(count, out.stride),
        _filled(1, count), _filled(count, 1),
    )  # fmt: skip
    routine = _routine()
    assert routine is not None
    routine(*(ctypes.c_void_p(argument.data_ptr()) for argument in arguments))


def _letter(operand: Operand) -> int:
    return ord("T" if operand.transposed else "N")


def _filled(count: int, value: int, dtype: torch.dtype = torch.int32) -> Tensor:
    # Said outright: neither torch's default type nor its default device may reach MKL.
    return torch.full((count,), value, dtype=dtype, device="cpu")


@cache
def _routine() -> Any:
    """MKL's `sgemm_batch` with 32-bit sizes, as in Fortran; None where torch was built without it."""
    for name in ("libtorch_cpu.so", "torch_cpu.dll", "libtorch_cpu.dylib"):
        path = Path(torch.__file__).parent / "lib" / name
        if path.exists():
            try:
                routine = ctypes.CDLL(str(path)).SGEMM_BATCH
            except (OSError, AttributeError):
                return None
            routine.restype = None
            return routine
    return None
