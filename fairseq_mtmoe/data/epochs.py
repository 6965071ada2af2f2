"""The position in an epoch, counted in batches of all processes, so that any number of processes can resume."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from fairseq.data import data_utils, iterators

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.protocols import ResumesDraws


class SharedEpochIterator(iterators.EpochBatchIterator):
    """fairseq's epoch iterator, resumable with another number of processes or another `--update-freq`.

    The state is fairseq's with `batches_in_epoch`, the number that all processes have seen; `seed`, which shuffled
    them; and `sampling`, the dataset's saved draws. A state of fairseq's own resumes with its number of processes.
    """

    epoch: int
    seed: int

    def __init__(self, *, update_freq: Sequence[int] = (1,), **options: Any) -> None:
        super().__init__(**options)
        self.update_freq = update_freq
        self._begin_after(0, self.num_shards)

    def _begin_after(self, batches: int, group: int) -> None:
        """Resume after `batches` of all processes; grouped shuffling keeps `group` batches together.

        fairseq's training loop divides a process's batches by `--update-freq` and rounds up, at the position and at the
        epoch's end. In the middle of an update the two disagree, and the epoch would end too early or start again. So
        the count begins at `_first`, the start of the position's update.
        """
        self._batches_before, self._group = batches, group
        own = batches // self.num_shards
        freq = self.update_freq[min(self.epoch, len(self.update_freq)) - 1]
        self._first = own - own % freq

    @property
    def iterations_in_epoch(self) -> int:
        """Return this process's number of batches seen in the epoch, as if their split had never changed."""
        return int(self._batches_before // self.num_shards + super().iterations_in_epoch - self._first)

    def state_dict(self) -> dict[str, Any]:
        """Return the position, for checkpoints."""
        state: dict[str, Any] = super().state_dict()
        seen = self._batches_before + (super().iterations_in_epoch - self._first) * self.num_shards
        state["batches_in_epoch"] = 0 if self.end_of_epoch() else seen
        state["group_size"] = self._group
        state["seed"] = self.seed
        if isinstance(self.dataset, ResumesDraws):
            state["sampling"] = self.dataset.saved_draws(state["epoch"])
        return state

    def load_state_dict(self, state_dict: Any) -> None:
        """Go to a saved position (UserError: the epoch now has no more batches than were seen)."""
        iterations = state_dict.get("iterations_in_epoch", 0)
        seen = state_dict.get("batches_in_epoch", iterations * self.num_shards)
        if self.epoch != state_dict["epoch"]:
            self.epoch, self._frozen_batches = state_dict["epoch"], None
        if isinstance(self.dataset, ResumesDraws) and "batches_in_epoch" in state_dict:
            seen = self._resume_drawing(state_dict, seen)
        if seen:
            self.seed = state_dict.get("seed", self.seed)
        self._begin_after(seen, state_dict.get("group_size", self.num_shards) if seen else self.num_shards)
        self._next_epoch_itr = None
        if seen:
            self._next_epoch_itr = self._get_iterator_for_epoch(self.epoch, state_dict.get("shuffle", True))

    def _resume_drawing(self, state_dict: dict[str, Any], seen: int) -> int:
        """Restore the dataset's draws; return the number of batches seen in the epoch that is now current."""
        goes_on = self.dataset.resume(state_dict, seen > 0)
        if not self.dataset.batch_counts:
            self._frozen_batches = None
        if goes_on:
            return seen
        self.epoch, self._frozen_batches = self.epoch + 1, None
        return 0

    def next_epoch_itr(self, *args: Any, **kwargs: Any) -> iterators.CountingIterator:
        """Return this process's batches: the rest of a resumed epoch, or the whole next one."""
        if self._next_epoch_itr is None:
            self._begin_after(0, self.num_shards)
        return super().next_epoch_itr(*args, **kwargs)

    def _get_iterator_for_epoch(self, *args: Any, **kwargs: Any) -> iterators.CountingIterator:
        rest = super()._get_iterator_for_epoch(*args, **kwargs)
        rest.n += self._first
        rest.total += self._first
        return rest

    def ordered_batches(self, epoch: int, fix_batches_to_gpus: bool, shuffle: bool) -> list[Any]:
        """Return this process's share of the remaining batches, in fairseq's order, equally many in each process."""
        batches = list(self.frozen_batches)
        if shuffle:
            counts = self.dataset.batch_counts if isinstance(self.dataset, ResumesDraws) else [len(batches)]
            batches = shuffled(batches, self.seed + epoch, self._group if self.grouped_shuffling else 1, counts)
        if batches and self._batches_before >= len(batches):
            raise UserError(
                f"The checkpoint's position in epoch {epoch} must be below its {len(batches)} batches, but is "
                f"{self._batches_before}: data or batch sizes have changed; start again with `--reset-dataloader`."
            )
        rest = batches[self._batches_before :]
        return list(iterators.ShardedIterator(rest, self.num_shards, self.shard_id, fill_value=[]))


def shuffled(batches: list[Any], seed: int, group: int, counts: Sequence[int]) -> list[Any]:
    """Return the batches shuffled as by fairseq: in groups, each part of an epoch separately; incomplete groups go."""
    found: list[Any] = []
    with data_utils.numpy_seed(seed):
        for end, count in zip(itertools.accumulate(counts), counts, strict=True):
            starts = range(end - count, end - group + 1, group)
            groups = [batches[start : start + group] for start in starts]
            np.random.shuffle(groups)
            found += itertools.chain.from_iterable(groups)
    return found
