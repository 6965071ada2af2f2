"""The Triton kernels of `triton_form.py`; torch's builds for CUDA include Triton.

Every program computes the common values (sums of parts, prices, counts) itself, in the same
order, so that the same scores give the same result. Vectors over experts are padded to EXPERTS, a
power of two.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

INFINITE = tl.constexpr(float("inf"))
TINY = tl.constexpr(1.2e-38)
# Steps of conjugate gradients for Newton's system; more change nothing.
CONJUGATE_STEPS = tl.constexpr(8)
# As in torch_form.py.
RIDGE = tl.constexpr(0.01)
LEVEL = tl.constexpr(100.0)
SHUNNED = tl.constexpr(1e-3)
LONGEST_STEP = tl.constexpr(4.0)


@triton.jit
@no_type_check
def extremes(
    scores, parts, num_tokens, num_experts, tiles, TOKENS: tl.constexpr, EXPERTS: tl.constexpr
):
    """Write the lowest and highest finite score of a program's tokens to `parts`."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    expert = tl.arange(0, EXPERTS)
    low, high = tl.full((TOKENS,), INFINITE, tl.float32), tl.full((TOKENS,), -INFINITE, tl.float32)
    for tile in range(tiles):
        token = (program * tiles + tile) * TOKENS + tl.arange(0, TOKENS)
        is_score = (token < num_tokens)[:, None] & (expert < num_experts)[None, :]
        place = scores + token[:, None] * num_experts + expert[None, :]
        value = tl.load(place, mask=is_score, other=INFINITE).to(tl.float32)
        is_finite = tl.abs(value) < INFINITE
        low = tl.minimum(low, tl.min(tl.where(is_finite, value, INFINITE), 1))
        high = tl.maximum(high, tl.max(tl.where(is_finite, value, -INFINITE), 1))
    tl.store(parts + program, tl.min(low, 0))
    tl.store(parts + programs + program, tl.max(high, 0))


@triton.jit
@no_type_check
def _range(parts, programs, PROGRAMS: tl.constexpr):
    """Return the lowest and the highest finite score, and the first scale."""
    part = tl.arange(0, PROGRAMS)
    low = tl.min(tl.load(parts + part, mask=part < programs, other=INFINITE), 0)
    high = tl.max(tl.load(parts + programs + part, mask=part < programs, other=-INFINITE), 0)
    size = tl.maximum(tl.abs(low), tl.abs(high))
    return low, high, tl.where((size > 0) & (size < INFINITE), size, 1.0)


@triton.jit
@no_type_check
def _spread(parts, programs, PROGRAMS: tl.constexpr):
    """Return the number of tokens without padding, at least 1, and the second scale."""
    part = tl.arange(0, PROGRAMS)
    lowest = tl.sum(tl.load(parts + 2 * programs + part, mask=part < programs, other=0.0), 0)
    numbers = tl.load(parts + 3 * programs + part, mask=part < programs, other=0.0)
    number = tl.maximum(tl.sum(numbers, 0), 1.0)
    return number, tl.where(lowest / number < -TINY, -lowest / number, 1.0)


@triton.jit
@no_type_check
def spreads(
    scores, padding, below, parts, num_tokens, num_experts, tiles,
    HAS_PADDING: tl.constexpr, TOKENS: tl.constexpr, EXPERTS: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Write finite scores minus the token's highest, (T, N), and parts of the spread."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    expert = tl.arange(0, EXPERTS)
    low, high, size = _range(parts, programs, PROGRAMS)
    lowest, number = tl.zeros((TOKENS,), tl.float32), tl.zeros((TOKENS,), tl.float32)
    for tile in range(tiles):
        token = (program * tiles + tile) * TOKENS + tl.arange(0, TOKENS)
        is_score = (token < num_tokens)[:, None] & (expert < num_experts)[None, :]
        place = token[:, None] * num_experts + expert[None, :]
        value = tl.load(scores + place, mask=is_score, other=0.0).to(tl.float32)
        instead = tl.where(value == INFINITE, high, low)
        instead = tl.where(tl.abs(instead) < INFINITE, instead, 0.0)
        value = tl.where(tl.abs(value) < INFINITE, value, instead) / size
        value -= tl.max(tl.where(is_score, value, -INFINITE), 1)[:, None]
        tl.store(below + place, value, mask=is_score)
        real = _real(padding, token, num_tokens, HAS_PADDING)
        lowest += tl.where(real > 0, tl.min(tl.where(is_score, value, 0.0), 1), 0.0)
        number += real
    tl.store(parts + 2 * programs + program, tl.sum(lowest, 0))
    tl.store(parts + 3 * programs + program, tl.sum(number, 0))


@triton.jit
@no_type_check
def _real(padding, token, num_tokens, HAS_PADDING: tl.constexpr):
    """Return 1 for tokens that are not padding, else 0."""
    real = (token < num_tokens).to(tl.float32)
    if HAS_PADDING:
        real = tl.where(tl.load(padding + token, mask=token < num_tokens, other=1) == 0, real, 0.0)
    return real


@triton.jit
@no_type_check
def _newton_step(both, num_experts, EXPERTS: tl.constexpr):
    """Return Newton's step in temperatures, from DᵀD in shares, as torch_form.py's.

    The system is multiplied by the demand, which makes it symmetric, and solved by conjugate
    gradients.
    """
    expert = tl.arange(0, EXPERTS)
    is_expert = expert < num_experts
    demand = tl.where(is_expert, tl.maximum(tl.sum(both, 0), SHUNNED), 0.0)
    diagonal = tl.where(is_expert, demand * (1 + RIDGE), 1.0)
    level = (RIDGE * LEVEL / num_experts) * demand[:, None] * demand[None, :]
    slope = tl.where(expert[:, None] == expert[None, :], diagonal[:, None], 0.0) - both + level
    scale = 1 / tl.sum(tl.where(expert[:, None] == expert[None, :], slope, 0.0), 1)
    left = tl.where(is_expert, demand * tl.log(tl.where(is_expert, demand, 1.0)), 0.0)
    step = tl.zeros((EXPERTS,), tl.float32)
    direction = left * scale
    size = tl.sum(left * direction, 0)
    for _ in range(CONJUGATE_STEPS):
        image = tl.sum(slope * direction[None, :], 1)
        length = size / tl.maximum(tl.sum(direction * image, 0), TINY)
        step += length * direction
        left -= length * image
        before, size = size, tl.sum(left * left * scale, 0)
        direction = left * scale + size / tl.maximum(before, TINY) * direction
    return tl.minimum(tl.maximum(step, -LONGEST_STEP), LONGEST_STEP)


@triton.jit
@no_type_check
def _start_price(start, size, spread, num_experts, HAS_START: tl.constexpr, EXPERTS: tl.constexpr):
    """Return the prices of an earlier batch in units of the scaled scores, or 0."""
    expert = tl.arange(0, EXPERTS)
    is_expert = expert < num_experts
    price = tl.zeros((EXPERTS,), tl.float32)
    if HAS_START:
        price = tl.load(start + expert, mask=is_expert, other=0.0) / size / spread
        price = tl.where(tl.abs(price) < INFINITE, price, 0.0)
        price = tl.where(is_expert, price - tl.sum(price, 0) / num_experts, 0.0)
        # Steps do not converge from prices further away than a token's scores differ.
        price = tl.minimum(tl.maximum(price, -1.0), 1.0)
    return price


@triton.jit
@no_type_check
def step(
    below, padding, parts, start, both_before, both_after, price_before, price_after, best, chosen,
    num_tokens, num_experts, tiles, temperature_before, temperature,
    IS_FIRST: tl.constexpr, IS_LAST: tl.constexpr, HAS_START: tl.constexpr,
    HAS_PADDING: tl.constexpr, TOKENS: tl.constexpr, EXPERTS: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Move the prices by the last step's demand, and write this program's demand.

    The first step starts with the prices of an earlier batch, or 0. The last step writes each
    token's choice and its value, and after the prices also prices in units of the scores.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    expert = tl.arange(0, EXPERTS)
    is_expert = expert < num_experts
    number, spread = _spread(parts, programs, PROGRAMS)
    _, _, size = _range(parts, programs, PROGRAMS)

    square = expert[:, None] * EXPERTS + expert[None, :]
    if IS_FIRST:
        price = _start_price(start, size, spread, num_experts, HAS_START, EXPERTS)
    else:
        both = tl.zeros((EXPERTS, EXPERTS), tl.float32)
        for other in range(programs):
            both += tl.load(both_before + other * EXPERTS * EXPERTS + square)
        price = tl.load(price_before + expert)
        in_shares = both * (num_experts / number)
        price += temperature_before * _newton_step(in_shares, num_experts, EXPERTS)
    if program == 0:
        tl.store(price_after + expert, price)
        if IS_LAST:
            price_64 = tl.where(is_expert, price, 0.0).to(tl.float64)
            price_64 = price_64 - tl.sum(price_64, 0) / num_experts
            price_64 = price_64 * spread.to(tl.float64) * size.to(tl.float64)
            price_64 = tl.minimum(tl.maximum(price_64, -3.4028234e38), 3.4028234e38)
            tl.store(price_after + EXPERTS + expert, price_64.to(tl.float32), mask=is_expert)

    both = tl.zeros((EXPERTS, EXPERTS), tl.float32)
    for tile in range(tiles):
        token = (program * tiles + tile) * TOKENS + tl.arange(0, TOKENS)
        is_token = token < num_tokens
        is_score = is_token[:, None] & is_expert[None, :]
        place = below + token[:, None] * num_experts + expert[None, :]
        value = tl.load(place, mask=is_score, other=0.0) / spread - price[None, :]
        value = tl.where(is_expert[None, :], value, -INFINITE)
        highest = tl.max(value, 1)
        real = _real(padding, token, num_tokens, HAS_PADDING)
        if IS_LAST:
            tl.store(best + token, highest, mask=is_token)
            mine = tl.where(real > 0, tl.argmax(value, 1), num_experts)
            tl.store(chosen + token, mine, mask=is_token)
        else:
            demand = tl.exp((value - highest[:, None]) / temperature)
            demand = demand / tl.sum(demand, 1)[:, None]
            both += tl.dot(tl.trans(demand), demand * real[:, None], input_precision="ieee")
    if not IS_LAST:
        tl.store(both_after + program * EXPERTS * EXPERTS + square, both)


@triton.jit
@no_type_check
def _counts(chosen, num_tokens, CHUNK: tl.constexpr, EXPERTS: tl.constexpr):
    """Return each expert's number of tokens; padding is expert N."""
    expert = tl.arange(0, EXPERTS)
    counts = tl.zeros((EXPERTS,), tl.int32)
    for start in range(0, num_tokens, CHUNK):
        token = start + tl.arange(0, CHUNK)
        other = tl.load(chosen + token, mask=token < num_tokens, other=-1)
        counts += tl.sum((other[:, None] == expert[None, :]).to(tl.int32), 0)
    return counts


@triton.jit
@no_type_check
def _of(table, index, EXPERTS: tl.constexpr):
    """Return a vector's values at these experts, 0 for unknown ones."""
    expert = tl.arange(0, EXPERTS)
    return tl.sum(tl.where(index[:, None] == expert[None, :], table[None, :], 0), 1)


@triton.jit
@no_type_check
def wish(
    below, parts, price, best, chosen, target, loss, shares, num_tokens, num_experts, programs,
    TOKENS: tl.constexpr, CHUNK: tl.constexpr, EXPERTS: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Write tokens' best experts with room, losses there, and the experts' surplus."""
    expert = tl.arange(0, EXPERTS)
    is_expert = expert < num_experts
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    is_token = token < num_tokens
    counts = tl.where(is_expert, _counts(chosen, num_tokens, CHUNK, EXPERTS), 0)
    number = tl.sum(counts, 0)
    prices = tl.where(is_expert, tl.load(price + expert), -INFINITE)
    is_dearer = (prices[None, :] > prices[:, None]) | (
        (prices[None, :] == prices[:, None]) & (expert[None, :] < expert[:, None])
    )
    gets_more = tl.sum(is_dearer.to(tl.int32), 1) < number % num_experts
    share = number // num_experts + gets_more.to(tl.int32)
    share = tl.where(is_expert, share, 0)
    surplus = counts - share
    if tl.program_id(0) == 0:
        tl.store(shares + expert, share)
        tl.store(shares + EXPERTS + expert, surplus)

    _, spread = _spread(parts, programs, PROGRAMS)
    is_score = is_token[:, None] & is_expert[None, :]
    place = below + token[:, None] * num_experts + expert[None, :]
    value = tl.load(place, mask=is_score, other=0.0) / spread - prices[None, :]
    value = tl.where((is_expert & (surplus < 0))[None, :], value, -INFINITE)
    tl.store(target + token, tl.argmax(value, 1), mask=is_token)
    highest = tl.load(best + token, mask=is_token, other=0.0)
    tl.store(loss + token, highest - tl.max(value, 1), mask=is_token)


@triton.jit
@no_type_check
def _rank(
    groups, loss, leaves, token, mine, cost, num_tokens,
    IN_LEAVING: tl.constexpr, TOKENS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Return how many tokens of the group are cheaper, or as cheap and earlier.

    IN_LEAVING: whether only leaving tokens count.
    """
    rank = tl.zeros((TOKENS,), tl.int32)
    for start in range(0, num_tokens, CHUNK):
        other = start + tl.arange(0, CHUNK)
        theirs = tl.load(groups + other, mask=other < num_tokens, other=-2)
        other_cost = tl.load(loss + other, mask=other < num_tokens, other=0.0)
        is_equal = (other_cost[None, :] == cost[:, None]) & (other[None, :] < token[:, None])
        is_before = (other_cost[None, :] < cost[:, None]) | is_equal
        is_before = is_before & (theirs[None, :] == mine[:, None])
        if IN_LEAVING:
            is_leaving = tl.load(leaves + other, mask=other < num_tokens, other=0) != 0
            is_before = is_before & is_leaving[None, :]
        rank += tl.sum(is_before.to(tl.int32), 1)
    return rank


@triton.jit
@no_type_check
def leave(
    chosen, loss, leaves, shares, num_tokens,
    TOKENS: tl.constexpr, CHUNK: tl.constexpr, EXPERTS: tl.constexpr,
):  # fmt: skip
    """Write which tokens leave: full experts release the cheapest."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    is_token = token < num_tokens
    mine = tl.load(chosen + token, mask=is_token, other=-1)
    cost = tl.load(loss + token, mask=is_token, other=0.0)
    rank = _rank(chosen, loss, leaves, token, mine, cost, num_tokens, False, TOKENS, CHUNK)
    surplus = tl.load(shares + EXPERTS + tl.arange(0, EXPERTS))
    tl.store(leaves + token, (rank < _of(surplus, mine, EXPERTS)).to(tl.int32), mask=is_token)


@triton.jit
@no_type_check
def arrive(
    chosen, target, loss, leaves, shares, num_tokens,
    TOKENS: tl.constexpr, CHUNK: tl.constexpr, EXPERTS: tl.constexpr,
):  # fmt: skip
    """Move leaving tokens: experts with room take the cheapest."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    is_token = token < num_tokens
    mine = tl.load(target + token, mask=is_token, other=-1)
    cost = tl.load(loss + token, mask=is_token, other=0.0)
    rank = _rank(target, loss, leaves, token, mine, cost, num_tokens, True, TOKENS, CHUNK)
    surplus = tl.load(shares + EXPERTS + tl.arange(0, EXPERTS))
    is_leaving = tl.load(leaves + token, mask=is_token, other=0) != 0
    arrives = is_leaving & (rank < -_of(surplus, mine, EXPERTS))
    tl.store(chosen + token, mine, mask=is_token & arrives)


@triton.jit
@no_type_check
def find_left(
    chosen, leaves, shares, num_tokens, num_experts,
    TOKENS: tl.constexpr, CHUNK: tl.constexpr, EXPERTS: tl.constexpr,
):  # fmt: skip
    """Write which tokens are still surplus at their expert: the last ones."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    is_token = token < num_tokens
    mine = tl.load(chosen + token, mask=is_token, other=-1)
    rank = tl.zeros((TOKENS,), tl.int32)
    for start in range(0, num_tokens, CHUNK):
        other = start + tl.arange(0, CHUNK)
        theirs = tl.load(chosen + other, mask=other < num_tokens, other=-2)
        is_before = (other[None, :] < token[:, None]) & (theirs[None, :] == mine[:, None])
        rank += tl.sum(is_before.to(tl.int32), 1)
    share = tl.load(shares + tl.arange(0, EXPERTS))
    is_left = (mine < num_experts) & (rank >= _of(share, mine, EXPERTS))
    tl.store(leaves + token, is_left.to(tl.int32), mask=is_token)


@triton.jit
@no_type_check
def fill(
    chosen, leaves, shares, expert_of, num_tokens, num_experts,
    TOKENS: tl.constexpr, CHUNK: tl.constexpr, EXPERTS: tl.constexpr,
):  # fmt: skip
    """Write each token's expert; experts with room take the remaining tokens in order."""
    expert = tl.arange(0, EXPERTS)
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    is_token = token < num_tokens
    counts = _counts(chosen, num_tokens, CHUNK, EXPERTS)
    room = tl.where(expert < num_experts, tl.maximum(tl.load(shares + expert) - counts, 0), 0)
    rank = tl.zeros((TOKENS,), tl.int32)
    for start in range(0, num_tokens, CHUNK):
        other = start + tl.arange(0, CHUNK)
        is_left = tl.load(leaves + other, mask=other < num_tokens, other=0) != 0
        rank += tl.sum((is_left[None, :] & (other[None, :] < token[:, None])).to(tl.int32), 1)
    is_full = (tl.cumsum(room, 0)[None, :] <= rank[:, None]) & (expert < num_experts)[None, :]
    mine = tl.load(chosen + token, mask=is_token, other=0)
    is_left = tl.load(leaves + token, mask=is_token, other=0) != 0
    expert_of_token = tl.where(is_left, tl.sum(is_full.to(tl.int32), 1), mine)
    tl.store(expert_of + token, expert_of_token.to(tl.int64), mask=is_token)
