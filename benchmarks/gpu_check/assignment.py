"""Part `assignment`: balanced assignment on the card: its time as a share of the layer's, its gap, and no waiting."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import median

import torch
from assignment_scores import gap, random_scores, upper_bound
from layer_systems import own_systems
from timing import Floor, interleaved

from fairseq_mtmoe.moe import priced_assignment
from fairseq_mtmoe.moe.assignment.triton_form import kernels_are_right
from fairseq_mtmoe.moe.device_kind import HAS_TRITON
from gpu_check.layer import sizes_of
from gpu_check.rows import Check, Row, Setting, Skipped, figure, measured, passed

KINDS = ("isotropic", "skewed")
NUM_EXPERTS, GAP_TOKENS = 64, 4096
SHARE_FLOOR, GAP_FLOOR = Floor(0.03), Floor(1e-3)
LAYER = "ours, BASE gate"


def checks(setting: Setting) -> Iterator[Check]:
    yield Check("Triton's kernels", partial(trial, setting))
    for kind in KINDS:
        yield Check(f"time, {kind} scores", partial(times, setting, kind))
        yield Check(f"gap, {kind} scores", partial(gaps, setting, kind))


def trial(setting: Setting) -> list[Row]:
    if setting.device == "cpu" or not HAS_TRITON:
        raise Skipped("there is no GPU with Triton")
    assert kernels_are_right(torch.device(setting.device)), "they disagree with the form in torch"
    return [passed("Triton's kernels agree with the form in torch")]


def times(setting: Setting, kind: str) -> list[Row]:
    """Milliseconds from running prices, and their share of a layer's."""
    sizes, num_experts = sizes_of(setting), 4 if setting.toy else NUM_EXPERTS
    torch.manual_seed(1)
    layer = own_systems(num_experts, sizes, sizes.inputs(1))[LAYER]
    scores_TN = random_scores(kind, sizes.tokens, num_experts).to(setting.device)
    work = partial(priced_assignment, scores_TN, priced_assignment(scores_TN).price_N)
    work()  # the first call of a library may wait
    if setting.device != "cpu":
        torch.cuda.set_sync_debug_mode("error")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    works = {LAYER: layer.step, "assignment": work}
    seconds = interleaved(works, *setting.turns, setting.device, {LAYER: layer.prepare}, head_start=True)
    own, whole = median(seconds["assignment"]), median(seconds[LAYER])
    size = f"{sizes.tokens:,} × {num_experts}, {kind} scores"
    note = f"of {1000 * whole:.3g} ms, a forward and backward pass of the layer"
    return [
        measured(size, 1000 * own, "ms"),
        figure(setting, f"{size}: share of the layer's time", own / whole, SHARE_FLOOR, note),
    ]


def gaps(setting: Setting, kind: str) -> list[Row]:
    """The distance to the optimum, with and without prices; equal shares are asserted."""
    num_tokens, num_experts = (128, 4) if setting.toy else (GAP_TOKENS, NUM_EXPERTS)
    torch.manual_seed(2)
    scores_TN = random_scores(kind, num_tokens, num_experts)
    price_N = priced_assignment(scores_TN).price_N
    bound = upper_bound(scores_TN, price_N)
    there, rows = scores_TN.to(setting.device), []
    for name, start_N in (("without prices", None), ("from prices", price_N.to(setting.device))):
        expert_T = priced_assignment(there, start_N).expert_T.cpu()
        what = f"{num_tokens:,} × {num_experts}, {kind} scores, {name}: gap"
        note = "of the sum over tokens of highest - lowest score"
        rows.append(figure(setting, what, gap(expert_T, bound, scores_TN), GAP_FLOOR, note))
    return rows
