"""Operations that are one Triton kernel on a GPU with Triton, and several torch operations elsewhere.

A launch costs some microseconds, in small layers more than the work. The form in torch is the kernel's reference, and
runs on CPUs. These operations have no gradients: `autograd.Function`s call them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from fairseq_mtmoe.moe.device_kind import has_triton

logger = logging.getLogger(__name__)

NAMESPACE = "mtmoe_kernel"  # of torch's operators; each call is one launch
LIBRARY = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
TOLERANCE = 0.02  # of the trial; errors of a wrong kernel are larger


@dataclass(frozen=True)
class Forms:
    """An operation in both forms.

    Attributes:
        in_torch: the operation in torch, for all devices.
        by_triton: the function that calls the kernel, as `module:function` in this folder; imported on first use.
        example: returns arguments on a device, to compare both forms once.
    """

    in_torch: Callable[..., Any]
    by_triton: str
    example: Callable[[torch.device], tuple[Any, ...]]

    def kernel(self, *args: Any) -> Any:
        """Call the Triton form."""
        module, _, function = self.by_triton.partition(":")
        return getattr(import_module(f"fairseq_mtmoe.moe.{module}"), function)(*args)


FORMS: dict[str, Forms] = {}  # all operations to compare before their first use


def one_kernel(
    arguments: str, by_triton: str, example: Callable[[torch.device], tuple[Any, ...]]
) -> Callable[[Callable[..., Any]], Any]:
    """Decorate the form in torch, so that calls use the Triton kernel if possible.

    The first tensor's device decides. `arguments` are a torch schema without a name, `(Tensor x) -> Tensor`. Shapes
    must not depend on values.
    """

    def decorate(in_torch: Callable[..., Any]) -> Any:
        name = in_torch.__name__
        FORMS[name] = Forms(in_torch, by_triton, example)
        LIBRARY.define(f"{name}{arguments}")  # type: ignore[no-untyped-call]
        LIBRARY.impl(name, lambda *args: FORMS[name].kernel(*args), "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"{NAMESPACE}::{name}", in_torch, lib=LIBRARY)
        operator = getattr(getattr(torch.ops, NAMESPACE), name)

        @wraps(in_torch)
        def call(*args: Any) -> Any:
            return operator(*args) if uses_triton(args[0]) else in_torch(*args)

        call.in_torch = in_torch  # type: ignore[attr-defined]
        return call

    return decorate


def uses_triton(tensor: Tensor) -> bool:
    """Return whether kernels run on a tensor's device, after a trial on the first call."""
    return has_triton(tensor) and kernels_are_right(tensor.device)


def kernels_are_right(device: torch.device) -> bool:
    """Return whether all kernels agree with their forms in torch, by a trial."""
    return trial(device)


# What `torch.compiler.assume_constant_result` does; that imports the whole compiler, which takes 1.5 s at each start.
kernels_are_right._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def trial(device: torch.device) -> bool:
    """Compare all kernels with their forms in torch, once per device."""
    try:
        wrong = [name for name, forms in FORMS.items() if not _is_right(forms, device)]
    except Exception:  # no compiler, another version's interface, …
        logger.warning("Triton's kernels cannot be used: torch operations replace them.", exc_info=True)
        return False
    if wrong:
        logger.warning("Triton's kernels are wrong (%s): torch operations replace them.", ", ".join(wrong))
    return not wrong


def _is_right(forms: Forms, device: torch.device) -> bool:
    arguments = forms.example(device)
    found, right = (form(*arguments) for form in (forms.kernel, forms.in_torch))
    pairs = zip(_as_tuple(found), _as_tuple(right), strict=True)
    return all(
        one.dtype == other.dtype and torch.allclose(one.float(), other.float(), rtol=TOLERANCE, atol=TOLERANCE)
        for one, other in pairs
    )


def _as_tuple(values: Any) -> tuple[Tensor, ...]:
    return values if isinstance(values, tuple) else (values,)
