"""MT-Uncertainty sampling: a training step with the most uncertain candidates.

CA-MTL, §2.2 and algorithm 1. Candidates pass through the model as in evaluation: without
gradients or dropout, and expert layers record nothing. Where uncertainty is measured under
dropout, its random numbers depend on the candidates and the update alone. The step's own random
numbers do not change, also in a resumed run and with any number of processes.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.logging import metrics
from torch import Tensor, nn
from torch import distributed as dist

from fairseq_mtmoe.multitask.mixtures.candidates import (
    CANDIDATES,
    DROPOUT_PASS,
    INDEX,
    PASSES,
    Candidates,
)
from fairseq_mtmoe.multitask.mixtures.dataset import Batch, Item
from fairseq_mtmoe.multitask.sampling.candidates import most_uncertain
from fairseq_mtmoe.multitask.sampling.permutation import derive_key
from fairseq_mtmoe.slots import expert_layers

Measure = Callable[[Batch, nn.Module, bool], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class Selection:
    """The examples that a step trains on, and the candidates' uncertainties."""

    items: list[Item]  # in the candidates' order
    candidates: Candidates  # all candidates of the step
    relative_C: np.ndarray  # each candidate's entropy as a fraction of its maximum


@torch.no_grad()
def choose(sample: Batch, model: nn.Module, measure: Measure, update: int) -> Selection:
    """Return the most uncertain candidates of the step after `update` updates.

    `measure(batch, model, under_dropout)` returns the candidates' numbers (E,), their entropies
    H_i and the maxima of these. The model is left in training mode.
    """
    candidates: Candidates = sample[CANDIDATES]
    model.eval()
    passes = [measure(batch, model, False) for batch in sample.get(PASSES, ())]
    if DROPOUT_PASS in sample:
        task, example = candidates.items[0]
        with _dropout(model, seed=derive_key(update, task, example[INDEX]) >> 1):
            passes.append(measure(sample[DROPOUT_PASS], model, True))
    model.train()
    columns = [torch.cat(parts).double() for parts in zip(*passes, strict=True)]
    number_E, entropy_E, most_E = torch.stack(columns).cpu().numpy()  # one host synchronisation
    entropy_C, most_C = np.zeros((2, len(candidates.items)))
    index_E = number_E.astype(int)
    entropy_C[index_E] = entropy_E
    most_C[index_E] = most_E
    numbers = most_uncertain(entropy_C, most_C, candidates.task_C, candidates.count)
    relative_C = np.divide(entropy_C, most_C, out=np.zeros_like(entropy_C), where=most_C != 0)
    return Selection(candidates.examples(numbers.tolist()), candidates, relative_C)


@contextmanager
def _dropout(model: nn.Module, seed: int) -> Iterator[None]:
    """Enable dropout alone, with its own seed; other random numbers are not affected."""
    device = next(model.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        model.train()
        for layer in expert_layers(model).values():
            layer.gate.eval()
        yield


REPORT_EVERY = 50  # updates; also at every validation and save
# Keys of sums by task in a logging output.
DRAWN = "candidates"
TRAINED = "trained"
ENTROPY = "relative_entropy"
SUMS = (DRAWN, TRAINED, ENTROPY)


class SelectionRecord:
    """Statistics of a run's selection; `sizes` has each task's number of examples."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.names = list(sizes)
        self._keys = [f"{name}_{figure}" for figure in SUMS for name in sizes]
        self._seen = [np.zeros(size, dtype=bool) for size in sizes.values()]
        self._chosen: list[tuple[int, int]] = []  # by this rank for the current step
        # Chosen by this rank in completed updates, unknown to other ranks.
        self._ungathered: list[tuple[int, int]] = []
        self._sums = np.zeros((len(SUMS), len(sizes)))
        self._updates = 0  # number of updates in the sums

    def begin_step(self) -> None:
        """Discard the selection of a last step that made no update."""
        self._chosen = []

    def note(self, chosen: Selection, counts: bool) -> dict[str, float]:
        """Record this rank's selection; return sums for its logging output."""
        sums = np.zeros((len(SUMS), len(self.names)))
        if counts:
            tasks_C = chosen.candidates.task_C
            drawn, trained, entropy = sums
            np.add.at(drawn, tasks_C, 1)
            np.add.at(entropy, tasks_C, np.nan_to_num(chosen.relative_C))
            for task, example in chosen.items:
                trained[task] += 1
                self._chosen.append((task, example[INDEX]))
        return dict(zip(self._keys, sums.flatten().tolist(), strict=True))

    def has_selection(self, logging_outputs: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether these are outputs of a training step with a selection."""
        return any(self._keys[0] in log for log in logging_outputs)

    def add(self, logging_outputs: Sequence[Mapping[str, Any]]) -> None:
        """Add an update's sums of all ranks; log each task's share of the examples."""
        totals = np.zeros(len(self._keys))
        for log in logging_outputs:
            totals += [log.get(key, 0) for key in self._keys]
        sums = totals.reshape(len(SUMS), -1)
        self._sums += sums
        self._updates += 1
        self._ungathered += self._chosen
        self._chosen = []
        counts = sums[SUMS.index(TRAINED)].tolist()
        total = sum(counts)
        for name, count in zip(self.names, counts, strict=True):
            metrics.log_scalar(f"{name}_share", count / max(total, 1), total, priority=902, round=3)

    def take(self) -> dict[str, Any] | None:
        """Return the event `selection` since the last call, or None; a collective call."""
        if not self._updates:
            return None
        self.gather()
        drawn, trained = self._sums[:2].astype(int).tolist()
        means: list[float | None] = []  # of the relative entropies
        for total, count in zip(self._sums[2].tolist(), drawn, strict=True):
            means.append(total / count if count else None)
        seen = [int(flags.sum()) for flags in self._seen]
        share = sum(seen) / sum(map(len, self._seen))
        metrics.log_scalar("share_of_data", share, weight=0, priority=901, round=4)
        columns = {DRAWN: drawn, TRAINED: trained, ENTROPY: means, "distinct": seen}
        event: dict[str, Any] = {"updates": self._updates, "share_of_data": share}
        for name, column in columns.items():
            event[name] = dict(zip(self.names, column, strict=True))
        self._sums[:] = 0
        self._updates = 0
        return event

    def gather(self) -> None:
        """Gather the selections of all ranks; a collective call."""
        chosen_by_rank = [self._ungathered] * distributed_utils.get_global_world_size()
        if len(chosen_by_rank) > 1:
            dist.all_gather_object(chosen_by_rank, self._ungathered)
        for task, index in itertools.chain.from_iterable(chosen_by_rank):
            self._seen[task][index] = True
        self._ungathered = []

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint; call `gather` before."""
        seen = {}
        for name, flags in zip(self.names, self._seen, strict=True):
            bits = torch.from_numpy(np.packbits(flags))
            seen[name] = {"size": len(flags), "bits": bits}
        return {
            "seen": seen,
            "names": self.names,
            "sums": self._sums.tolist(),
            "updates": self._updates,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a checkpoint's state; a task whose number of examples changed restarts."""
        for name, flags in zip(self.names, self._seen, strict=True):
            kept = state["seen"].get(name, {"size": -1})
            if kept["size"] == len(flags):
                flags[:] = np.unpackbits(kept["bits"].numpy(), count=len(flags)).astype(bool)
        if state["names"] == self.names:
            self._sums = np.array(state["sums"])
            self._updates = state["updates"]
