"""Part `layer`: one expert layer beside the dense layer of the same active size and the bare products of its shapes.

Times are the GPU's own, of a forward and a backward pass with all gradients, in turn, after warm-up, the host ahead of
the GPU as in the midst of a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from statistics import median

import torch
from layer_systems import BOUNDS, DENSE, GATES, Sizes, check_in_place, own_systems
from timing import Floor, interleaved

from gpu_check.rows import Check, Row, Setting, measured, ratio

EXPERTS = (16, 64)
FULL, TOY = Sizes(65_536, 1024, 4096), Sizes(64, 16, 32)
BATCHES = 2
DENSE_FLOOR = Floor(1.15)


def sizes_of(setting: Setting) -> Sizes:
    """Return the sizes of the layers that are timed here and in the part `assignment`."""
    return replace(TOY if setting.toy else FULL, device=setting.device)


def checks(setting: Setting) -> Iterator[Check]:
    for num_experts in (4, 8) if setting.toy else EXPERTS:
        yield Check(f"{num_experts} experts", partial(compared, setting, num_experts))


def compared(setting: Setting, num_experts: int) -> list[Row]:
    """Return times, and their ratios to the dense layer's; outputs are checked before."""
    torch.manual_seed(1)
    sizes = sizes_of(setting)
    systems = own_systems(num_experts, sizes, sizes.inputs(BATCHES))
    for name in GATES:
        check_in_place(systems[name])
    names = (DENSE, *BOUNDS, *GATES)
    steps = {name: systems[name].step for name in names}
    prepare = {name: systems[name].prepare for name in names}
    seconds = interleaved(steps, *setting.turns, setting.device, prepare, head_start=True)
    rows = [measured(f"{num_experts} experts, {name}", 1000 * median(seconds[name]), "ms") for name in names]
    for name in GATES:
        what = f"{num_experts} experts, {name}: time / dense"
        rows.append(ratio(setting, what, seconds[name], seconds[DENSE], DENSE_FLOOR))
    return rows
