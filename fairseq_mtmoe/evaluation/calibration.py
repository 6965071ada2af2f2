"""Compute running prices for a checkpoint that was trained without them.

They are the prices that its run would have kept if its weights had stood still. The model takes the run's own training
steps, with its batches and dropout, but without gradients. After each update the running means of prices move, as in
training. A moving average of the weights gets its own prices.
"""

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from fairseq import tasks, utils
from fairseq.data import Dictionary, iterators
from fairseq.dataclass.configs import CommonConfig, DatasetConfig, DistributedTrainingConfig, OptimizationConfig
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask
from torch import Tensor

from fairseq_mtmoe.checkpoints import rebuild
from fairseq_mtmoe.checkpoints.assemble import load_shared_part
from fairseq_mtmoe.checkpoints.key_maps import prices_of, put_prices, without_prices
from fairseq_mtmoe.checkpoints.sharding import State, count_experts
from fairseq_mtmoe.data.translation.recorded_sizes import with_shards
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.evaluation import stored
from fairseq_mtmoe.moe import BaseGate, MoELayer, remember_prices, running_prices
from fairseq_mtmoe.moe.gates import base_gates
from fairseq_mtmoe.protocols import FollowsUpdates, NamesTasks

Samples = list[dict[str, Any]]

_LOOKED_AT = 8  # updates: the last one of an epoch may have few tokens
_NO_OPTIMIZER = SimpleNamespace(backward=lambda loss: None)  # a training step's last call
_DRAWN = "drawn_in_epoch"  # epoch for which stock tasks made batches: see `training/resuming.py`
_DEFAULTS = {
    "common": CommonConfig(),
    "dataset": DatasetConfig(),
    "distributed_training": DistributedTrainingConfig(),
    "optimization": OptimizationConfig(),
}


@dataclass(frozen=True)
class LayerPrices:
    """Prices of one `layer`: their range around the mean 0, in units of the scores."""

    layer: str
    lowest: float
    highest: float
    greedy_load: float  # the fullest expert's tokens as a multiple of the mean, by scores alone,
    load: float  # and at these prices


@dataclass(frozen=True)
class Calibrated:
    """A checkpoint with new prices, for `rewriting.save_with_experts`, and a summary."""

    state: State
    layers: list[LayerPrices]


def calibrate(
    checkpoint: str, data: str, updates: int, max_tokens: int | None = None, cpu: bool = False,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> Calibrated:  # fmt: skip
    """Return a checkpoint with the prices of `updates` further updates.

    `advance` is called after each update with the number done and the total.
    """
    # Open it twice: as it is in its file, and as fairseq upgrades it. The caller checks that it did not change.
    original = load_shared_part(stored.existing(checkpoint), mapped=True)
    state = stored.read(checkpoint)
    run = _Run(checkpoint, state, data, max_tokens, torch.cuda.is_available() and not cpu)
    weights = (state.get("extra_state") or {}).get("ema") or None
    total, done = updates if weights is None else 2 * updates, itertools.count(1)

    def step() -> None:
        advance(next(done), total)

    following = run.price(updates, step)
    prices, layers = run.prices(), run.look_at(following)
    average = None
    if weights is not None:
        run.model.load_state_dict(without_prices(weights))
        run.price(updates, step)
        average = run.prices()
    return Calibrated(put_prices(original, prices, average), layers)


class _Run:
    """A checkpoint's run: its model without prices, task, data and criterion."""

    def __init__(self, path: str, state: dict[str, Any], data: str, max_tokens: int | None, use_cuda: bool) -> None:
        self._path, self._data, self._use_cuda = path, with_shards(data), use_cuda
        if not count_experts(state):
            raise self._without_layers()
        self._settings, self._cfg = _training_settings(state, path, self._data), state["cfg"]
        self._subset = self._option("dataset", "train_subset")
        self._max_tokens = max_tokens or self._option("dataset", "max_tokens")
        self._task_state = state.get("task_state") or {}
        self._position = (state.get("extra_state") or {}).get("train_iterator") or {}
        self._num_updates = (state.get("optimizer_history") or [{}])[-1].get("num_updates", 0)
        self._task = self._new_task()
        self._check_data()
        self.model = self._built(state)
        self._criterion = self._task.build_criterion(self._cfg.criterion)

    def price(self, updates: int, advance: Callable[[], None]) -> Samples:
        """Set the prices by `updates` updates; return the next few updates' batches."""
        before, self._task = self._task, self._new_task()
        if isinstance(before, NamesTasks):
            self._task.task_names = before.task_names  # as the model's
        drawn = self._updates()
        seed, prices = self._option("common", "seed"), running_prices(self.model)
        with torch.no_grad(), self._naming_missing_files():
            for number, samples in itertools.islice(drawn, updates):
                utils.set_torch_seed(seed + number)
                for sample in self._prepared(samples):
                    self._task.train_step(sample, self.model, self._criterion, _NO_OPTIMIZER, number)
                remember_prices(prices)
                advance()
            return [sample for _, samples in itertools.islice(drawn, _LOOKED_AT) for sample in samples]

    def prices(self) -> dict[str, Tensor]:
        """Return the model's running prices on the CPU."""
        return {key: value.cpu().clone() for key, value in prices_of(self.model.state_dict()).items()}

    def look_at(self, samples: Samples) -> list[LayerPrices]:
        """Return the range of prices and the experts' loads in each BASE layer."""
        layers = {
            name.removesuffix(".moe"): (module, module.gate)
            for name, module in self.model.named_modules()
            if isinstance(module, MoELayer) and isinstance(module.gate, BaseGate)
        }
        greedy, priced = (self._loads(list(layers.values()), way, samples) for way in ("greedy", "prices"))
        means = {name: gate.prices.mean for name, (_, gate) in layers.items()}
        found = zip(means.items(), greedy, priced, strict=True)
        return [LayerPrices(name, mean_N.min().item(), mean_N.max().item(), *loads) for (name, mean_N), *loads in found]

    def _loads(self, layers: list[tuple[MoELayer, BaseGate]], evaluation: str, samples: Samples) -> list[float]:
        for layer, gate in layers:
            gate.routing = replace(gate.routing, evaluation=evaluation)
            layer.load.reset()
            layer.load.enabled = True
        for sample in self._prepared(samples):
            self._task.valid_step(sample, self.model, self._criterion)
        counts = [layer.load.counts.sum(0).float() for layer, _ in layers]
        for layer, _ in layers:
            layer.load.enabled = False
        return [float(count_N.max() / count_N.mean()) for count_N in counts]

    def _prepared(self, samples: Samples) -> Samples:
        return [utils.move_to_cuda(sample) if self._use_cuda else sample for sample in samples if sample]

    def _option(self, group: str, name: str) -> Any:
        """Return an option of the run; fairseq's default if its version lacked it."""
        return (self._cfg.get(group) or {}).get(name, getattr(_DEFAULTS[group], name))

    def _updates(self) -> Iterator[tuple[int, Samples]]:
        """Yield each update's number and batches, from the start of the run's epoch."""
        position, number = _beginning(self._position), self._num_updates
        epoch = self._epoch(position.get(_DRAWN) or position["epoch"], number, load=True)
        _ = epoch.frozen_batches  # cache them before the epoch is set
        epoch.load_state_dict(position)
        while True:
            before = number
            for samples in self._groups(epoch):
                yield number, samples
                number += 1
            if number == before:
                raise UserError(
                    f"The `{self._subset}` data must have batches for an update, but epoch {epoch.epoch} has none."
                )
            epoch = self._epoch(epoch.next_epoch_idx, number, load=self._task.has_sharded_data(self._subset))

    def _epoch(self, number: int, num_updates: int, load: bool) -> Any:
        """Return an epoch's iterator, as the trainer's `get_train_iterator` does."""
        task = self._task
        if isinstance(task, FollowsUpdates):
            task.num_updates = num_updates
        if load:
            task.load_dataset(self._subset, epoch=number, combine=True)
        seed = self._option("common", "seed")
        positions = utils.resolve_max_positions(task.max_positions(), self.model.max_positions(), self._max_tokens)
        return task.get_batch_iterator(
            dataset=task.dataset(self._subset),
            max_tokens=self._max_tokens,
            max_sentences=self._option("dataset", "batch_size"),
            max_positions=positions,
            ignore_invalid_inputs=True,
            required_batch_size_multiple=self._option("dataset", "required_batch_size_multiple"),
            seed=seed + number if self._option("dataset", "update_ordered_indices_seed") else seed,
            epoch=number,
            disable_iterator_cache=task.has_sharded_data(self._subset),
            skip_remainder_batch=self._option("optimization", "skip_remainder_batch"),
            grouped_shuffling=self._option("dataset", "grouped_shuffling"),
            update_epoch_batch_itr=self._option("dataset", "update_epoch_batch_itr"),
        )

    def _groups(self, epoch: Any) -> Iterator[Samples]:
        batches = epoch.next_epoch_itr(
            fix_batches_to_gpus=self._option("distributed_training", "fix_batches_to_gpus"),
            shuffle=epoch.next_epoch_idx > self._option("dataset", "curriculum"),
        )
        freqs = self._option("optimization", "update_freq")
        freq = freqs[min(epoch.epoch, len(freqs)) - 1]
        whole_only = self._option("optimization", "skip_remainder_batch")
        yield from iterators.GroupedIterator(batches, freq, skip_remainder_batch=whole_only)

    def _new_task(self) -> Any:
        with self._naming_missing_files():
            task = tasks.setup_task(copy.deepcopy(self._settings))
        if self._task_state:
            task.load_state_dict(self._task_state)
        return task

    def _check_data(self) -> None:
        """Check ids of stock fairseq's tasks, which accept any; ours check when they load."""
        if not type(self._task).__module__.startswith("fairseq."):
            return
        for pair, dictionaries in _dictionaries_of_pairs(self._task).items():
            folders = utils.split_paths(self._data)
            found = [stored.check_pair(folder, self._subset, pair, dictionaries) for folder in folders]
            if not any(found):
                raise self._missing(f"{self._subset}.{pair} is missing")

    def _built(self, state: dict[str, Any]) -> Any:
        # "greedy" avoids a warning about missing prices.
        stored.change(self._cfg.model, base_evaluation="greedy")
        model = stored.build_model(self._task, {**state, "model": without_prices(state["model"])}, self._path)
        if not base_gates(model):
            raise self._without_layers()
        bf16, fp16 = self._option("common", "bf16"), self._option("common", "fp16")
        # Half precision is slow on a CPU, and gates compute in float32 anyway.
        return stored.placed(model, fp16 and not bf16 and self._use_cuda, bf16, self._use_cuda)

    def _without_layers(self) -> UserError:
        return UserError(f"`{self._path}` must be of a model with BASE layers to get prices, but has none.")

    @contextmanager
    def _naming_missing_files(self) -> Iterator[None]:
        """Turn stock fairseq's error about missing data into a `UserError`."""
        try:
            yield
        except FileNotFoundError as error:
            raise self._missing(str(error)) from error

    def _missing(self, reason: str) -> UserError:
        return UserError(f"`{self._data}` must hold the training data of `{self._path}`, but: {reason}.")


def _beginning(position: Mapping[str, Any]) -> dict[str, Any]:
    """Return the start of a position's epoch, with the saved state of earlier draws."""
    epoch = position.get("epoch")
    if not isinstance(epoch, int) or epoch < 1:
        return {"epoch": 1}
    seen = {name: 0 for name in ("iterations_in_epoch", "batches_in_epoch") if name in position}
    return {**position, **seen, "earlier": []}


def _dictionaries_of_pairs(task: Any) -> dict[str, tuple[Dictionary, Dictionary]]:
    """Return the pairs of one of fairseq's own tasks with both sides' dictionaries."""
    if isinstance(task, TranslationMultiSimpleEpochTask):
        sides = {pair: pair.split("-") for pair in task.lang_pairs}
        return {pair: (task.dicts[source], task.dicts[target]) for pair, (source, target) in sides.items()}
    return {f"{task.cfg.source_lang}-{task.cfg.target_lang}": (task.source_dictionary, task.target_dictionary)}


def _training_settings(state: dict[str, Any], path: str, data: str) -> Any:
    """Return the task's settings for other data; the task's state replaces files."""
    settings = stored.task_settings(state, path)
    rebuild.check_name(path, state, "criterion")
    stored.change(settings, data=data)
    stored.remember(settings, state.get("task_state") or {})
    return settings
