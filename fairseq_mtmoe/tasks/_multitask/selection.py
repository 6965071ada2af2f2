"""MT-Uncertainty sampling in a training step: of the candidates of all tasks those that the model is most uncertain of.

CA-MTL, §2.2 and algorithm 1. The candidates pass through the model as in evaluation: without gradient or dropout, and
expert layers route as then, count nothing and remember no prices. Where dropout is what tells the uncertainty, it has
random numbers of its own, which follow from the candidates and the update: the step's dropout is the same whatever they
are, and so are they in a resumed run and in any number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fairseq_mtmoe.data.mixtures.candidates import CANDIDATES, DROPOUT_PASS, PASSES, PLACE, Candidates
from fairseq_mtmoe.data.mixtures.dataset import Batch, Item
from fairseq_mtmoe.data.sampling import derive_key, most_uncertain
from fairseq_mtmoe.slots import expert_layers

Measure = Callable[[Batch, nn.Module, bool], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class Chosen:
    """What a step trains on, and why.

    Attributes:
        items: the chosen examples, in the candidates' order.
        candidates: of which they are.
        relative_C: each candidate's entropy, in shares of the most that it can be, (C,).
    """

    items: list[Item]
    candidates: Candidates
    relative_C: np.ndarray


@torch.no_grad()
def choose(sample: Batch, model: nn.Module, measure: Measure, update: int) -> Chosen:
    """The most uncertain candidates of a step.

    Args:
        sample: see `candidate_batch`.
        model: without what wraps it for several processes; it is left in training mode.
        measure: of a batch, the model and whether it is under dropout, the numbers of the candidates (E,), their
            entropies H_i and the most that these can be.
        update: how many updates were made before.
    """
    candidates: Candidates = sample[CANDIDATES]
    model.eval()
    found = [measure(batch, model, False) for batch in sample.get(PASSES, ())]
    if DROPOUT_PASS in sample:
        with _dropout(model, _seed(candidates, update)):
            found.append(measure(sample[DROPOUT_PASS], model, True))
    model.train()
    columns = [torch.cat([column.double() for column in columns]) for columns in zip(*found, strict=True)]
    number_E, entropy_E, most_E = torch.stack(columns).cpu().numpy()  # one wait for a GPU
    entropy_C, most_C = np.zeros((2, len(candidates.items)))
    entropy_C[number_E.astype(int)], most_C[number_E.astype(int)] = entropy_E, most_E
    numbers = most_uncertain(entropy_C, most_C, candidates.task_C, candidates.count)
    relative_C = np.divide(entropy_C, most_C, out=np.zeros_like(entropy_C), where=most_C != 0)
    return Chosen(candidates.examples(numbers.tolist()), candidates, relative_C)


def _seed(candidates: Candidates, update: int) -> int:
    task, example = candidates.items[0]
    return derive_key(update, task, example[PLACE]) >> 1


@contextmanager
def _dropout(model: nn.Module, seed: int) -> Iterator[None]:
    """Dropout alone is as in training, by random numbers of this seed; all others go on as if nothing had been."""
    device = next(model.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        model.train()
        for layer in expert_layers(model).values():
            layer.gate.eval()
        yield
