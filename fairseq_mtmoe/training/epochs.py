"""The position in an epoch, counted in batches of all processes.

Any number of processes can therefore resume from it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from fairseq.data import data_utils, iterators

from fairseq_mtmoe.core.errors import UserError, flag

logger = logging.getLogger(__name__)

Limits = Mapping[str, int | None]  # of a batch: the options `LIMITS`

LIMITS = ("max_tokens", "batch_size", "required_batch_size_multiple")
# Fields of a position that say which sentences were seen
_SEEN = ("batches_in_epoch", "group_size", "batch_limits")


class SharedEpochIterator(iterators.EpochBatchIterator):
    """fairseq's epoch iterator, resumable with other processes and limits.

    The limits are those of a batch; `--update-freq` may change, too.
    The state is fairseq's with `batches_in_epoch`, the number that all processes have seen; `seed`,
    which shuffled them; `batch_limits`, by which they were made; and `sampling`, the dataset's
    saved draws. If the limits changed within the epoch, `earlier` has these numbers for each of the
    limits before. A state of fairseq's own resumes with its number of processes.

    A dataset of sampled examples has the methods `saved_draws` and `resume`, and `batch_counts`,
    the number of batches in each separately shuffled part of the epoch.
    """

    epoch: int
    seed: int
    _frozen_batches: Any

    def __init__(
        self,
        *,
        update_freq: Sequence[int] = (1,),
        skip_remainder_batch: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)  # which would leave out the last batch, complete or not
        self._begin(update_freq, skip_remainder_batch)

    @classmethod
    def continuing(cls, iterator: Any, update_freq: Sequence[int]) -> SharedEpochIterator:
        """Return an iterator over the epochs and batches of fairseq's own."""
        shared = cls.__new__(cls)
        shared.__dict__.update(vars(iterator))
        shared._begin(update_freq, iterator.skip_remainder_batch)
        shared._redraws = False
        return shared

    def _begin(self, update_freq: Sequence[int], only_complete: bool) -> None:
        self.update_freq = update_freq
        self._only_complete = only_complete  # whether incomplete updates are left out
        self._draws = hasattr(self.dataset, "saved_draws")
        # A resumed run of fairseq's tasks keeps the batches drawn before the epoch is set.
        self._redraws = True
        self.limits: Limits | None = None  # by which batches are made, if known
        # Returns the epoch's batches by other limits
        self.batches_by: Callable[[Limits], Sequence[Any]] | None = None
        self._earlier: list[Mapping[str, Any]] = []
        self._begin_after(0, self.num_shards)

    def _begin_after(self, batches: int, group: int) -> None:
        """Resume after `batches` of all processes.

        Grouped shuffling keeps `group` batches together.
        fairseq's training loop divides a process's batches by `--update-freq` and rounds up, at the
        position and at the epoch's end. In the middle of an update the two disagree, and the epoch
        would end too early or start again. So the count begins at `_first`, the start of the
        position's update.
        """
        self._batches_before, self._group = batches, group
        self._first = batches // self.num_shards // self._freq * self._freq

    @property
    def _freq(self) -> int:
        return self.update_freq[min(self.epoch, len(self.update_freq)) - 1]

    @property
    def iterations_in_epoch(self) -> int:
        """Return this process's number of batches seen in the epoch.

        It counts as if the split had never changed.
        """
        return int(
            self._batches_before // self.num_shards + super().iterations_in_epoch - self._first
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the position, for checkpoints."""
        state: dict[str, Any] = super().state_dict()
        seen = self._batches_before + (super().iterations_in_epoch - self._first) * self.num_shards
        state |= {"batches_in_epoch": seen, "earlier": self._earlier}
        if self.end_of_epoch():
            state |= {"batches_in_epoch": 0, "earlier": []}
        state["group_size"] = self._group
        state["seed"] = self.seed
        state["batch_limits"] = self.limits
        state["sampling"] = self.dataset.saved_draws(state["epoch"]) if self._draws else None
        return state

    def load_state_dict(self, state_dict: Any) -> None:
        """Go to a saved position (UserError: the epoch has no batches beyond it)."""
        iterations = state_dict.get("iterations_in_epoch", 0)
        seen = state_dict.get("batches_in_epoch", iterations * self.num_shards)
        earlier = list(state_dict.get("earlier", ()))
        if self.epoch != state_dict["epoch"]:
            drawn = self._frozen_batches
            self._go_to(state_dict["epoch"])
            if not self._redraws:
                self._frozen_batches = drawn
        if self._draws and state_dict.get("sampling") is not None:
            self._frozen_batches = None
            if not self.dataset.resume(state_dict, bool(seen or earlier)):
                self._go_to(self.epoch + 1)
                seen = 0
                earlier = []
        if seen and self._has_other_limits(state_dict):
            earlier.append({name: state_dict[name] for name in _SEEN})
            seen = 0
        self._next_epoch_itr = None
        self._earlier = earlier
        if not (seen or earlier):
            self._begin_after(0, self.num_shards)
            return
        before = self.seed
        self.seed = state_dict.get("seed", before)
        is_ordered_by_seed = not self._redraws  # the batches of fairseq's tasks
        if is_ordered_by_seed and self.seed != before and self.batches_by and self.limits:
            self._frozen_batches = tuple(self.batches_by(self.limits))
        self._begin_after(
            seen, state_dict.get("group_size", self.num_shards) if seen else self.num_shards
        )
        rest = self._get_iterator_for_epoch(self.epoch, state_dict.get("shuffle", True))
        if self._has_update(rest):
            self._next_epoch_itr = rest
        else:
            logger.warning(
                f"the rest of epoch {self.epoch} has no batches for an update, and is skipped"
            )
            self._go_to(self.epoch + 1)

    def _go_to(self, epoch: int) -> None:
        """Go to the beginning of an epoch."""
        self.epoch = epoch
        self._earlier = []
        self._begin_after(0, self.num_shards)
        if callable(self.batch_sampler):
            self._frozen_batches = None

    def _has_other_limits(self, state: Mapping[str, Any]) -> bool:
        """Return whether a state's batches were made by other limits; log a change."""
        before = state.get("batch_limits")
        if before is None or self.limits is None or before == self.limits:
            return False
        changed = [name for name in LIMITS if before[name] != self.limits[name]]
        changes = ", ".join(
            f"{flag(name)} was {before[name]} and is {self.limits[name]}" for name in changed
        )
        logger.warning(
            f"{changes}: new batches are made of the sentences of epoch {self.epoch} that were "
            "not seen"
        )
        return True

    def next_epoch_itr(self, *args: Any, **kwargs: Any) -> iterators.CountingIterator:
        """Return this process's batches of the rest of an epoch, or of the next one."""
        if self._next_epoch_itr is None:
            self._earlier = []
            self._begin_after(0, self.num_shards)
        batches = super().next_epoch_itr(*args, **kwargs)
        if not self._has_update(batches):
            raise UserError(
                f"Epoch {self.epoch} has too few batches for an update, {len(batches)} in each "
                "process: `--skip-remainder-batch` and `--grouped-shuffling` leave out the last "
                "ones; lower `--update-freq` or `--max-tokens`."
            )
        return batches

    def _has_update(self, batches: iterators.CountingIterator) -> bool:
        """Return whether these batches of the epoch make an update."""
        if self._only_complete:
            return bool(batches.total // self._freq > batches.n // self._freq)
        return bool(batches.has_next())

    def _get_iterator_for_epoch(self, *args: Any, **kwargs: Any) -> iterators.CountingIterator:
        rest = super()._get_iterator_for_epoch(*args, **kwargs)
        rest.n += self._first
        rest.total += self._first
        return rest

    def ordered_batches(self, epoch: int, fix_batches_to_gpus: bool, shuffle: bool) -> list[Any]:
        """Return this process's share of the remaining batches, in fairseq's order.

        Each process gets the same number.
        """
        parts = self._unseen(epoch, shuffle) if self._earlier else self._parts(self.frozen_batches)
        batches = self._in_order(parts, epoch, shuffle, self._group)
        if batches and self._batches_before >= len(batches):
            raise UserError(
                f"The checkpoint's position in epoch {epoch} must be below its {len(batches)} "
                f"batches, but is {self._batches_before}: data or batch sizes have changed; start "
                "again with `--reset-dataloader`."
            )
        rest = batches[self._batches_before :]
        if self._only_complete and not self.skip_remainder_batch:
            rest = rest[: len(rest) // self.num_shards * self.num_shards]
        return list(iterators.ShardedIterator(rest, self.num_shards, self.shard_id, fill_value=[]))

    def _parts(self, batches: Sequence[Any]) -> list[list[Any]]:
        """Return an epoch's batches in parts that are shuffled separately."""
        counts = self.dataset.batch_counts if self._draws else [len(batches)]
        remaining = iter(batches)
        return [list(itertools.islice(remaining, count)) for count in counts]

    def _in_order(
        self, parts: Sequence[list[Any]], epoch: int, shuffle: bool, group: int
    ) -> list[Any]:
        """Return the batches shuffled as by fairseq: in groups, each part separately.

        Incomplete groups are left out.
        """
        if not shuffle:
            return list(itertools.chain.from_iterable(parts))
        size = group if self.grouped_shuffling else 1
        batches: list[Any] = []
        with data_utils.numpy_seed(self.seed + epoch):
            for part in parts:
                groups = [
                    part[start : start + size] for start in range(0, len(part) - size + 1, size)
                ]
                np.random.shuffle(groups)
                batches += itertools.chain.from_iterable(groups)
        return batches

    def _unseen(self, epoch: int, shuffle: bool) -> list[list[Any]]:
        """Return batches of the epoch's sentences that were not seen under earlier limits."""
        assert self.limits is not None
        seen = np.zeros(0, dtype=np.int64)
        for position in self._earlier:
            parts = self._made_anew(position["batch_limits"], seen)
            order = self._in_order(parts, epoch, shuffle, position["group_size"])
            seen = np.concatenate([seen, *order[: position["batches_in_epoch"]]])
        return self._made_anew(self.limits, seen)

    def _made_anew(self, limits: Limits, seen: np.ndarray) -> list[list[Any]]:
        """Return each part's batches by some limits, without sentences that were seen.

        All batches are full.
        """
        assert self.batches_by is not None
        parts = self._parts(self.batches_by(limits))
        if not len(seen):
            return parts
        indices = [np.concatenate(part).astype(np.int64) for part in parts]
        unseen = [part[~np.isin(part, seen)] for part in indices]
        made: list[list[Any]] = []
        for part in unseen:
            batches: Any = []
            if len(part):
                batches = self.dataset.batch_by_size(part, *map(limits.get, LIMITS))
            made.append(list(batches))
        return made
