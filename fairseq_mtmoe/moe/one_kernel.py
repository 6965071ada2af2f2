"""Operations that are one kernel of Triton's on a GPU that has it, and several of torch's elsewhere.

A launch costs some microseconds, whatever is computed: in small layers more than the work. What is in torch is the
reference of its kernel, and what happens on a CPU. Nothing here knows a gradient: `autograd.Function`s call it.
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

NAMESPACE = "mtmoe_kernel"  # of torch's operators; one that is called is one launch
LIBRARY = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
TOLERANCE = 0.02  # of the trial: an error in a kernel is larger


@dataclass(frozen=True)
class Forms:
    """An operation in both forms.

    Attributes:
        in_torch: the operation for tensors anywhere.
        by_triton: where its kernel is called, `module:function` within this folder; imported when it is used.
        example: makes arguments on a device, which both forms are tried with once.
    """

    in_torch: Callable[..., Any]
    by_triton: str
    example: Callable[[torch.device], tuple[Any, ...]]

    def kernel(self, *args: Any) -> Any:
        module, _, function = self.by_triton.partition(":")
        return getattr(import_module(f"fairseq_mtmoe.moe.{module}"), function)(*args)


FORMS: dict[str, Forms] = {}  # all that is tried out before it is used


def one_kernel(
    arguments: str, by_triton: str, example: Callable[[torch.device], tuple[Any, ...]]
) -> Callable[[Callable[..., Any]], Any]:
    """Decorate the form in torch: the function takes the form of Triton's kernel where its first tensor's GPU has it.

    `arguments` are those of torch's schemas, with what comes back: `(Tensor x) -> Tensor`. No shape depends on values.
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
    """Whether kernels are used where a tensor is; the first time on a GPU they are compiled there, and tried out."""
    return has_triton(tensor) and kernels_are_right(tensor.device)


def kernels_are_right(device: torch.device) -> bool:
    """Whether all kernels give what their forms in torch give, by a trial."""
    return trial(device)


# What `torch.compiler.assume_constant_result` does; that imports the whole compiler, which takes 1.5 s at each start.
kernels_are_right._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def trial(device: torch.device) -> bool:
    """Try all kernels out, once."""
    try:
        wrong = [name for name, forms in FORMS.items() if not _is_right(forms, device)]
    except Exception:  # no compiler, another version's interface, …
        logger.warning("Triton's kernels cannot be used: operations of torch take their place.", exc_info=True)
        return False
    if wrong:
        logger.warning("Triton's kernels are wrong (%s): operations of torch take their place.", ", ".join(wrong))
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
