"""Many matrix products of different sizes in one call of MKL on a CPU.

`torch.bmm` needs equal sizes, and after each single product the cores wait for each other.
Intel's MKL, which torch's builds for x86 contain, has `sgemm_batch` for this, but torch does not
expose it. The routine is checked once, with products of known results.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_mtmoe.moe.device_kind import is_on_cpu

# A number of each product, (P,), or one for all; few numbers are faster as a list.
Numbers = Tensor | Sequence[int] | int


@dataclass(frozen=True)
class Operand:
    """One operand of P products; matrix p starts at element `offsets[p]` of `base`.

    Its rows are contiguous, `stride` elements apart; or, if `transposed`, its columns.
    """

    base: Tensor
    offsets: Tensor | Sequence[int]
    stride: Numbers
    transposed: bool = False

    @property
    def mark(self) -> bytes:
        """MKL's letter for a matrix that is read as it is, or transposed."""
        return b"T" if self.transposed else b"N"

    def addresses(self) -> Tensor | list[int]:
        """Return the memory address of each matrix."""
        first = self.base.data_ptr()
        size = self.base.element_size()
        if torch.is_tensor(self.offsets):
            return first + self.offsets * size
        return [first + offset * size for offset in self.offsets]


def has_batched_products(*operands: Tensor) -> bool:
    """Return whether `batched_products` supports these tensors' dtypes and devices."""
    usable = all(is_on_cpu(tensor) and tensor.dtype == torch.float32 for tensor in operands)
    return usable and _routine() is not None


def batched_products(
    left: Operand,
    right: Operand,
    out: Operand,
    rows: Numbers,
    columns: Numbers,
    inner: Numbers,
    scale: float = 1.0,
    adds: bool = False,
    routine: Any = None,
) -> None:
    """Write the P products `scale · left[p] @ right[p]` into `out[p]`.

    Args:
        rows, columns, inner: the sizes of each product: (rows, inner) times (inner, columns). No
            size may be 0.
        adds: whether to add the products to `out`.
        routine: the routine to call, by default MKL's.
    """
    count = len(out.offsets)
    if count == 0:
        return
    routine = routine or _routine()
    # The routine is column-major: for it every matrix is transposed, and the operands are swapped.
    first = right
    second = left
    arguments = (
        _filled(ctypes.c_char, count, first.mark), _filled(ctypes.c_char, count, second.mark),
        _numbers(columns, count), _numbers(rows, count), _numbers(inner, count),
        _filled(ctypes.c_float, count, scale), *_matrices(first, count), *_matrices(second, count),
        _filled(ctypes.c_float, count, float(adds)), *_matrices(out, count),
        # A build with 64-bit sizes would read both numbers as one negative number of groups.
        (ctypes.c_int32 * 2)(count, -1), _filled(ctypes.c_int32, count, 1),
    )  # fmt: skip
    routine(*map(_pointer, arguments))


def _pointer(argument: Any) -> Any:
    return ctypes.c_void_p(argument.data_ptr()) if torch.is_tensor(argument) else argument


def _matrices(operand: Operand, count: int) -> tuple[Any, Any]:
    return _numbers(operand.addresses(), count, ctypes.c_int64), _numbers(operand.stride, count)


def _numbers(numbers: Numbers, count: int, kind: Any = ctypes.c_int32) -> Any:
    """Return the numbers of all products as a tensor or an array of C integers."""
    if torch.is_tensor(numbers):
        return numbers.to(torch.int64 if kind is ctypes.c_int64 else torch.int32)
    return _filled(kind, count, numbers) if isinstance(numbers, int) else (kind * count)(*numbers)


@lru_cache(maxsize=256)
def _filled(kind: Any, count: int, value: Any) -> Any:
    return (kind * count)(*[value] * count)


@cache
def _routine() -> Any:
    """Return MKL's `sgemm_batch` with 32-bit sizes, as in Fortran, or None."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily  # a slow import

    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        routine = ctypes.CDLL(str(library)).SGEMM_BATCH
    except (OSError, AttributeError):
        return None
    routine.restype = None
    # A trial with fake tensors, which have no memory, would crash.
    with unset_fake_temporarily():
        return routine if multiplies_right(routine) else None


def multiplies_right(routine: Any) -> bool:
    """Return whether a routine's products are right, and it writes nowhere else."""
    left, right = (torch.arange(1, 40, dtype=torch.float32, device="cpu") for _ in range(2))
    out = torch.full((20,), -1, dtype=torch.float32, device="cpu")
    # (2, 3) times (3, 4), written from element 2 on, and (1, 5) times (5, 2), from 14 on; rows
    # are 5 elements apart.
    batched_products(
        Operand(left, [0, 10], 5),
        Operand(right, [0, 20], 5, transposed=True),
        Operand(out, [2, 14], 5),
        rows=[2, 1],
        columns=[4, 2],
        inner=[3, 5],
        routine=routine,
    )
    expected = torch.full((20,), -1, dtype=torch.long, device="cpu")
    for start, first, second, rows, columns, inner in ((2, 0, 0, 2, 4, 3), (14, 10, 20, 1, 2, 5)):
        left_matrix = left.long().as_strided((rows, inner), (5, 1), first)
        right_matrix = right.long().as_strided((columns, inner), (5, 1), second)
        expected.as_strided((rows, columns), (5, 1), start).copy_(left_matrix @ right_matrix.t())
    return torch.equal(out.long(), expected)
