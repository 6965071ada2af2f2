"""Balanced assignment against fairseq's libbase: time, and gap to the optimum.

    python benchmarks/bench_assignment.py --write

Scores are isotropic, or skewed: all tokens prefer the same few experts. The optimum is bounded by our prices
(duality). On a GPU `make gpu-check` times it.
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable
from functools import partial
from itertools import cycle, product
from statistics import median

import torch
from assignment_scores import gap, random_scores, upper_bound
from measure import Report, benchmark
from timing import Floor, Ratio, interleaved
from torch import Tensor

from fairseq_mtmoe.moe import priced_assignment
from fairseq_mtmoe.moe.assignment import kernels

Assign = Callable[[Tensor], Tensor]
KINDS = ("isotropic", "skewed")
BATCHES = 3  # score matrices of each kind and size
EARLIER = 8  # further matrices, whose mean prices the assignment may start from
LIMIT = 60  # seconds for libbase, which never ends on some scores
ROUNDING = 1e-9  # of a gap
COLUMNS = (
    "scores", "ours (ms)", "from prices / ours", "gap, ours (%)", "libbase (ms)", "ours / libbase", "gap, libbase (%)",
)  # fmt: skip
NOTE = (
    "Medians and quartiles; ratios are taken turn by turn. The gap to the optimum is the largest of "
    "three score matrices, in percent of the sum over tokens of highest - lowest score. Prices are "
    "the mean of those of eight other matrices."
)


@benchmark("assignment", "Balanced assignment", "4096 and 8192 tokens, 16 and 64 experts.")
def main(report: Report, small: bool, repetitions: int) -> None:
    """Time balanced assignments, and say how far from the optimum they are."""
    torch.manual_seed(1)
    compare_builds(report, repetitions)
    tokens, experts = ((4096, 8192), (16, 64)) if small else ((1024, 4096, 8192, 65_536), (8, 16, 64, 128))
    compare(report, tokens, experts, repetitions)


def compare_builds(report: Report, repetitions: int) -> None:
    """Time the compiled kernel's builds for other instruction sets beside the one that is taken."""
    if not kernels.BUILDS:
        report.text("Ours is the form in torch: there is no compiled kernel here.")
        return
    for num_experts in (16, 64):
        scores = [random_scores("isotropic", 4096, num_experts) for _ in range(BATCHES)]
        works = {}
        for name, build in kernels.BUILDS.items():
            works[name] = in_turn(scores, partial(kernels.assign, build=build))
        seconds = interleaved(works, repetitions)
        title = f"Builds of the kernel, 4096 × {num_experts}, isotropic scores"
        first = next(iter(seconds))
        report.speeds(title, seconds, first, [4096] * repetitions, "tokens", "Ours takes the first build.")


def compare(report: Report, tokens: tuple[int, ...], experts: tuple[int, ...], repetitions: int) -> None:
    """Add the table of all kinds and sizes, and its figures."""
    rows, ratios, starts, worse = [], [], [], 0
    for kind, num_experts, num_tokens in product(KINDS, experts, tokens):
        scores = [random_scores(kind, num_tokens, num_experts) for _ in range(BATCHES)]
        price_N = mean_price(kind, num_tokens, num_experts)
        works = {
            "ours": in_turn(scores, assigned),
            "from prices": in_turn(scores, partial(assigned, start_N=price_N)),
        }
        if libbase_ends(scores):
            works["libbase"] = in_turn(scores, libbase_assigned)
        seconds = interleaved(works, repetitions)
        name = f"{kind}, {num_tokens} × {num_experts}"
        report.raw(name, seconds)
        starts.append(Ratio.of(seconds["from prices"], seconds["ours"]))
        gaps = gaps_of(assigned, scores)
        theirs = [f"over {LIMIT} s", "–", "–"]
        if "libbase" in works:
            ratios.append(Ratio.of(seconds["ours"], seconds["libbase"]))
            their_gaps = gaps_of(libbase_assigned, scores)
            worse += sum(own > other + ROUNDING for own, other in zip(gaps, their_gaps, strict=True))
            theirs = [1000 * median(seconds["libbase"]), ratios[-1], 100 * max(their_gaps)]
        rows.append([name, 1000 * median(seconds["ours"]), starts[-1], 100 * max(gaps), *theirs])
    report.table("Against libbase", COLUMNS, rows, NOTE)
    saved = median(ratio.median for ratio in starts)
    report.figure("from prices: time / no start, median", saved, Floor(0.7))
    if ratios:
        medians = [ratio.median for ratio in ratios]
        report.figure("time / libbase, median over all scores", median(medians), Floor(0.1))
        report.figure("time / libbase, largest", max(medians), Floor(0.25))
        report.figure("score matrices on which libbase's gap is smaller", worse, Floor(0))


def in_turn(scores: list[Tensor], assign: Assign) -> Callable[[], object]:
    """Return a work that assigns the next one of the score matrices at each call."""
    matrices = cycle(scores)
    return lambda: assign(next(matrices))


def mean_price(kind: str, num_tokens: int, num_experts: int) -> Tensor:
    """Return the mean prices (N,) of earlier score matrices, as a gate remembers them."""
    prices = []
    for _ in range(EARLIER):
        prices.append(priced_assignment(random_scores(kind, num_tokens, num_experts)).price_N)
    return torch.stack(prices).mean(0)


def gaps_of(assign: Assign, scores: list[Tensor]) -> list[float]:
    """Return how far from the optimum an assignment of each score matrix is."""
    gaps = []
    for scores_TN in scores:
        optimum = upper_bound(scores_TN, priced_assignment(scores_TN).price_N)
        gaps.append(gap(assign(scores_TN), optimum, scores_TN))
    return gaps


def assigned(scores_TN: Tensor, start_N: Tensor | None = None) -> Tensor:
    return priced_assignment(scores_TN, start_N).expert_T


def libbase_assigned(scores_TN: Tensor) -> Tensor:
    """Return the expert of each token (T,), as fairseq's function assigns them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fairseq warns of what it imports.
        from fairseq import libbase
    num_tokens, num_experts = scores_TN.shape
    token_T = libbase.balanced_assignment(scores_TN)  # The tokens of one expert after the other.
    expert_T = torch.empty_like(token_T)
    expert_T[token_T] = torch.arange(num_tokens) // (num_tokens // num_experts)
    return expert_T


def libbase_ends(scores: list[Tensor], limit: float = LIMIT) -> bool:
    """Try libbase on score matrices in a process, which is ended after so many seconds."""
    process = multiprocessing.get_context("spawn").Process(target=gaps_of, args=(libbase_assigned, scores))
    process.start()
    process.join(limit)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode == 0


if __name__ == "__main__":
    main()
