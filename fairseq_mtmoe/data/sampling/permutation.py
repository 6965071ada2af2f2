"""Endless pseudo-random passes over n items, any part of which can be computed by itself.

A pass is a permutation of 0 … n-1 given by a key: a Feistel network over the next power of two, walked along its
cycles back into the range (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). So an epoch that draws V
of n sentences costs time in V, and no list of n numbers is ever made or stored.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

ROUNDS = 6
_MIN_BITS = 6  # halves of two bits would still show a bias after these rounds
_CHUNK = 1 << 18  # keeps the temporaries in the processor's cache
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(words: Words) -> Words:
    """A bijective hash of 64-bit words (the finalizer of Steele, Lea and Flood's SplitMix64, 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def derive_key(*parts: int) -> int:
    """One 64-bit key from several integers; their order matters."""
    state = np.zeros(1, dtype=np.uint64)
    for part in parts:
        state = mix((state ^ np.uint64(part % 2**64)) + _GOLDEN)
    return int(state[0])


def uniform_number(*parts: int) -> float:
    """A pseudo-random number in [0, 1) that depends on nothing but these integers."""
    return (derive_key(*parts) >> 11) * 2.0**-53


def permuted(start: int, count: int, size: int, key: int) -> NDArray[np.int64]:
    """The items at the positions `start … start+count-1` of an endless sequence of passes over `size` items.

    Every pass holds each item exactly once, in a different order.

    Args:
        start: first position, at least 0; position p belongs to pass p // size.
        count: how many positions.
        size: number of items, at least 1.
        key: names the sequence.

    Returns:
        (count,) items in 0 … size-1.
    """
    assert start >= 0 and size >= 1
    items = np.empty(count, dtype=np.int64)
    for low in range(0, count, _CHUNK):
        high = min(low + _CHUNK, count)
        positions = np.arange(start + low, start + high, dtype=np.uint64)
        items[low:high] = _items_at(positions, size, np.uint64(key))
    return items


def _items_at(positions: Words, size: int, key: np.uint64) -> Words:
    passes, items = np.divmod(positions, np.uint64(size))
    keys = mix(mix(passes + _GOLDEN) ^ key)
    bits = max(_MIN_BITS, (size - 1).bit_length())
    items = _feistel(items, keys, bits)
    outside = np.flatnonzero(items >= size)
    while outside.size:
        items[outside] = _feistel(items[outside], keys[outside], bits)
        outside = outside[items[outside] >= size]
    return items


def _feistel(items: Words, keys: Words, bits: int) -> Words:
    """Permute 0 … 2^bits - 1: each half in turn is xored with a keyed hash of the other."""
    low_bits = np.uint64(bits // 2)
    low_mask = np.uint64((1 << (bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    high, low = items >> low_bits, items & low_mask
    for number in range(0, ROUNDS, 2):
        high = high ^ (_round(low, keys, number) & high_mask)
        low = low ^ (_round(high, keys, number + 1) & low_mask)
    return (high << low_bits) | low


def _round(half: Words, keys: Words, number: int) -> Words:
    return mix((half + np.uint64(number * int(_GOLDEN) % 2**64)) ^ keys)
