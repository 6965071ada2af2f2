"""Random numbers that are not drawn: torch's CPU generator, moved on as if they had been.

An expert starts the same in whichever process it is, so each process would have to draw all others, too: minutes, for
hundreds of experts. The generator is MT19937 (Matsumoto and Nishimura, 1998), whose words x_0, x_1, … obey a linear
recurrence over GF(2). With φ its characteristic polynomial and Σ g_i tⁱ the rest of t^J modulo φ, x_{J+k} is the sum
(xor) of the x_{i+k} for which g_i is 1 (Haramoto et al., 2008): a jump of any length takes tens of milliseconds.

Polynomials are integers here; bit i is the coefficient of tⁱ. How torch keeps the generator's state is no public
interface: it is tried out once, and where it is not as expected, the numbers are drawn.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

WORDS = 624  # of a block; the generator makes so many at once
DEGREE = 19937
FEW = 2**21  # numbers that are drawn faster than a jump is computed
# Where torch's state, as int64, has: how much is left of the block (the lower half), the place in it, the block.
LEFT, NEXT, BLOCK = 1, 2, slice(3, 3 + WORDS)
LOW = 2**32 - 1


def skip_uniform(count: int, generator: torch.Generator | None = None) -> None:
    """Move the generator as drawing `count` numbers in float32 by `uniform_` does; by default torch's for CPUs."""
    generator = generator or torch.default_generator
    if count < FEW or not jumps_right():
        _draw(count, generator)
    else:
        _jump(count, generator)


@cache
def jumps_right() -> bool:
    """Whether the generator is the one that is meant here, and its state as expected; tried out once."""
    drawn, jumped = (torch.Generator("cpu").manual_seed(1) for _ in range(2))
    try:
        for count in (3 * WORDS, DEGREE + 7 * WORDS + 5):
            _draw(count, drawn)
            _jump(count, jumped)
            if not torch.equal(drawn.get_state(), jumped.get_state()):
                return False
    except Exception:  # a state of another size
        return False
    return True


def _draw(count: int, generator: torch.Generator) -> None:
    buffer = torch.empty(min(count, 2**16), dtype=torch.float32, device="cpu")
    for start in range(0, count, 2**16):
        buffer[: count - start].uniform_(generator=generator)


def _jump(count: int, generator: torch.Generator) -> None:
    words = generator.get_state().view(torch.int64)
    left = int(words[LEFT] & LOW)
    taken = WORDS + 1 - left  # of this block
    blocks, place = divmod(taken + count - 1, WORDS)  # where the last of the numbers is
    if blocks == 0:
        _draw(count, generator)
        return
    _draw(left, generator)  # the rest of this block, and the next one's first
    sequence = _following(generator, DEGREE + WORDS)
    block = torch.zeros(WORDS, dtype=torch.int64, device="cpu")
    for start in _exponents(_power((blocks - 1) * WORDS)):
        block ^= sequence[start : start + WORDS]
    words[BLOCK], words[NEXT] = block, place + 1
    words[LEFT] += WORDS - place - left
    generator.set_state(words.view(torch.uint8))


def _following(generator: torch.Generator, count: int) -> Tensor:
    """So many words or a few more, from the first of the generator's block on."""
    blocks = []
    for _ in range(-(-count // WORDS)):
        blocks.append(generator.get_state().view(torch.int64)[BLOCK].clone())
        _draw(WORDS, generator)
    return torch.cat(blocks)


@cache
def _power(exponent: int) -> int:
    """t to this power modulo φ."""
    power = 1
    for digit in f"{exponent:b}":
        power = int("0".join(f"{power:b}"), 2)  # the square: what is mixed occurs twice
        power = _reduced(power << 1 if digit == "1" else power)
    return power


def _reduced(polynomial: int) -> int:
    """The rest modulo φ, of which few coefficients are 1."""
    *lower, _ = _exponents(_characteristic())
    while high := polynomial >> DEGREE:
        polynomial ^= high << DEGREE
        for exponent in lower:
            polynomial ^= high << exponent
    return polynomial


@cache
def _characteristic() -> int:
    """φ, found from a sequence of the generator by Berlekamp and Massey's algorithm."""
    generator = torch.Generator("cpu").manual_seed(1)
    _draw(1, generator)
    found, before, degree, since, history = 1, 1, 0, 1, 0
    for place, bit in enumerate((_following(generator, 2 * DEGREE) & 1).tolist()):
        history = history << 1 | bit
        if (found & history).bit_count() % 2 == 0:
            since += 1
            continue
        found, last = found ^ before << since, found
        since += 1
        if 2 * degree <= place:
            before, degree, since = last, place + 1 - degree, 1
    assert degree == DEGREE
    return int(f"{found:b}".zfill(degree + 1)[::-1], 2)


@cache
def _exponents(polynomial: int) -> tuple[int, ...]:
    """Of the terms of a polynomial, rising."""
    return tuple(place for place, digit in enumerate(reversed(f"{polynomial:b}")) if digit == "1")
