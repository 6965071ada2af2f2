"""Part `assignment`: balanced assignment on the card: its time as a share of the layer's, its gap, and no waiting."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import median

import torch
from assignment_scores import gap, random_scores
from layer_systems import own_systems
from timing import Floor, interleaved
from torch import Tensor

from fairseq_mtmoe.moe import priced_assignment
from gpu_check.device import free, no_waits
from gpu_check.layer import sizes_of
from gpu_check.rows import Check, Row, Setting, figure, measured, passed

KINDS = ("isotropic", "skewed")
NUM_EXPERTS, GAP_TOKENS = 64, 4096  # the optimum, which a gap is measured against, is a CPU's
SHARE_FLOOR, GAP_FLOOR = Floor(0.03), Floor(1e-3)
LAYER = "ours, BASE gate"
BATCHES, REPETITIONS, WARMUPS = 3, 15, 3


def checks(setting: Setting) -> Iterator[Check]:
    yield Check("time", partial(times, setting))
    for kind in KINDS:
        yield Check(f"gap, {kind} scores", partial(gaps, setting, kind))
    yield Check("exact", partial(exact, setting))


class Turns:
    """Assigns the next of several score matrices with each call, from the prices of the one before if it may."""

    def __init__(self, scores: list[Tensor], resumes: bool) -> None:
        self.scores, self.resumes = scores, resumes
        self.price_N = priced_assignment(scores[-1]).price_N if resumes else None
        self._turn = 0

    def __call__(self) -> Tensor:
        scores_TN = self.scores[self._turn % len(self.scores)]
        self._turn += 1
        return priced_assignment(scores_TN, self.price_N).expert_T


def times(setting: Setting) -> list[Row]:
    """Milliseconds of both kinds of scores, from nothing and from running prices, and their share of a layer's."""
    sizes = sizes_of(setting)
    num_experts = 4 if setting.toy else NUM_EXPERTS
    torch.manual_seed(1)
    layer = own_systems(num_experts, sizes, sizes.inputs(1))[LAYER]
    works: dict[str, Turns] = {}
    for kind in KINDS:
        scores = [random_scores(kind, sizes.tokens, num_experts).to(setting.device) for _ in range(BATCHES)]
        for resumes in (False, True):
            works[f"{kind} scores, {'from running prices' if resumes else 'from nothing'}"] = Turns(scores, resumes)
    for work in works.values():
        work()  # the first call of a library may wait
    with no_waits(setting.device):
        for work in works.values():
            work()
    all_works = {LAYER: layer.step, **works}
    repetitions, warmups = (2, 1) if setting.toy else (REPETITIONS, WARMUPS)
    prepare = {LAYER: layer.prepare}
    seconds = interleaved(all_works, repetitions, warmups, setting.device, prepare, head_start=True)
    alone = interleaved(works, repetitions, 1, setting.device)
    whole, rows = median(seconds[LAYER]), []
    for name in works:
        own, size = median(seconds[name]), f"{sizes.tokens:,} × {num_experts}"
        note = f"{1000 * median(alone[name]):.3g} ms alone, the host's queueing included"
        rows.append(measured(f"{size}, {name}", 1000 * own, "ms", note))
        note = f"of {1000 * whole:.3g} ms, a forward and backward pass of the layer"
        rows.append(figure(setting, f"{size}, {name}: share of the layer's time", own / whole, SHARE_FLOOR, note))
    del layer, works, all_works, prepare
    free(setting)
    return rows


def gaps(setting: Setting, kind: str) -> list[Row]:
    """How far from the optimum the card's assignment is; that its shares are equal is asserted."""
    num_tokens, num_experts = (128, 4) if setting.toy else (GAP_TOKENS, NUM_EXPERTS)
    torch.manual_seed(2)
    rows, worst = [], {False: 0.0, True: 0.0}
    for _ in range(BATCHES):
        scores_TN = random_scores(kind, num_tokens, num_experts)
        optimum = priced_assignment(scores_TN, exact=True)
        there = scores_TN.to(setting.device)
        for resumes in worst:
            start_N = optimum.price_N.to(setting.device) if resumes else None
            expert_T = priced_assignment(there, start_N).expert_T.cpu()
            worst[resumes] = max(worst[resumes], gap(expert_T, optimum.expert_T, scores_TN))
    for resumes, value in worst.items():
        what = f"{num_tokens:,} × {num_experts}, {kind} scores, {'from' if resumes else 'without'} prices: gap"
        rows.append(figure(setting, what, value, GAP_FLOOR, "of the sum of highest - lowest score"))
    return rows


def exact(setting: Setting) -> list[Row]:
    """With `exact=True` scores that are on the device come to the optimum too."""
    torch.manual_seed(3)
    scores_TN = random_scores("skewed", 256, 8)
    there = priced_assignment(scores_TN.to(setting.device), exact=True)
    assert there.expert_T.device.type == there.price_N.device.type == setting.device
    apart = gap(there.expert_T.cpu(), priced_assignment(scores_TN, exact=True).expert_T, scores_TN)
    assert abs(apart) < 1e-6, f"the gap to a CPU's optimum is {apart:.1e}"
    return [passed("exact assignment of scores on the device")]
