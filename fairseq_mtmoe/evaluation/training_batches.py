"""The batches that a checkpoint's run would train on, from the beginning of its epoch on, in one process.

Task, sampling, sizes, seed and order are the run's, as fairseq's trainer asks for them. An update has as many batches
as in one of the run's processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fairseq import utils
from fairseq.data import iterators
from fairseq.dataclass.configs import (
    CommonConfig,
    DatasetConfig,
    DistributedTrainingConfig,
    EMAConfig,
    OptimizationConfig,
)

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.protocols import SamplesByUpdates

Samples = list[dict[str, Any]]

_DRAWN = "drawn_in_epoch"  # what stock tasks made their batches for: see training/epoch_position.py
_DEFAULTS = {
    "common": CommonConfig(),
    "dataset": DatasetConfig(),
    "distributed_training": DistributedTrainingConfig(),
    "ema": EMAConfig(),
    "optimization": OptimizationConfig(),
}


def option(cfg: Mapping[str, Any], group: str, name: str) -> Any:
    """An option of a checkpoint's run; fairseq's default where its version did not have it."""
    return (cfg.get(group) or {}).get(name, getattr(_DEFAULTS[group], name))


class TrainingBatches:
    """Draws the batches of one update after the other, epoch after epoch.

    Args:
        task: that of the run, on the data to draw from.
        cfg: the run's options, as its checkpoint has them.
        model: whose positions limit the sentences.
        place: the checkpoint's in the data: `extra_state["train_iterator"]`.
        num_updates: how many were made before.
        max_tokens: of a batch, in the place of the run's.
    """

    def __init__(
        self, task: Any, cfg: Any, model: Any, place: Mapping[str, Any], num_updates: int, max_tokens: int | None = None
    ) -> None:
        self._task, self._cfg = task, cfg
        self._subset = self._option("dataset", "train_subset")
        self._max_tokens = max_tokens or self._option("dataset", "max_tokens")
        self._max_positions = utils.resolve_max_positions(task.max_positions(), model.max_positions(), self._max_tokens)
        self._num_updates = num_updates
        self._place = _beginning(place)

    def updates(self) -> Iterator[tuple[int, Samples]]:
        """The number of updates before each one, and its batches.

        Raises:
            UserError: the data is damaged or of another dictionary, or no sentence is short enough.
        """
        epoch = self._epoch(self._place.get(_DRAWN) or self._place["epoch"], load=True)
        _ = epoch.frozen_batches  # before it learns which epoch it is for
        epoch.load_state_dict(self._place)
        while True:
            before = self._num_updates
            for samples in self._groups(epoch):
                yield self._num_updates, samples
                self._num_updates += 1
            if self._num_updates == before:
                raise UserError(
                    f"The `{self._subset}` data must have batches for an update, but epoch {epoch.epoch} has none."
                )
            epoch = self._epoch(epoch.next_epoch_idx, load=self._task.has_sharded_data(self._subset))

    def _option(self, group: str, name: str) -> Any:
        return option(self._cfg, group, name)

    def _epoch(self, number: int, load: bool) -> Any:
        """As the trainer's `get_train_iterator`."""
        if isinstance(self._task, SamplesByUpdates):
            self._task.num_updates = self._num_updates
        if load:
            self._task.load_dataset(self._subset, epoch=number, combine=True)
        seed = self._option("common", "seed")
        return self._task.get_batch_iterator(
            dataset=self._task.dataset(self._subset),
            max_tokens=self._max_tokens,
            max_sentences=self._option("dataset", "batch_size"),
            max_positions=self._max_positions,
            ignore_invalid_inputs=True,
            required_batch_size_multiple=self._option("dataset", "required_batch_size_multiple"),
            seed=seed + number if self._option("dataset", "update_ordered_indices_seed") else seed,
            epoch=number,
            disable_iterator_cache=self._task.has_sharded_data(self._subset),
            skip_remainder_batch=self._option("optimization", "skip_remainder_batch"),
            grouped_shuffling=self._option("dataset", "grouped_shuffling"),
            update_epoch_batch_itr=self._option("dataset", "update_epoch_batch_itr"),
        )

    def _groups(self, epoch: Any) -> Iterator[Samples]:
        """As fairseq's training loop."""
        batches = epoch.next_epoch_itr(
            fix_batches_to_gpus=self._option("distributed_training", "fix_batches_to_gpus"),
            shuffle=epoch.next_epoch_idx > self._option("dataset", "curriculum"),
        )
        freqs = self._option("optimization", "update_freq")
        freq = freqs[min(epoch.epoch, len(freqs)) - 1]
        whole_only = self._option("optimization", "skip_remainder_batch")
        yield from iterators.GroupedIterator(batches, freq, skip_remainder_batch=whole_only)


def _beginning(place: Mapping[str, Any]) -> dict[str, Any]:
    """The beginning of the epoch that a place is in; what was remembered of the draws up to there stays."""
    epoch = place.get("epoch")
    if not isinstance(epoch, int) or epoch < 1:
        return {"epoch": 1}
    seen = {name: 0 for name in ("iterations_in_epoch", "batches_in_epoch") if name in place}
    return {**place, **seen}
