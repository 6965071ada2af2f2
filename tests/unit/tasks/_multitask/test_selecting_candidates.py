"""The choice within a training step: by what a model says, without a trace in the model or its dropout."""

import copy
import math

import pytest
import torch
from torch import nn

from fairseq_mtmoe.data.mixtures.candidates import candidate_batch
from fairseq_mtmoe.moe import BaseGate
from fairseq_mtmoe.slots import expert_layers
from fairseq_mtmoe.task_types import Regression
from fairseq_mtmoe.tasks._multitask.selection import choose
from tests.helpers.models import batch, moe_model

CLASSES = (2, 4, 3)


class Said(nn.Module):
    """Says of each example the logits that it has; a regression's value comes through dropout."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.dropout = nn.Dropout(0.5)
        self.modes = []

    def forward(self, examples):
        self.modes.append(self.training)
        assert not torch.is_grad_enabled()
        return [self.dropout(self.weight).sum() * scale for scale in examples]


def measure(sample, model, under_dropout):
    said = model(sample["values"])
    if under_dropout:
        found = Regression().uncertainty(torch.stack(said).view(-1, 3, 1), torch.zeros(len(said) // 3))
        return sample["id"][::3], *found
    return (
        sample["id"],
        torch.tensor(sample["entropies"]),
        torch.tensor([math.log(CLASSES[t]) for t in sample["tasks"]]),
    )


def collate(items):
    return {
        "id": torch.tensor([example["id"] for _, example in items]),
        "tasks": [task for task, _ in items],
        "entropies": [example["entropy"] for _, example in items],
        "values": [example["scale"] for _, example in items],
    }


def candidates(entropies, draws=(0, 0, 0)):
    items = [
        (task, {"id": 0, "place": place, "length": place, "entropy": entropy, "scale": 1.0 + place})
        for task, of_task in enumerate(entropies)
        for place, entropy in enumerate(of_task)
    ]
    return candidate_batch(collate, items, list(draws))


def chosen(sample, model=None, update=1):
    return [(task, example["place"]) for task, example in choose(sample, model or Said(), measure, update).items]


def test_a_step_trains_on_the_most_uncertain_of_all_tasks():
    sample = candidates([[0.5, 0.69, 0.1], [0.9, 1.3, 0.2], [0.0, 0.0, 0.95]])  # of the most: 0.99, 0.94, 0.86
    model = Said().train()
    assert chosen(sample, model) == [(0, 1), (1, 1), (2, 2)]
    assert model.modes == [False] and model.training
    assert chosen(candidates([[0.0] * 3] * 3)) == [(0, 0), (1, 0), (2, 0)]
    relative = choose(sample, model, measure, 1).relative_C
    assert relative[4] == pytest.approx(1.3 / math.log(4)) and relative[6] == 0


def test_dropout_tells_what_has_random_numbers_of_its_own():
    sample = candidates([[0.2] * 4, [0.0] * 4, [0.0] * 4], draws=(0, 3, 0))
    model, states = Said(), []
    torch.manual_seed(5)
    relative = {}
    for update in (1, 2, 1):
        relative.setdefault(update, []).append(choose(sample, model, measure, update).relative_C[4:8].tolist())
        states.append(torch.get_rng_state())
    assert relative[1][0] == relative[1][1] != relative[2][0] and min(relative[1][0]) > 0
    torch.manual_seed(5)
    assert all(torch.equal(state, torch.get_rng_state()) for state in states)  # a step's dropout goes on as without
    assert model.modes == [False, True] * 3


def test_expert_layers_route_as_in_evaluation_and_remember_nothing():
    model = moe_model(expert_gates="base").train()
    gates = [module for module in model.modules() if isinstance(module, BaseGate)]
    before = copy.deepcopy(model.state_dict())
    modes = []
    for gate in gates:
        gate.register_forward_hook(lambda gate, inputs, output: modes.append(gate.training))

    def entropies(sample, model, under_dropout):
        model(**batch())
        return sample["id"][: 1 if under_dropout else None], *torch.ones(2, 1 if under_dropout else len(sample["id"]))

    choose(candidates([[0.1, 0.1], [0.3, 0.4], [0.1]], draws=(0, 0, 3)), model, entropies, 1)
    assert len(gates) > 1 and modes == [False] * 2 * len(gates) and model.training
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(layer.load.counts.any() for layer in expert_layers(model).values())
    assert not any(gate.prices.known for gate in gates)
