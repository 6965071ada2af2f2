"""Figures of a validation over all ranks.

These are losses of tasks and groups, expert tokens, source weights and gates.

A validation batch holds one task. Its sums go into the logging output under the task's name, with
zeros for all others: fairseq adds them over ranks, which must have the same keys and types.
"""

import itertools
import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from fairseq import utils
from fairseq.logging import metrics
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fairseq_mtmoe.core.errors import raise_invalid
from fairseq_mtmoe.moe import Gate, MixtureWeights, MoELayer, Routing, Tokens
from fairseq_mtmoe.report.routing import RECENT
from fairseq_mtmoe.slots import adapter_blocks, expert_layers
from fairseq_mtmoe.slots.slot import unwrapped

SUMS = ("loss", "nll_loss", "sample_size", "ntokens")


@dataclass(frozen=True)
class Group:
    """Tasks with a common average, such as a tier.

    A single task is a group of its name.
    """

    name: str
    tasks: tuple[str, ...]


def refuse_training_subset(options: Mapping[str, Any], train_subset: str) -> None:
    """Raise a `UserError` if a training would validate its own data.

    This would change its epoch. options: those that differ from the defaults.
    """
    subsets = options.get("valid_subset", "valid")
    if train_subset in subsets.split(",") and not options.get("disable_validation"):
        raise_invalid(
            "--valid-subset", f"other subsets than --train-subset {train_subset}", subsets
        )


def add_task_sums(logging_output: dict[str, Any], task: str, tasks: Iterable[str]) -> None:
    """Add the batch's sums under the name of `task`, and zeros under all others."""
    for name in SUMS:
        value = logging_output.get(name, logging_output.get("loss"))
        zero = torch.zeros_like(value) if isinstance(value, Tensor) else 0
        for other in tasks:
            logging_output[f"{other}_{name}"] = value if other == task else zero


def log_groups(logging_outputs: Sequence[Mapping[str, Any]], groups: Iterable[Group]) -> None:
    """Log each group's loss, nll_loss (base 2) and ppl over all tokens of its tasks."""
    for group in groups:
        sums: dict[str, Any] = dict.fromkeys(SUMS, 0)
        for log, task, name in itertools.product(logging_outputs, group.tasks, SUMS):
            sums[name] += log.get(f"{task}_{name}", 0)
        if not sums["sample_size"] or not sums["ntokens"]:
            continue
        loss = sums["loss"] / sums["sample_size"] / math.log(2)
        nll_loss = sums["nll_loss"] / sums["ntokens"] / math.log(2)
        key = f"{group.name}_nll_loss"
        metrics.log_scalar(f"{group.name}_loss", loss, sums["sample_size"], priority=1000, round=3)
        metrics.log_scalar(key, nll_loss, sums["ntokens"], priority=1000, round=3)
        metrics.log_derived(
            f"{group.name}_ppl", lambda meters, key=key: utils.get_perplexity(meters[key].avg), 1000
        )


def plain_numbers(log: Mapping[str, Any]) -> dict[str, Any]:
    """Return a logging output with numbers for scalars, copied together per type."""
    numbers = dict(log)
    same_type: defaultdict[Any, dict[str, Tensor]] = defaultdict(dict)
    for key, value in log.items():
        if isinstance(value, Tensor) and value.dim() == 0:
            same_type[value.dtype, value.device][key] = value
    for scalars in same_type.values():
        numbers |= zip(scalars, torch.stack(list(scalars.values())).tolist(), strict=True)
    return numbers


def group_values(meters: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """Return a group's unrounded loss, nll_loss, ppl and tokens.

    prefix: the group's name and `_`, or "" for all data.
    """
    loss = meters[f"{prefix}loss"]
    nll_loss = meters.get(f"{prefix}nll_loss", loss)
    bits = float(nll_loss.avg)
    ppl = 2.0**bits if bits < 1000 else math.inf
    return {"loss": float(loss.avg), "nll_loss": bits, "ppl": ppl, "tokens": int(nll_loss.count)}


def _mixtures(model: nn.Module) -> dict[str, MixtureWeights]:
    """Return the records of source weights by the dotted paths of their blocks."""
    mixtures = {}
    for path, block in adapter_blocks(model).items():
        if block.mixture.recorded_weights is not None:
            mixtures[path] = block.mixture.recorded_weights
    return mixtures


def _records(model: nn.Module) -> list[Any]:
    loads = [layer.load for layer in expert_layers(model).values()]
    return [*loads, *_mixtures(model).values()]


def set_counting(model: nn.Module, enabled: bool) -> None:
    """Start (from zero) or stop the counts of expert tokens and source weights."""
    for record in _records(model):
        if enabled:
            record.reset()
        record.enabled = enabled


@contextmanager
def uncounted(model: nn.Module, *more: Any) -> Iterator[None]:
    """Pause a model's records, and `more` objects with a flag `enabled`."""
    enabled = [record for record in (*_records(model), *more) if record.enabled]
    try:
        for record in enabled:
            record.enabled = False
        yield
    finally:
        for record in enabled:
            record.enabled = True


def _summed(total: Tensor) -> Tensor:
    """Add a tensor of all ranks in place."""
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(total)
    return total


def expert_counts(model: nn.Module) -> dict[str, list[list[int]]]:
    """Return the counted tokens of all ranks by layer, task and expert."""
    counts = {}
    for path, layer in expert_layers(model).items():
        total = layer.load.counts.to(next(layer.parameters()).device, copy=True)
        counts[path] = _summed(total).tolist()
    return counts


def mixture_weights(model: nn.Module) -> dict[str, list[float]]:
    """Return each source's mean weight over the counted sentences, by layer.

    The sentences are those of all ranks.
    """
    weights = {}
    for path, seen in _mixtures(model).items():
        seen.sums = _summed(seen.sums.to(next(model.parameters()).device))
        weights[path] = seen.mean().tolist()
    return weights


class GateMovement:
    """Compares the gates' current and first weights on a validation's tokens."""

    def __init__(self) -> None:
        self.since: int | None = None  # number of updates when the first weights were stored
        # Figures of the last validations, by layer.
        self.latest: deque[dict[str, dict[str, float]]] = deque(maxlen=RECENT)
        self.enabled = True  # off while a validation translates
        self._start: dict[str, Tensor] = {}
        # By layer: the number of tokens whose expert changed, and of all tokens.
        self._counts: dict[str, Tensor] = {}
        self._hooks: list[RemovableHandle] = []

    def begin(self, model: nn.Module, update: int) -> None:
        """Store the current weights as the first ones, unless these gates have some."""
        layers = _learned(model)
        if all(self._knows(path, layer) for path, layer in layers.items()):
            return
        self.since = update
        self._start = {}
        for path, layer in layers.items():
            self._start[path] = layer.gate.weight.detach().clone()

    def _knows(self, path: str, layer: MoELayer) -> bool:
        """Return whether a layer's first weights are known, and of its shape."""
        return path in self._start and self._start[path].shape == layer.gate.weight.shape

    def watch(self, model: nn.Module) -> None:
        """Start to compare the experts of tokens, from zero."""
        self.rest()
        for path, layer in _learned(model).items():
            if self._knows(path, layer):
                device = layer.gate.weight.device
                self._start[path] = self._start[path].to(device)
                self._counts[path] = torch.zeros(2, device=device)
                self._hooks.append(layer.gate.register_forward_hook(partial(self._compare, path)))

    def rest(self) -> None:
        """Stop comparing."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._counts = {}

    @torch.no_grad()
    def _compare(self, path: str, gate: Gate, inputs: tuple[Any, ...], routing: Routing) -> None:
        if not self.enabled:
            return
        hidden_TH, task_B, padding_T, *_ = inputs
        with torch.autocast(hidden_TH.device.type, enabled=False):
            tokens = Tokens(hidden_TH.float(), task_B, padding_T)
            then_T = gate.scores(self._start[path], tokens).argmax(1)
            now_T = gate.scores(gate.weight, tokens).argmax(1)
        real_T = routing.expert_T < gate.num_experts
        self._counts[path] += torch.stack([(then_T != now_T) & real_T, real_T]).sum(1)

    def figures(self, model: nn.Module) -> dict[str, dict[str, float]]:
        """Return the figures of each layer, and stop comparing; a collective call.

        `blend`; `moved`: the distance from the first weights divided by their norm; `changed`:
        the fraction of tokens whose expert changed.
        """
        layers: dict[str, dict[str, float]] = {}
        for path, layer in _learned(model).items():
            figures = {}
            if layer.blend is not None:
                figures["blend"] = float(layer.blend.detach())
            if path in self._counts:
                start = self._start[path].float()
                now = layer.gate.weight.detach().float()
                changed, tokens = _summed(self._counts[path]).tolist()
                figures |= {
                    "moved": float((now - start).norm() / start.norm()),
                    "changed": changed / max(tokens, 1),
                }
            layers[path] = figures
        self.rest()
        self.latest.append(layers)
        return layers

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "since": self.since,
            "start": {path: weight.cpu() for path, weight in self._start.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a checkpoint's state."""
        self.since = state["since"]
        self._start = dict(state["start"])


def _learned(model: nn.Module) -> dict[str, MoELayer]:
    layers = expert_layers(unwrapped(model))
    return {path: layer for path, layer in layers.items() if layer.gate.is_learned}
