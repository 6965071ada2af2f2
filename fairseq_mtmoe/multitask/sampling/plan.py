"""The sampling plan of a run: the examples and shards of each epoch.

Each task has an endless shuffled sequence of its examples (see `permutation`); an epoch takes the
next ones. A task's cursor is the sum of the counts of earlier epochs, so any epoch can be drawn
by itself. After a change of schedule or data, the plan continues from the cursors in a checkpoint
(see `saved_plans`).

If the temperature rises by updates, a long epoch is drawn in parts, one after the other, as a
part's number of updates is known only when its examples are in batches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.multitask.sampling.draw import Draw, Numbering, Stretch
from fairseq_mtmoe.multitask.sampling.permutation import derive_key
from fairseq_mtmoe.multitask.sampling.schedule import Schedule, apportion

# Purposes of pseudo-random numbers.
_COUNTS = 1
_EXAMPLES = 2
_ORDER = 3
_ALTERED = 4

# For tasks drawn as one: (task's number, shard's number) of each.
Shards = tuple[tuple[int, int], ...]


class Part(NamedTuple):
    """A part of an epoch: its number of examples, and the updates before it.

    If the examples are candidates, only those trained on count.
    """

    size: int
    update: int


@dataclass(frozen=True)
class EpochStart:
    """State of the plan at the start of an epoch."""

    epoch: int  # from 1
    schedule: Schedule  # of this epoch
    epochs_left: int  # with the same shards, this one included
    shard_epoch: int = 0  # number of earlier changes of shards
    update: int = 0  # updates before the epoch
    # Number of examples drawn earlier from each sequence.
    cursors: Mapping[Shards, int] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()  # those known so far; empty: the epoch is one part


class SamplingPlan:
    """Draws the examples of any epoch. Epochs count from 1, as in fairseq.

    Args:
        shard_sizes: per task the examples in each shard, above 0; each pass reads the next shards.
        schedule: the sampling options; shares follow from the sizes of all shards together.
        seed: seed of all draws.
        names: the tasks' names, by which `follow` finds them in another plan.
        given_duration: whether C of the heating was given; if not, a resumed run keeps its own.
    """

    def __init__(
        self,
        shard_sizes: Sequence[Sequence[int]],
        schedule: Schedule,
        seed: int,
        names: Sequence[str] | None = None,
        given_duration: bool = True,
    ) -> None:
        assert min(map(min, shard_sizes)) > 0
        self.shard_sizes = list(map(tuple, shard_sizes))
        self.sizes = list(map(sum, shard_sizes))
        self.numbers = list(range(len(self.sizes)))  # of the tasks' sequences
        self.names = list(map(str, self.numbers if names is None else names))
        self.schedule = schedule
        self.seed = seed
        self.given_duration = given_duration
        self.begin(0)

    def begin(self, update: int) -> None:
        """Go to the first epoch, after this number of updates."""
        self.begin_at(EpochStart(1, self.schedule, self._epochs_per_pass(0), update=update))

    def begin_at(self, start: EpochStart) -> None:
        """Go to an epoch; earlier epochs cannot be drawn any more."""
        self._first = self._start = start

    def go_to(self, epoch: int, update: int = 0) -> EpochStart:
        """Go to an epoch; return the plan's state at its start."""
        assert epoch >= self._first.epoch
        if epoch < self._start.epoch:
            self._start = self._first
        while self._start.epoch < epoch:
            self._start = self.after(self._start, update)
        return self._start

    @property
    def epoch(self) -> int:
        """Return the current epoch."""
        return self._start.epoch

    def parts(self, epoch: int) -> tuple[Part, ...]:
        """Return the known parts of an epoch; at least one."""
        return self._parts(self.go_to(epoch))

    def probabilities(self, epoch: int, part: int = 0) -> NDArray[np.float64]:
        """Return the tasks' shares (L,) in a part of an epoch."""
        schedule = self.go_to(epoch).schedule
        return schedule.probabilities_at(epoch, self.sizes, self.parts(epoch)[part].update)

    def temperature(self, epoch: int, part: int = 0) -> float | None:
        """Return the temperature of a part of an epoch; None if the method has none."""
        return self.go_to(epoch).schedule.temperature_at(epoch, self.parts(epoch)[part].update)

    def draws_candidates(self, epoch: int) -> bool:
        """Return whether an epoch's examples are candidates (see `candidates.py`)."""
        return self.go_to(epoch).schedule.draws_candidates

    def order_key(self, epoch: int, part: int = 0) -> int:
        """Return the seed for the order of a part's examples of equal lengths."""
        return derive_key(self.seed, _ORDER, epoch, *_further(part))

    def alter_key(self, epoch: int) -> int:
        """Return the seed for random changes to an epoch's examples."""
        return derive_key(self.seed, _ALTERED, epoch)

    def draw(self, epoch: int, update: int = 0, part: int | None = None) -> Draw:
        """Return the draw of an epoch, or of a part of it with the same indices.

        Blocks are computed later.
        """
        start = self.go_to(epoch, update)
        sizes = self._sizes(start.shard_epoch)
        groups = self._groups(start.schedule)
        keys = []
        cursors = []
        for group in groups:
            shards = self._shards(group, start.shard_epoch)
            keys.append(derive_key(self.seed, _EXAMPLES, *itertools.chain.from_iterable(shards)))
            cursors.append(start.cursors.get(shards, 0))
        in_order = start.schedule.draws_candidates
        stretches: list[Stretch] = []
        passes: list[int] = []
        for part_number, counts in enumerate(self._counts(start)):
            columns = zip(groups, counts.tolist(), keys, strict=True)
            for number, (group, count, key) in enumerate(columns):
                cursor = cursors[number]
                size = sum(sizes[task] for task in group)
                if part in (None, part_number):
                    stretches += _stretches(len(passes), size, cursor, count, key, in_order)
                passes.append(-(-(cursor + count) // size) - cursor // size)
                cursors[number] += count
        chosen = tuple(start.shard_epoch % len(sizes) for sizes in self.shard_sizes)
        numbering = Numbering(sizes, list(map(len, groups)), passes)
        return Draw(chosen, numbering, tuple(stretches))

    def rises_within(self, epoch: int) -> bool:
        """Return whether an epoch may need further parts."""
        start = self.go_to(epoch)
        return start.schedule.step_at(start.update) is not None

    def part_size(self, epoch: int, size: int, batches: int, per_update: int) -> int:
        """Return the number of examples that may share a temperature.

        size, batches: a number of examples, and the number of batches that they make.
        """
        start = self.go_to(epoch)
        step = start.schedule.step_at(start.update)
        return size if step is None else max(1, int(size * step / (max(1, batches) / per_update)))

    def add_part(self, epoch: int, size: int, updates: int) -> bool:
        """Add the epoch's next part; return whether it is the last.

        It begins after `updates` updates of the epoch. It has `size` examples, or all remaining
        ones if it is the last.
        """
        start = self.go_to(epoch)
        update = start.update + updates
        left = self.epoch_size(start.schedule, start.shard_epoch)
        left -= sum(part.size for part in start.parts)
        if size > left or start.schedule.step_at(update) is None:
            size = left
        self._start = replace(start, parts=(*start.parts, Part(size, update)))
        if self._first is start:
            self._first = self._start
        return size == left

    def follow(self, before: SamplingPlan, has_begun: bool, update: int) -> bool:
        """Resume from the interrupted run's plan, and finish its epoch as begun.

        It takes over seed and cursors. Each task continues its shuffled sequence, also with other
        options; a task whose data has changed starts again. Returns False if an epoch that
        `has_begun` cannot be drawn again, as data has changed: the next epoch begins.
        """
        start = before._start
        same_data = before.names == self.names and before.shard_sizes == self.shard_sizes
        if has_begun and not same_data:
            start = before.go_to(start.epoch + 1, update)
        self.seed = before.seed
        self.schedule = self.schedule.following(before.schedule, self.given_duration)
        cursors = self._take_over(before, start.cursors)
        if has_begun and same_data:
            start = replace(start, cursors=cursors)
        elif same_data:
            left = self._epochs_left(start, start.epochs_left)
            start = replace(
                start,
                schedule=self.schedule,
                update=update,
                epochs_left=left,
                cursors=cursors,
                parts=(),
            )
        else:
            left = self._epochs_per_pass(start.shard_epoch)
            start = EpochStart(start.epoch, self.schedule, left, start.shard_epoch, update, cursors)
        self.begin_at(start)
        return same_data or not has_begun

    def _take_over(self, before: SamplingPlan, cursors: Mapping[Shards, int]) -> dict[Shards, int]:
        """Take over another plan's task numbers; return the cursors of unchanged tasks."""
        old_numbers = dict(zip(before.names, before.numbers, strict=True))
        old_sizes = dict(zip(before.numbers, before.shard_sizes, strict=True))
        fresh = itertools.count(max(before.numbers, default=-1) + 1)
        self.numbers = []
        same = set()
        for name, sizes in zip(self.names, self.shard_sizes, strict=True):
            number = old_numbers[name] if name in old_numbers else next(fresh)
            self.numbers.append(number)
            if old_sizes.get(number) == sizes:
                same.add(number)
        kept = {}
        for shards, cursor in cursors.items():
            if same.issuperset(dict(shards)):
                kept[shards] = cursor
        return kept

    def _groups(self, schedule: Schedule) -> list[tuple[int, ...]]:
        # If every example is taken once, all tasks share one sequence: a pass is exact for any
        # virtual epoch size.
        tasks = range(len(self.sizes))
        return [tuple(tasks)] if schedule.takes_everything else [(task,) for task in tasks]

    def _shards(self, group: tuple[int, ...], shard_epoch: int) -> Shards:
        return tuple(
            (self.numbers[task], shard_epoch % len(self.shard_sizes[task])) for task in group
        )

    def _sizes(self, shard_epoch: int) -> list[int]:
        return [sizes[shard_epoch % len(sizes)] for sizes in self.shard_sizes]

    def _parts(self, start: EpochStart) -> tuple[Part, ...]:
        if start.parts:
            return start.parts
        size = self.epoch_size(start.schedule, start.shard_epoch)
        return (Part(size, start.update),)

    def epoch_size(self, schedule: Schedule, shard_epoch: int) -> int:
        """Return the number of examples in an epoch by a schedule."""
        return schedule.epoch_size(self._sizes(shard_epoch), self.sizes)

    def _counts(self, start: EpochStart) -> list[NDArray[np.int64]]:
        """Return the number of examples that each part draws of each group."""
        counts = []
        for number, part in enumerate(self._parts(start)):
            if start.schedule.draws_candidates:
                counts.append(np.full(len(self.sizes), part.size))
                continue
            probabilities = start.schedule.probabilities_at(start.epoch, self.sizes, part.update)
            groups = self._groups(start.schedule)
            shares = np.array([probabilities[list(group)].sum() for group in groups])
            key = derive_key(self.seed, _COUNTS, start.epoch, *_further(number))
            offset = (key >> 11) * 2.0**-53  # pseudo-random and uniform in [0, 1)
            counts.append(apportion(part.size, shares, offset))
        return counts

    def after(self, start: EpochStart, update: int) -> EpochStart:
        """Return the state after an epoch, at which `update` updates were made."""
        cursors = dict(start.cursors)
        groups = self._groups(start.schedule)
        counts = np.sum(self._counts(start), axis=0)
        for group, count in zip(groups, counts, strict=True):
            shards = self._shards(group, start.shard_epoch)
            cursors[shards] = cursors.get(shards, 0) + int(count)
        shard_epoch = start.shard_epoch + (start.epochs_left == 1)
        left = start.epochs_left - 1
        left = self._epochs_left(start, left) if left else self._epochs_per_pass(shard_epoch)
        return EpochStart(start.epoch + 1, self.schedule, left, shard_epoch, update, cursors)

    def _epochs_per_pass(self, shard_epoch: int) -> int:
        sizes = self._sizes(shard_epoch)
        pass_size = self.schedule.pass_size(sizes, self.sizes)
        return math.ceil(pass_size / self.schedule.epoch_size(sizes, self.sizes))

    def _epochs_left(self, start: EpochStart, left: int) -> int:
        """Convert `left` epochs of a start's schedule into epochs of this plan's schedule."""
        if start.schedule == self.schedule:
            return left
        old = self.epoch_size(start.schedule, start.shard_epoch)
        new = self.epoch_size(self.schedule, start.shard_epoch)
        return math.ceil(left * old / new)


def _further(part: int) -> tuple[int, ...]:
    """Return a part's addition to random keys.

    The first part has the keys of an undivided epoch.
    """
    return (part,) if part else ()


def _stretches(
    group: int, size: int, cursor: int, count: int, key: int, in_order: bool
) -> list[Stretch]:
    """Return the stretches of `count` examples of a group's sequence from `cursor` on.

    They are the end of a pass, whole passes (one stretch each if `in_order`), and the beginning
    of a pass.
    """
    first = cursor // size
    end = cursor + count
    whole_from = -(-cursor // size)
    whole_to = end // size
    wholes: Sequence[int] = ()
    if in_order:
        wholes = range(whole_from, whole_to + 1)
    elif whole_from <= whole_to:
        wholes = whole_from, whole_to
    bounds = [cursor, *(whole * size for whole in wholes), end]
    stretches = []
    for low, high in itertools.pairwise(bounds):
        if high > low:
            number = low // size
            pass_key = derive_key(key, number)
            stretches.append(Stretch(group, number - first, size, low % size, high - low, pass_key))
    return stretches
