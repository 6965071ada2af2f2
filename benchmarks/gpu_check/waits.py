"""Part `waits`: expert layers in torch's mode in which an operation that the host waits for is an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from fairseq_mtmoe.moe import ExpertBank, MoELayer, build_gate
from fairseq_mtmoe.moe.device_kind import DeviceKind, device_kind, has_triton
from gpu_check.device import DTYPES, count_waits, no_waits, short
from gpu_check.rows import Check, Row, Setting, measured, passed

N, TASKS = 8, 3


def checks(setting: Setting) -> Iterator[Check]:
    """Nothing is waited for where docs/concepts/communication.md promises it; elsewhere waits are counted."""
    for kind, dtype, training in product(("base", "switch", "task"), DTYPES, (True, False)):
        name = f"{kind} gate, {short(dtype)}, {'training' if training else 'evaluation'}"
        yield Check(name, partial(layer_waits, setting, name, kind, dtype, training))


def layer_waits(setting: Setting, name: str, kind: str, dtype: torch.dtype, training: bool) -> list[Row]:
    nothing = waits_for_nothing(setting, kind, dtype, training)
    return waits_of(setting, name, passes(setting, kind, dtype, training), nothing, "one layer, forward and backward")


def waits_for_nothing(setting: Setting, kind: str, dtype: torch.dtype, training: bool) -> bool:
    """Whether it is promised of an expert layer with this gate."""
    here = torch.empty(0, device=setting.device)
    in_one = dtype == torch.bfloat16 and device_kind(here) is DeviceKind.GPU_WITH_GROUPED_MM
    return in_one or has_triton(here) or (kind == "base" and training)


def waits_of(setting: Setting, name: str, work: Callable[[], object], nothing: bool, note: str) -> list[Row]:
    """Count the waits of a work after one that warms up; where there must be none, one is an error."""
    work()
    if not nothing:
        return [measured(name, count_waits(setting.device, work), "waits", note)]
    with no_waits(setting.device):
        work()
    return [passed(name, "waits for nothing")]


def passes(setting: Setting, kind: str, dtype: torch.dtype, training: bool) -> Callable[[], object]:
    """A pass of a batch with padding through a layer that exists."""
    return batch_of(setting, kind, dtype, training).work


@dataclass
class Batch:
    """A layer and a batch with padding, both on the device."""

    layer: MoELayer
    x: Tensor
    mask: Tensor
    ids: Tensor

    def work(self) -> Tensor:
        """Forward, and in training backward."""
        output: Tensor = self.layer(self.x, self.x, self.mask, self.ids)
        if self.layer.training:
            output.sum().backward()
        return output

    def forget_gradients(self) -> None:
        self.layer.zero_grad(set_to_none=True)
        self.x.grad = None


def batch_of(setting: Setting, kind: str, dtype: torch.dtype, training: bool, **settings: Any) -> Batch:
    """210 tokens, of which every seventh is padding, and a new layer of `N` experts; `settings` are its gate's."""
    hidden = 64 if setting.toy else 512
    layer = MoELayer(build_gate(kind, N, hidden, TASKS, **settings), ExpertBank(N, hidden, 2 * hidden))
    layer = layer.to(setting.device, dtype).train(training)
    numbers = torch.arange(210).view(30, 7)
    x = torch.randn(30, 7, hidden).to(setting.device, dtype).requires_grad_(training)
    return Batch(layer, x, (numbers % 7 == 6).to(setting.device), (numbers % TASKS).to(setting.device))
