"""Pseudo-random permutations of n items; any part can be computed by itself.

A key gives a permutation of 0 … n-1: a Feistel network over the next power of two, with cycle
walking (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). So V of n items cost
time in V, and no list of n numbers is made. Up to 2^32 items words have 32 bits, of which twice
as many fit into a vector instruction.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[Any]  # of a `word_type`

ROUNDS = 6
_MIN_BITS = 6  # halves of two bits are still biased after these rounds
_CHUNK = 1 << 16  # keeps the temporaries in the processor's cache
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash 64-bit words bijectively.

    This is the finalizer of Steele, Lea and Flood's SplitMix64, 2014.
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def derive_key(*parts: int) -> int:
    """Return a 64-bit key from several integers; their order matters."""
    state = np.zeros(1, dtype=np.uint64)
    for part in parts:
        state = mix((state ^ np.uint64(part % 2**64)) + GOLDEN)
    return int(state[0])


def word_type(size: int) -> type[np.uint32] | type[np.uint64]:
    """Return the type for 0 … size-1: 32 bits if that is enough, else 64."""
    return np.uint32 if size <= 2**32 else np.uint64


def items_at(start: int, count: int, size: int, key: int) -> Words:
    """Return the items (count,) of the permutation of 0 … size-1 by `key`.

    Their positions are `start … start+count-1`.
    """
    assert start >= 0 and start + count <= size
    network = _Network(size, key)
    items = np.empty(count, dtype=network.word)
    for low in range(0, count, _CHUNK):
        high = min(low + _CHUNK, count)
        items[low:high] = network(np.arange(start + low, start + high, dtype=network.word))
    outside = np.flatnonzero(items >= size)
    while outside.size:
        items[outside] = network(items[outside])
        outside = outside[items[outside] >= size]
    return items


class _Network:
    """Feistel network over halves (low, high).

    Rounds add a keyed hash of one half to the other, in turn.
    """

    def __init__(self, size: int, key: int) -> None:
        self.word = word_type(size)
        self.low_bits = max(_MIN_BITS, (size - 1).bit_length()) // 2
        # The smallest moduli that hold all items, so that few values fall outside the range.
        self.moduli = 1 << self.low_bits, max(1 << (_MIN_BITS // 2), -(-size >> self.low_bits))
        constants = mix(np.arange(1, 2 * ROUNDS + 1, dtype=np.uint64) * GOLDEN ^ np.uint64(key))
        constants = constants.astype(self.word)
        self.factors = np.bitwise_or(constants[::2], 1)  # odd factors are invertible
        self.summands = constants[1::2]

    def __call__(self, words: Words) -> Words:
        low_bits = self.word(self.low_bits)
        halves = [words & self.word(self.moduli[0] - 1), words >> low_bits]
        for number in range(ROUNDS):
            changed = 1 - number % 2
            modulus = self.word(self.moduli[changed])
            half = halves[changed] + self._hash(halves[1 - changed], number, modulus)
            # Modulo: of the two candidates, one modulus apart, the wrong one is larger, as
            # negative numbers wrap.
            halves[changed] = np.minimum(half, half - modulus)
        return halves[1] << low_bits | halves[0]

    def _hash(self, half: Words, number: int, modulus: np.unsignedinteger) -> Words:
        """Return numbers below the modulus; a product's highest bits are the best mixed."""
        half_width = self.word(4 * half.itemsize)
        hashed: Words = half * self.factors[number] + self.summands[number]
        factor = self.word(0x85EBCA6B if self.word is np.uint32 else int(GOLDEN))
        hashed = (hashed ^ hashed >> half_width) * factor
        hashed = (hashed >> half_width) * modulus
        return hashed >> half_width
