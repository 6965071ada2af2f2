"""The options that decide how many examples of each task an epoch draws. A run may change them between two epochs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.sampling.schedule import Schedule
from fairseq_mtmoe.errors import raise_invalid

_MAX_SCALE_UP = 1.5  # fairseq's limit of an epoch's size, in sizes of the data


def default_epoch_size(sizes: Sequence[int], probabilities: NDArray[np.float64]) -> int:
    """fairseq's size of an epoch: the largest task is seen once, but no more than 1.5 times all the data in total."""
    largest = int(np.argmax(sizes))
    return int(min(sizes[largest] / max(probabilities[largest], 1e-300), _MAX_SCALE_UP * sum(sizes)))


@dataclass(frozen=True)
class Rules:
    """How epochs are drawn.

    Where the schedule draws candidates, sizes count the examples that are trained on, as many as there are candidates
    of each task.

    Args:
        schedule: the shares of the tasks.
        virtual_epoch_size: examples in an epoch, and no more than a pass; None: a pass over the current shards.
        virtual_data_size: examples in a pass over the current shards; None: fairseq's `default_epoch_size`, or, of
            candidates, the size of the largest task, which is then drawn once.
        exceeds_pass: an epoch may be longer than a pass, as it could be in runs that version 0.1.0 began.

    Raises:
        UserError: a size is below 1.
    """

    schedule: Schedule
    virtual_epoch_size: int | None = None
    virtual_data_size: int | None = None
    exceeds_pass: bool = False

    def __post_init__(self) -> None:
        for name in ("virtual_epoch_size", "virtual_data_size"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise_invalid(f"--{name.replace('_', '-')}", "at least 1", size)

    def pass_size(self, sizes: Sequence[int], whole_sizes: Sequence[int]) -> int:
        """Examples in a pass over shards of these sizes, of tasks of these sizes with all their shards."""
        if self.schedule.takes_everything:
            return sum(sizes)
        if self.schedule.ends_natural:
            return self.virtual_data_size or sum(sizes)
        if self.schedule.draws_candidates:
            return self.virtual_data_size or max(sizes)
        # Of the first epoch's shares: an epoch keeps its size while the temperature rises.
        shares = self.schedule.probabilities_at(1, whole_sizes)
        return self.virtual_data_size or max(1, default_epoch_size(sizes, shares))

    def epoch_size(self, pass_size: int) -> int:
        """Examples in an epoch of a pass of this size."""
        if self.virtual_epoch_size is None:
            return pass_size
        return self.virtual_epoch_size if self.exceeds_pass else min(self.virtual_epoch_size, pass_size)

    def epochs_per_pass(self, pass_size: int) -> int:
        """How many epochs are drawn before the shards change."""
        return math.ceil(pass_size / self.epoch_size(pass_size))

    def following(self, before: Rules, given_duration: bool) -> Rules:
        """These rules in a run that went by others so far.

        Args:
            before: the others.
            given_duration: whether C of the heating was asked for. Else it is, in epochs or updates, what the run
                settled when it began: a run that goes on for longer does not cool down.
        """
        schedule, old = self.schedule, before.schedule
        if not given_duration and schedule.heating_coefficient > 0 < old.heating_coefficient:
            schedule = replace(schedule, heating_epochs=old.heating_epochs, heating_updates=old.heating_updates)
        same_size = self.virtual_epoch_size == before.virtual_epoch_size
        return replace(self, schedule=schedule, exceeds_pass=before.exceeds_pass and same_size)
