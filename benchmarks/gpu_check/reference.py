"""Part `reference`: every gate's layer on the device, in three types, against `moe/reference.py` on a CPU.

Needs torch alone. The tests of `tests/unit/moe` say more, and run on the GPU too where pytest is there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F

from fairseq_mtmoe.moe import ExpertBank, MoELayer, balance_loss, build_gate, remember_prices, running_prices
from fairseq_mtmoe.moe.device_kind import device_kind, device_kind_everywhere
from fairseq_mtmoe.moe.grouped_matmul.operators import grouped_linear
from fairseq_mtmoe.moe.reference import slow_forward
from gpu_check.device import DTYPES, short
from gpu_check.rows import Check, Row, Setting, passed

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
    for dtype in DTYPES:
        yield Check(f"grouped products, {short(dtype)}", partial(products_are_right, setting, dtype))
        if dtype != torch.float32:
            yield Check(f"autocast to {short(dtype)}", partial(autocast_is_near, setting, dtype))
    yield Check("prices, loads and balance loss", partial(counts_are_right, setting))


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


PRODUCTS = (((5, 0, 9, 2), 3, 16, None), ((5, 0, 9, 2), 3, 12, None), ((4, 5, 4, 4), 0, 16, 5))


def products_are_right(setting: Setting, dtype: torch.dtype) -> list[Row]:
    """Groups of any size, none too, rows of no group, and groups whose largest size is known."""
    rows = []
    for counts, rest, inputs, max_rows in PRODUCTS:
        torch.manual_seed(SEED)
        operands = [torch.randn(sum(counts) + rest, inputs), torch.randn(4, 24, inputs), torch.randn(4, 24)]
        operands = [tensor.to(dtype) for tensor in operands]
        offsets = torch.tensor(counts).cumsum(0)
        there = [tensor.clone().to(setting.device).requires_grad_() for tensor in operands]
        output = grouped_linear(there[0], offsets.to(setting.device), there[1], there[2], max_rows)
        output.square().sum().backward()
        exact = [tensor.double().requires_grad_() for tensor in operands]
        parts = exact[0].tensor_split(offsets)
        right = [part @ exact[1][group].t() + exact[2][group] for group, part in enumerate(parts[:-1])]
        right_output = torch.cat([*right, torch.zeros(rest, 24, dtype=torch.double)])
        right_output.square().sum().backward()
        pairs = {"output": (output.detach(), right_output.detach())}
        names = ("rows", "weights", "biases")
        pairs |= {name: (a.grad, b.grad) for name, a, b in zip(names, there, exact, strict=True)}
        what = f"groups of {counts}, {inputs} wide, {'unknown' if max_rows is None else max_rows} at most"
        worst = max(difference(f"{name} of {what}", a, b.to(dtype), dtype) for name, (a, b) in pairs.items())
        rows.append(passed(f"products of {what}, {short(dtype)}", f"largest difference {worst:.1e}"))
    return rows


def autocast_is_near(setting: Setting, dtype: torch.dtype) -> list[Row]:
    """A float32 layer under autocast gives about what it gives without."""
    for kind in KINDS:
        torch.manual_seed(SEED)
        # A smooth activation: rounding that takes an input of relu beyond 0 changes a gradient by all of it.
        layer = MoELayer(build_gate(kind, N, H, TASKS), ExpertBank(N, H, INNER, activation=F.gelu)).to(setting.device)
        x_TH, ids = torch.randn(40, H).to(setting.device), (torch.arange(40) % TASKS).to(setting.device)
        plain = results(layer, layer, [x_TH, x_TH, None, ids])
        with torch.autocast(setting.device, dtype):
            mixed = results(layer, layer, [x_TH, x_TH, None, ids])
        for name, right in plain.items():
            assert mixed[name].dtype == torch.float32, f"{name} is {mixed[name].dtype}"
            apart = float((mixed[name] - right).abs().max())
            scale = max(float(right.abs().max()), smallest_scale(name, len(x_TH)))
            assert apart <= 0.1 * scale, f"{kind} gate: {name} differs by {apart:.1e}"
    return [passed(f"autocast to {short(dtype)}, all gates")]


def counts_are_right(setting: Setting) -> list[Row]:
    """What training keeps of a batch is what a CPU keeps in this form."""
    torch.manual_seed(SEED)
    layers = [MoELayer(build_gate(kind, N, H, TASKS), ExpertBank(N, H, INNER)) for kind in ("base", "switch")]
    x_TH, ids = torch.randn(64, H), torch.arange(64) % TASKS
    found = {}
    for device in ("cpu", setting.device):
        there = [copy.deepcopy(layer).to(device) for layer in layers]
        kind = device_kind(x_TH.to(setting.device))
        with device_kind_everywhere(kind):
            for layer in there:
                layer.load.enabled = True
                layer(x_TH.to(device), x_TH.to(device), None, ids.to(device))
            remember_prices(running_prices(there[0]))
            loss = balance_loss(torch.nn.ModuleList(there))
        prices = running_prices(there[0])[0]
        there[0].load_state_dict(there[0].state_dict())  # as from a checkpoint that was read to the device
        assert prices.known
        mean = prices.mean
        found[device] = [mean, loss.detach(), *(layer.load.counts for layer in there)]
        assert all(tensor.device.type == device for tensor in found[device])
    for one, other in zip(found[setting.device], found["cpu"], strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-3, atol=1e-4)
    return [passed("running prices, loads and balance loss are a CPU's")]
