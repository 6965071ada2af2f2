"""Balanced assignment on a GPU by Triton kernels.

This is the algorithm of `torch_form.py` in 20 launches. Prices take the same six steps from the
highest to the lowest temperature, one launch each. Then come rounds in which surplus tokens move
to the experts where they lose least, three launches each. At the end experts with room take the
rest. Ranks are counted (T² comparisons on the whole GPU), not sorted.
"""

from __future__ import annotations

import logging
from functools import cache

import torch
from torch import Tensor

from fairseq_mtmoe.moe.assignment.torch_form import (
    ROUNDS,
    TEMPERATURES,
    Assignment,
    torch_assignment,
)
from fairseq_mtmoe.moe.device_kind import has_triton

logger = logging.getLogger(__name__)

MOST_EXPERTS = 64  # a program keeps their square in registers: with 128 the compiler takes minutes
MOST_TOKENS = 2**15  # above it sorting is cheaper than counting
MOST_PROGRAMS = 32  # each program sums the demand of all
TILE = 64  # tokens of a program
CHUNK = 128  # tokens that a program compares with its own at a time
WARPS = 8
TOLERANCE = 0.02  # of the trial's prices; errors of a wrong kernel are larger


def assignment_on_gpu(
    scores_TN: Tensor, padding_T: Tensor | None = None, start_N: Tensor | None = None
) -> Assignment:
    """Compute `torch_assignment` with the fewest launches."""
    num_tokens, num_experts = scores_TN.shape
    is_small = num_tokens <= MOST_TOKENS and num_experts <= MOST_EXPERTS
    if is_small and has_triton(scores_TN) and kernels_are_right(scores_TN.device):
        return triton_assignment(scores_TN, padding_T, start_N)
    return torch_assignment(scores_TN, padding_T, start_N)


def triton_assignment(
    scores_TN: Tensor, padding_T: Tensor | None = None, start_N: Tensor | None = None
) -> Assignment:
    """Compute `torch_assignment` by Triton kernels.

    Without a start, prices begin at 0.
    """
    # On first use, because Triton may be missing.
    from fairseq_mtmoe.moe.assignment import triton_kernels as run

    num_tokens, num_experts = scores_TN.shape
    assert num_tokens >= 1 and num_experts >= 2
    new = scores_TN.new_empty
    scores_TN = scores_TN.contiguous()
    padding = scores_TN if padding_T is None else padding_T.contiguous().view(torch.uint8)
    experts = 1 << (max(num_experts, 16) - 1).bit_length()  # the next power of 2
    programs = min(-(-num_tokens // TILE), MOST_PROGRAMS)
    tiles = -(-num_tokens // (TILE * programs))
    tile = {"TOKENS": TILE, "EXPERTS": experts, "num_warps": WARPS}
    count = {**tile, "CHUNK": CHUNK}
    parts = {**tile, "PROGRAMS": MOST_PROGRAMS}

    below_TN = new(num_tokens, num_experts, dtype=torch.float32)
    part = new(4, programs, dtype=torch.float32)
    both = new(2, programs, experts, experts, dtype=torch.float32)
    price = new(len(TEMPERATURES) + 2, experts, dtype=torch.float32)
    best_T, loss_T = new(2, num_tokens, dtype=torch.float32)
    chosen_T, target_T, leaves_T = new(3, num_tokens, dtype=torch.int32)
    shares = new(2, experts, dtype=torch.int32)
    expert_T = new(num_tokens, dtype=torch.long)

    size = (num_tokens, num_experts)
    by_part = (programs,)
    by_tile = (-(-num_tokens // TILE),)
    with torch.cuda.device_of(scores_TN):  # type: ignore[no-untyped-call]
        run.extremes[by_part](scores_TN, part, *size, tiles, **tile)
        arguments = (scores_TN, padding, below_TN, part, *size, tiles)
        run.spreads[by_part](*arguments, HAS_PADDING=padding_T is not None, **parts)
        start = part if start_N is None else start_N.contiguous()
        for number in range(len(TEMPERATURES) + 1):
            run.step[by_part](
                below_TN, padding, part, start, both[number % 2 - 1], both[number % 2],
                price[max(number - 1, 0)], price[number], best_T, chosen_T, *size, tiles,
                TEMPERATURES[max(number - 1, 0)], TEMPERATURES[min(number, len(TEMPERATURES) - 1)],
                IS_FIRST=number == 0, IS_LAST=number == len(TEMPERATURES),
                HAS_START=start_N is not None, HAS_PADDING=padding_T is not None, **parts,
            )  # fmt: skip
        price_N = price[-2]
        out_N = price[-1, :num_experts]
        for _ in range(ROUNDS):
            run.wish[by_tile](
                below_TN, part, price_N, best_T, chosen_T, target_T, loss_T, shares, *size,
                programs, PROGRAMS=MOST_PROGRAMS, **count,
            )  # fmt: skip
            run.leave[by_tile](chosen_T, loss_T, leaves_T, shares, num_tokens, **count)
            run.arrive[by_tile](chosen_T, target_T, loss_T, leaves_T, shares, num_tokens, **count)
        run.find_left[by_tile](chosen_T, leaves_T, shares, *size, **count)
        run.fill[by_tile](chosen_T, leaves_T, shares, expert_T, *size, **count)
    return Assignment(expert_T, out_N)


@cache
def kernels_are_right(device: torch.device) -> bool:
    """Return whether the kernels agree with `torch_assignment`: a trial per device."""
    arguments = _example(device)
    try:
        assignment = triton_assignment(*arguments)
    except Exception:  # no compiler, another version's interface, …
        logger.warning(
            "Triton's kernels cannot be used: torch operations replace them.", exc_info=True
        )
        return False
    expected = torch_assignment(*arguments)
    has_prices = torch.allclose(
        assignment.price_N, expected.price_N, rtol=TOLERANCE, atol=TOLERANCE
    )
    is_right = has_prices and torch.equal(assignment.expert_T, expected.expert_T)
    if not is_right:
        logger.warning("Triton's kernels are wrong: torch operations replace them.")
    return is_right


def _example(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores, padding and prices for which rounding changes no expert."""
    token_T = torch.arange(90, device=device)
    scores_TN = torch.linspace(-1, 1, 90 * 3, device=device).frac().view(90, 3) / 9
    scores_TN[token_T, token_T % 3] += 1 + (token_T % 5 == 0) * 0.5
    return scores_TN, token_T % 10 == 9, torch.linspace(-0.1, 0.1, 3, device=device)
