import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from fairseq_mtmoe.moe import BaseGate
from fairseq_mtmoe.multitask.mixtures.candidates import Candidates, candidate_batch
from fairseq_mtmoe.multitask.selection import Selection, SelectionRecord, choose
from fairseq_mtmoe.nlu.types.task_type import Regression
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
    most = torch.tensor([math.log(CLASSES[task]) for task in sample["tasks"]])
    return sample["id"], torch.tensor(sample["entropies"]), most


def collate(items):
    tasks, examples = zip(*items, strict=True)
    found = {name: [example[name] for example in examples] for name in ("id", "entropies", "values")}
    return {**found, "id": torch.tensor(found["id"]), "tasks": tasks}


def candidates(entropies, draws=(0, 0, 0)):
    items = [
        (task, {"id": 0, "index": n, "length": n, "entropies": entropy, "values": 1.0 + n})
        for task, of_task in enumerate(entropies)
        for n, entropy in enumerate(of_task)
    ]
    return candidate_batch(collate, items, list(draws))


def chosen(sample, model):
    return [(task, example["index"]) for task, example in choose(sample, model, measure, 1).items]


def test_a_step_trains_on_the_most_uncertain_of_all_tasks():
    sample = candidates([[0.5, 0.69, 0.1], [0.9, 1.3, 0.2], [0.0, 0.0, 0.95]])  # of the most: 0.99, 0.94, 0.86
    model = Said().train()
    assert chosen(sample, model) == [(0, 1), (1, 1), (2, 2)]
    assert model.modes == [False] and model.training
    relative = choose(sample, model, measure, 1).relative_C
    assert relative[4] == pytest.approx(1.3 / math.log(4)) and relative[6] == 0


def test_dropout_tells_what_has_random_numbers_of_its_own():
    sample = candidates([[0.2] * 4, [0.0] * 4, [0.0] * 4], draws=(0, 3, 0))
    model, state = Said(), torch.manual_seed(5).get_state()
    first, other, again = (choose(sample, model, measure, update).relative_C[4:8].tolist() for update in (1, 2, 1))
    assert first == again != other and min(first) > 0
    assert torch.equal(state, torch.get_rng_state())  # a step's dropout goes on as without
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
        ids = sample["id"][: 1 if under_dropout else None]
        return ids, *torch.ones(2, len(ids))

    choose(candidates([[0.1, 0.1], [0.3, 0.4], [0.1]], draws=(0, 0, 3)), model, entropies, 1)
    assert len(gates) > 1 and modes == [False] * 2 * len(gates)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def noted(record, *places, counts=True):
    """What a process logs of a choice of these examples, of two candidates of each task."""
    items = tuple((task, {"index": place}) for task in (0, 1) for place in (0, 1))
    relative = np.array([0.5, 1.0, 0.25, 0.75])
    chosen = [(task, {"index": place}) for task, place in places]
    return record.note(Selection(chosen, Candidates(items, 2), relative), counts=counts)


def test_an_event_is_of_the_updates_since_the_last_one_and_data_that_has_changed_counts_anew():
    record = SelectionRecord({"mnli": 10, "rte": 3})
    for places in (((0, 0), (0, 7)), ((0, 0), (1, 2))):
        record.begin_step()
        record.add([noted(record, *places), noted(record, *places, counts=False)])
    event = record.take()
    assert type(event["share_of_data"]) is float  # a meter keeps it, and a checkpoint the meter
    assert event == {
        "updates": 2, "candidates": {"mnli": 4, "rte": 4}, "trained": {"mnli": 3, "rte": 1},
        "relative_entropy": {"mnli": 0.75, "rte": 0.5}, "distinct": {"mnli": 2, "rte": 1},
        "share_of_data": pytest.approx(3 / 13),
    }  # fmt: skip
    now = SelectionRecord({"cola": 5, "mnli": 10, "rte": 4})
    now.restore(record.state())
    now.add([noted(now, (0, 1))])
    assert now.take()["distinct"] == {"cola": 1, "mnli": 2, "rte": 0}
