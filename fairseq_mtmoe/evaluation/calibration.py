"""Prices for a checkpoint that was trained without them: what its run would have kept had its weights stood still.

The model takes the run's own training steps, with its batches and its dropout, but without gradients and updates: after
the batches of each update the running means of prices move, as in training. A moving average of the weights has scores
of its own, and gets prices of its own.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from fairseq import tasks, utils
from fairseq.data import Dictionary
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask
from torch import Tensor

from fairseq_mtmoe.checkpoints import rebuild
from fairseq_mtmoe.checkpoints.assemble import load_mapped
from fairseq_mtmoe.checkpoints.prices import prices_of, put_prices, without_prices
from fairseq_mtmoe.checkpoints.sharding import State, count_experts
from fairseq_mtmoe.data.translation.recorded_sizes import with_shards
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.evaluation import stored
from fairseq_mtmoe.evaluation.training_batches import Samples, TrainingBatches, option
from fairseq_mtmoe.moe import BaseGate, MoELayer, remember_prices, running_prices
from fairseq_mtmoe.moe.gates import base_gates
from fairseq_mtmoe.protocols import NamesTasks

Advance = Callable[[int, int], None]

_LOOKED_AT = 8  # updates: the last one of an epoch may have hardly a token
_NO_OPTIMIZER = SimpleNamespace(backward=lambda loss: None)  # what a training step ends with


@dataclass(frozen=True)
class LayerPrices:
    """What calibration gave to one layer.

    Attributes:
        layer: its block's place in the model, `decoder.layers.3` for example.
        lowest, highest: of its prices, whose mean is 0, in units of the scores.
        greedy_load, load: the tokens of the fullest expert as a multiple of the mean, in evaluation by scores alone and
            at these prices, on the batches of a few updates that the prices do not know.
    """

    layer: str
    lowest: float
    highest: float
    greedy_load: float
    load: float


@dataclass(frozen=True)
class Calibrated:
    """A checkpoint with new prices, for `copying.save_with_experts`, and what they are like."""

    state: State
    layers: list[LayerPrices]


def calibrate(
    checkpoint: str,
    data: str,
    updates: int,
    max_tokens: int | None = None,
    cpu: bool = False,
    advance: Advance = lambda done, total: None,
) -> Calibrated:
    """Give a checkpoint the prices that so many further updates would leave, did they not change its weights.

    Args:
        checkpoint: whole or in parts; it is left as it is.
        data: the data directory, as fairseq takes it.
        updates: at least 1.
        max_tokens: of a batch, in the place of the run's.
        cpu: whether to leave a GPU alone.
        advance: is called after each update with how many there were and how many there will be.

    Raises:
        UserError: the checkpoint is missing or damaged, not of a translation model with BASE layers, or does not fit
            the data; or the data is missing or damaged.
    """
    # Opened twice, as it is in its file and as fairseq upgrades it; whether it was the same is for the caller to see.
    original = load_mapped(stored.existing(checkpoint))
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
    """The run of a checkpoint: its model, without prices, its task on some data, and its criterion."""

    def __init__(self, path: str, state: dict[str, Any], data: str, max_tokens: int | None, use_cuda: bool) -> None:
        self._path, self._data, self._max_tokens, self._use_cuda = path, with_shards(data), max_tokens, use_cuda
        if not count_experts(state["model"]):
            raise self._without_layers()
        self._settings, self._cfg = _training_settings(state, path, self._data), state["cfg"]
        self._task_state = state.get("task_state") or {}
        self._place = (state.get("extra_state") or {}).get("train_iterator") or {}
        self._num_updates = (state.get("optimizer_history") or [{}])[-1].get("num_updates", 0)
        self._task = self._new_task()
        self._check_data()
        self.model = self._built(state)
        self._criterion = self._task.build_criterion(self._cfg.criterion)

    def price(self, updates: int, advance: Callable[[], None]) -> Samples:
        """Let the model's prices be those of so many updates; returns the batches of the next few."""
        before, self._task = self._task, self._new_task()
        if isinstance(before, NamesTasks):
            self._task.task_names = before.task_names  # the model's
        drawn = TrainingBatches(
            self._task, self._cfg, self.model, self._place, self._num_updates, self._max_tokens
        ).updates()
        seed, prices = option(self._cfg, "common", "seed"), running_prices(self.model)
        with torch.no_grad(), self._naming_missing_files():
            for number, samples in itertools.islice(drawn, updates):
                utils.set_torch_seed(seed + number)
                for sample in self._prepared(samples):
                    self._task.train_step(sample, self.model, self._criterion, _NO_OPTIMIZER, number)
                remember_prices(prices)
                advance()
            return [sample for _, samples in itertools.islice(drawn, _LOOKED_AT) for sample in samples]

    def prices(self) -> dict[str, Tensor]:
        """The model's, by key, on the CPU."""
        return {key: value.cpu().clone() for key, value in prices_of(self.model.state_dict()).items()}

    def look_at(self, samples: Samples) -> list[LayerPrices]:
        """What the prices are like, and what they do to some batches."""
        layers = {
            name.removesuffix(".moe"): (module, module.gate)
            for name, module in self.model.named_modules()
            if isinstance(module, MoELayer) and isinstance(module.gate, BaseGate)
        }
        greedy, priced = (self._loads(list(layers.values()), way, samples) for way in ("greedy", "prices"))
        found = []
        for (name, (_, gate)), *loads in zip(layers.items(), greedy, priced, strict=True):
            mean_N = gate.prices.mean
            found.append(LayerPrices(name, mean_N.min().item(), mean_N.max().item(), *loads))
        return found

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

    def _new_task(self) -> Any:
        with self._naming_missing_files():
            task = tasks.setup_task(copy.deepcopy(self._settings))
        if self._task_state:
            task.load_state_dict(self._task_state)
        return task

    def _check_data(self) -> None:
        """Ours does it itself when it loads data; stock fairseq's tasks take any number for an id."""
        task, subset = self._task, option(self._cfg, "dataset", "train_subset")
        if not type(task).__module__.startswith("fairseq."):
            return
        for pair, dictionaries in _dictionaries_of_pairs(task).items():
            folders = utils.split_paths(self._data)
            found = [stored.check_pair(folder, subset, pair, dictionaries) for folder in folders]
            if not any(found):
                raise self._missing(f"{subset}.{pair} is not there")

    def _built(self, state: dict[str, Any]) -> Any:
        # Without a word on the prices that are still to come.
        stored.change(self._cfg.model, base_evaluation="greedy")
        model = stored.build_model(self._task, {**state, "model": without_prices(state["model"])}, self._path)
        if not base_gates(model):
            raise self._without_layers()
        common = {name: option(self._cfg, "common", name) for name in ("bf16", "fp16")}
        if common["bf16"]:
            model.bfloat16()
        elif common["fp16"] and self._use_cuda:  # on a CPU it would take long, and gates compute in float32 anyway
            model.half()
        return model.cuda() if self._use_cuda else model

    def _without_layers(self) -> UserError:
        return UserError(f"`{self._path}` must be of a model with BASE layers to be given prices, but has none.")

    @contextmanager
    def _naming_missing_files(self) -> Iterator[None]:
        """Stock fairseq's word for data that is not there."""
        try:
            yield
        except FileNotFoundError as error:
            raise self._missing(str(error)) from error

    def _missing(self, reason: str) -> UserError:
        return UserError(f"`{self._data}` must hold the training data of `{self._path}`, but: {reason}.")


def _dictionaries_of_pairs(task: Any) -> dict[str, tuple[Dictionary, Dictionary]]:
    """The language pairs of one of fairseq's own tasks, each with its source's and its target's dictionary."""
    if isinstance(task, TranslationMultiSimpleEpochTask):
        sides = {pair: pair.split("-") for pair in task.lang_pairs}
        return {pair: (task.dicts[source], task.dicts[target]) for pair, (source, target) in sides.items()}
    return {f"{task.cfg.source_lang}-{task.cfg.target_lang}": (task.source_dictionary, task.target_dictionary)}


def _training_settings(state: dict[str, Any], path: str, data: str) -> Any:
    """Those of the checkpoint's task, on other data; what it read from files of the run, as the task remembers it."""
    settings = stored.task_settings(state, path)
    rebuild.check_name(path, state, "criterion")
    stored.change(settings, data=data)
    remembered = state.get("task_state") or {}
    if "lang_pairs" in remembered and not stored.setting(settings, "extra_lang_pairs"):
        stored.change(settings, lang_pairs=",".join(remembered["lang_pairs"]))
    if "langs" in remembered:
        stored.change(settings, langs=",".join(remembered["langs"]), lang_dict=None)
    if stored.setting(settings, "eval_bleu"):
        stored.change(settings, eval_bleu=False)
    return settings
