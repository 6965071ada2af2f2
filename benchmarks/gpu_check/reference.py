"""Part `reference`: every gate's layer on the device, in three types, against `moe/reference.py` on a CPU.

`pytest tests/unit/moe --device cuda` checks more.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F

from fairseq_mtmoe.moe import ExpertBank, MoELayer, build_gate
from fairseq_mtmoe.moe.device_kind import device_kind, device_kind_everywhere
from fairseq_mtmoe.moe.reference import slow_forward
from gpu_check.rows import DTYPES, Check, Row, Setting, passed, short

KINDS = ("base", "task", "switch")
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}  # of the largest value
SEED = 0
N, H, INNER, TASKS = 4, 16, 32, 3  # widths that a grouped product in bfloat16 takes,
ODD_H = 12  # and one that it does not
TOY_CASES = ((20, H, F.relu, "preserving", True), (7, ODD_H, F.gelu, "paper", False))
CASES = (  # tokens, width, activation, combine, padding
    (63, H, F.relu, "preserving", True),
    (63, H, F.gelu, "paper", False),
    (40, ODD_H, F.relu, "preserving", True),
    (3, H, F.relu, "paper", False),
    (0, H, F.relu, "preserving", False),
)


def checks(setting: Setting) -> Iterator[Check]:
    for dtype, kind in product(DTYPES, KINDS):
        yield Check(f"{kind} gate, {short(dtype)}", partial(layer_is_right, setting, kind, dtype))


def layer_is_right(setting: Setting, kind: str, dtype: torch.dtype) -> list[Row]:
    """Outputs and every gradient, in training and evaluation, of several sizes and activations."""
    cases = TOY_CASES if setting.toy else CASES
    worst = 0.0
    for (tokens, width, activation, combine, padding), training in product(cases, (True, False)):
        torch.manual_seed(SEED)
        layer = MoELayer(build_gate(kind, N, width, TASKS), ExpertBank(N, width, INNER, activation=activation), combine)
        with torch.no_grad():
            layer.gate.weight.normal_(std=0.3)
            if layer.blend is not None:
                layer.blend.fill_(0.4)
            if activation is F.relu and dtype != torch.float32:
                # One unit on, the next off: an input that rounding takes beyond 0 changes a gradient by all of it.
                layer.experts.fc1_bias.copy_(4 * (-1.0) ** torch.arange(INNER).expand(N, INNER))
        layer = layer.to(dtype).train(training)
        inputs = [torch.randn(tokens, width).to(dtype) for _ in range(2)]
        mask = torch.arange(tokens) % 7 == 6 if padding else None
        ids = torch.arange(tokens) % TASKS
        there = [None if tensor is None else tensor.to(setting.device) for tensor in (*inputs, mask, ids)]
        fast_layer = copy.deepcopy(layer).to(setting.device)
        fast = results(fast_layer, fast_layer, there)
        exact, in_float = layer.float(), [tensor.float() for tensor in inputs]
        with device_kind_everywhere(device_kind(there[0])):
            slow = results(lambda *args, exact=exact: slow_forward(exact, *args), exact, [*in_float, mask, ids])
        for name, right in slow.items():
            what = f"{name} of {tokens} tokens of {width}, training={training}, {combine}"
            worst = max(worst, difference(what, fast[name], right.to(dtype), dtype, smallest_scale(name, tokens)))
    return [passed(f"{kind} gate, {short(dtype)}", f"largest difference {worst:.1e} of the largest value")]


def smallest_scale(name: str, tokens: int) -> float:
    """What a gradient's largest value counts as at least."""
    # The gradient of a single number is a sum whose terms cancel: what is rounded grows with their number.
    return max(tokens, 1) ** 0.5 if name == "blend" else 1e-3


def results(forward: Callable[..., Tensor], layer: MoELayer, arguments: list[Tensor | None]) -> dict[str, Tensor]:
    """The output, and the gradients of both inputs and all parameters under a fixed loss."""
    hidden, branch, mask, ids = arguments
    assert hidden is not None and branch is not None
    leaves = [hidden.clone().requires_grad_(), branch.clone().requires_grad_()]
    output = forward(*leaves, mask, ids)
    weight = torch.arange(output.numel()).view_as(output).sin().to(output)
    names, wanted = zip(*layer.named_parameters(), strict=True)
    gradients = torch.autograd.grad(
        (output * weight).sum(), [*leaves, *wanted], allow_unused=True, materialize_grads=True
    )
    return {"output": output.detach(), **dict(zip(["hidden", "branch", *names], gradients, strict=True))}


def difference(what: str, found: Tensor, right: Tensor, dtype: torch.dtype, smallest: float = 1e-3) -> float:
    """The largest difference over the largest value.

    Raises:
        AssertionError: it is more than rounding, or type or shape differ.
    """
    assert found.dtype == right.dtype and found.shape == right.shape, f"{what}: {found.dtype} {tuple(found.shape)}"
    if not right.numel():
        return 0.0
    scale = max(float(right.abs().max()), smallest)
    apart = float((found.cpu().double() - right.double()).abs().max()) / scale
    assert apart <= TOLERANCE[dtype], f"{what} differs by {apart:.1e} of the largest value"
    return apart
