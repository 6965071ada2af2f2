"""The plan of a run: which sentences of which shards each epoch draws.

Every task has an endless shuffled sequence of its sentences (see `permutation`); an epoch takes the next so many of
each. Where a task's cursor stands at an epoch follows from the counts of the epochs before, so the plan keeps no state
that a checkpoint would have to hold. A virtual epoch is a fixed number of sentences: consecutive ones walk through the
data.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.sampling.apportion import apportion
from fairseq_mtmoe.data.sampling.draw import Draw, Numbering, Stretch
from fairseq_mtmoe.data.sampling.permutation import derive_key, uniform_number
from fairseq_mtmoe.data.sampling.schedule import Schedule
from fairseq_mtmoe.errors import must_be

_COUNTS, _SENTENCES, _ORDER = 1, 2, 3  # what a pseudo-random number is for
_MAX_SCALE_UP = 1.5  # fairseq's limit of an epoch's size, in sizes of the data


def default_epoch_size(sizes: Sequence[int], probabilities: NDArray[np.float64]) -> int:
    """fairseq's size of an epoch: the largest task is seen once, but no more than 1.5 times all the data in total."""
    largest = int(np.argmax(sizes))
    return int(min(sizes[largest] / max(probabilities[largest], 1e-300), _MAX_SCALE_UP * sum(sizes)))


@dataclass
class _Place:
    """Where the plan stands at the start of an epoch."""

    epoch: int = 1
    shard_epoch: int = 0
    epochs_left: int = 0  # with these shards, this one included

    def __post_init__(self) -> None:
        self.cursors: dict[tuple[int, tuple[int, ...]], int] = {}


class SamplingPlan:
    """Draws the sentences of any epoch. Epochs count from 1, as in fairseq.

    Args:
        shard_sizes: per task, the number of sentences in each of its shards. Tasks may have different numbers of
            shards; a pass over a shard is followed by one over the next, for all tasks at the same time.
        schedule: the shares of the tasks, which follow from the sizes of all shards together.
        seed: names the sequence of draws.
        virtual_epoch_size: sentences in an epoch; None: a pass over the current shards.
        virtual_data_size: sentences in a pass over the current shards; None: fairseq's `default_epoch_size`.

    Raises:
        UserError: a size is below 1.
    """

    def __init__(
        self,
        shard_sizes: Sequence[Sequence[int]],
        schedule: Schedule,
        seed: int,
        virtual_epoch_size: int | None = None,
        virtual_data_size: int | None = None,
    ) -> None:
        for name, size in (("virtual-epoch-size", virtual_epoch_size), ("virtual-data-size", virtual_data_size)):
            if size is not None and size < 1:
                must_be(f"--{name}", "at least 1", size)
        assert all(size > 0 for sizes in shard_sizes for size in sizes)
        self.shard_sizes = [tuple(sizes) for sizes in shard_sizes]
        self.sizes = [sum(sizes) for sizes in shard_sizes]
        self.schedule = schedule
        self.seed = seed
        self.virtual_epoch_size = virtual_epoch_size
        self.virtual_data_size = virtual_data_size
        tasks = range(len(self.sizes))
        # Where every sentence is taken once, all tasks share one shuffled sequence: then a pass is exact for any size
        # of the virtual epochs.
        self._groups = [tuple(tasks)] if schedule.takes_everything else [(task,) for task in tasks]
        self._place = _Place()

    def probabilities(self, epoch: int) -> NDArray[np.float64]:
        """(L,) the tasks' shares in an epoch."""
        return self.schedule.probabilities_at(epoch, self.sizes)

    def order_key(self, epoch: int) -> int:
        """Names the order of an epoch's sentences of equal lengths."""
        return derive_key(self.seed, _ORDER, epoch)

    def draw(self, epoch: int) -> Draw:
        """The sentences of an epoch; costs nothing until its blocks are worked out."""
        place = self._at(epoch)
        shards = self._shards(place.shard_epoch)
        sizes = [sizes[shard] for sizes, shard in zip(self.shard_sizes, shards, strict=True)]
        stretches: list[Stretch] = []
        passes = []
        for number, (group, count) in enumerate(zip(self._groups, self._group_counts(place), strict=True)):
            cursor = place.cursors.get(self._cursor_key(number, shards), 0)
            key = derive_key(self.seed, _SENTENCES, *(part for task in group for part in (task, shards[task])))
            size = sum(sizes[task] for task in group)
            stretches += _stretches(number, size, cursor, int(count), key)
            passes.append(-(-(cursor + int(count)) // size) - cursor // size)
        return Draw(shards, Numbering(sizes, [len(group) for group in self._groups], passes), tuple(stretches))

    def _group_counts(self, place: _Place) -> NDArray[np.int64]:
        probabilities = self.probabilities(place.epoch)
        shares = np.array([probabilities[list(group)].sum() for group in self._groups])
        size = self.virtual_epoch_size or self._pass_size(place.shard_epoch)
        return apportion(size, shares, uniform_number(self.seed, _COUNTS, place.epoch))

    def _shards(self, shard_epoch: int) -> tuple[int, ...]:
        return tuple(shard_epoch % len(sizes) for sizes in self.shard_sizes)

    def _pass_size(self, shard_epoch: int) -> int:
        sizes = [sizes[shard] for sizes, shard in zip(self.shard_sizes, self._shards(shard_epoch), strict=True)]
        if self.schedule.takes_everything:
            return sum(sizes)
        # Of the first epoch's shares: an epoch keeps its size while the temperature rises.
        return self.virtual_data_size or max(1, default_epoch_size(sizes, self.probabilities(1)))

    def _epochs_per_pass(self, shard_epoch: int) -> int:
        return math.ceil(self._pass_size(shard_epoch) / (self.virtual_epoch_size or self._pass_size(shard_epoch)))

    def _cursor_key(self, number: int, shards: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        return number, tuple(shards[task] for task in self._groups[number])

    def _at(self, epoch: int) -> _Place:
        assert epoch >= 1
        if epoch < self._place.epoch:
            self._place = _Place()
        place = self._place
        if place.epochs_left == 0:
            place.epochs_left = self._epochs_per_pass(place.shard_epoch)
        while place.epoch < epoch:
            self._advance(place)
        return place

    def _advance(self, place: _Place) -> None:
        shards = self._shards(place.shard_epoch)
        for number, count in enumerate(self._group_counts(place)):
            key = self._cursor_key(number, shards)
            place.cursors[key] = place.cursors.get(key, 0) + int(count)
        place.epoch += 1
        place.epochs_left -= 1
        if place.epochs_left == 0:
            place.shard_epoch += 1
            place.epochs_left = self._epochs_per_pass(place.shard_epoch)


def _stretches(group: int, size: int, cursor: int, count: int, key: int) -> list[Stretch]:
    """The parts of a group's passes that `count` sentences from the place `cursor` of its sequence on are of: the end
    of one, whole passes, and the beginning of one."""
    first, end = cursor // size, cursor + count
    whole_from, whole_to = -(-cursor // size), end // size
    bounds = [cursor, *((whole_from * size, whole_to * size) if whole_from <= whole_to else ()), end]
    return [
        Stretch(group, low // size - first, size, low % size, high - low, derive_key(key, low // size))
        for low, high in itertools.pairwise(bounds)
        if high > low
    ]
