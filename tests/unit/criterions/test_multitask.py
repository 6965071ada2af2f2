import math
from statistics import NormalDist
from types import SimpleNamespace

import pytest
import torch
from fairseq.logging import metrics
from torch import nn

from fairseq_mtmoe.criterions.multitask import MultitaskCriterion
from fairseq_mtmoe.task_types.task_type import Classification, Regression

NUMBERS = {
    "three": torch.tensor([[1.0, 2.0, 0.5], [0.0, 0.0, 3.0]]),
    "value": torch.tensor([[2.0], [4.5]]),
    "absent": torch.empty(0, 2),
}
TASK_TYPES = {"three": Classification(3), "value": Regression(), "absent": Classification(2)}
TARGET = {"three": torch.tensor([1.0, 0.0]), "value": torch.tensor([2.5, 4.0])}


class Said(nn.Module):
    """Says what it is told to, whatever the input, times a parameter."""

    def __init__(self, numbers):
        super().__init__()
        self.numbers, self.scale = numbers, nn.Parameter(torch.ones(()))

    def forward(self, **inputs):
        return {task: numbers * self.scale for task, numbers in self.numbers.items()}


def criterion():
    return MultitaskCriterion(SimpleNamespace(task_types=TASK_TYPES))


def sample(target=TARGET):
    return {"net_input": {}, "target": target, "nsentences": sum(map(len, target.values())), "ntokens": 40}


def expected():
    cross_entropy = sum(
        math.log(sum(math.exp(number) for number in row)) - row[int(label)]
        for row, label in zip(NUMBERS["three"].tolist(), TARGET["three"].tolist(), strict=True)
    )
    return cross_entropy / math.log(3), 0.5**2 + 0.5**2


def test_the_loss_written_out():
    loss, size, logged = criterion()(Said(NUMBERS), sample())
    three, value = expected()
    assert loss.item() == pytest.approx(three + value)
    assert size == logged["sample_size"] == 4
    assert logged["three_loss"].item() == pytest.approx(three) and logged["three_sample_size"] == 2
    assert logged["value_loss"].item() == pytest.approx(value) and logged["value_sample_size"] == 2
    assert logged["absent_loss"].item() == 0 and logged["absent_sample_size"] == 0


def test_tasks_without_examples_have_gradients_of_0():
    only_absent = Said({"absent": torch.empty(0, 1)})
    criterion()(only_absent, sample({"value": TARGET["value"]}))[0].backward()
    assert only_absent.scale.grad == 0


def test_each_task_is_logged_over_all_batches():
    module = criterion()
    second = {"three": torch.empty(0, 3), "value": NUMBERS["value"], "absent": torch.empty(0, 2)}
    logs = [module(Said(NUMBERS), sample())[2], module(Said(second), sample({"value": TARGET["value"]}))[2]]
    with metrics.aggregate(new_root=True) as meters:
        MultitaskCriterion.reduce_metrics(logs)
    three, value = expected()
    logged = meters.get_smoothed_values()
    assert logged["three_loss"] == pytest.approx(three / 2, abs=1e-4)
    assert logged["value_loss"] == pytest.approx(value / 2, abs=1e-4)
    assert logged["loss"] == pytest.approx((three + 2 * value) / 6, abs=1e-4)
    assert "absent_loss" not in logged


def test_uncertainties_are_told_with_the_numbers_of_their_examples():
    numbers = {**NUMBERS, "value": torch.tensor([[1.0], [5.0], [13.0], [13.0]])}
    rows = {"three": torch.tensor([[5], [0]]), "value": torch.arange(1, 5).view(4, 1)}
    ids = torch.tensor([20, 31, 31, 32, 32, 21])  # in the order of the rows
    batch = {"net_input": {"rows": rows}, "id": ids, "target": {"three": torch.ones(2), "value": torch.ones(4)}}
    model = Said(numbers)
    model.forward = lambda rows: numbers
    found, (entropy, most) = criterion().uncertainties(model, batch, under_dropout=False)
    p = NUMBERS["three"].softmax(1)
    assert found.tolist() == [21, 20]
    torch.testing.assert_close(entropy, -(p * p.log()).sum(1))
    torch.testing.assert_close(most, torch.full((2,), math.log(3)))
    found, (entropy, most) = criterion().uncertainties(model, batch, under_dropout=True)
    assert found.tolist() == [31, 32] and most.tolist() == pytest.approx([math.log(2)] * 2)
    error = (2**2 + 12**2) / 2  # of 3 and 13, the means of their draws
    for number, variance in enumerate((8, 0)):
        p = NormalDist().cdf(5 / math.sqrt(error + variance))
        assert entropy[number].item() == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p))
    none = {**batch, "net_input": {"rows": {"three": rows["three"]}}, "id": ids[:2]}
    assert not len(criterion().uncertainties(model, none, under_dropout=True)[0])
