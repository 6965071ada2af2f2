import math
from functools import partial
from statistics import NormalDist
from types import SimpleNamespace

import pytest
import torch
from fairseq.logging import metrics

from fairseq_mtmoe.nlu.criterion import MultitaskCriterion
from fairseq_mtmoe.nlu.types.task_type import Classification, Regression

NUMBERS = {
    "three": torch.tensor([[1.0, 2.0, 0.5], [0.0, 0.0, 3.0]]),
    "value": torch.tensor([[2.0], [4.5]]),
    "absent": torch.empty(0, 2),
}
TASK_TYPES = {"three": Classification(3), "value": Regression(), "absent": Classification(2)}
TARGET = {"three": torch.tensor([1.0, 0.0]), "value": torch.tensor([2.5, 4.0])}


criterion = MultitaskCriterion(SimpleNamespace(task_types=TASK_TYPES))
first, second = (row.exp().sum().log().item() for row in NUMBERS["three"])
THREE, VALUE = (first - 2.0 + second - 0.0) / math.log(3), 0.5**2 + 0.5**2  # the losses written out


def losses(numbers, target):
    """What the criterion makes of a model that says these numbers whatever the input."""
    sample = {"net_input": {}, "target": target, "nsentences": sum(map(len, target.values())), "ntokens": 40}
    return criterion(lambda: numbers, sample)


def test_the_loss_written_out():
    loss, size, logged = losses(NUMBERS, TARGET)
    assert loss.item() == pytest.approx(THREE + VALUE)
    assert size == logged["sample_size"] == 4
    assert logged["three_loss"].item() == pytest.approx(THREE) and logged["three_sample_size"] == 2
    assert logged["value_loss"].item() == pytest.approx(VALUE) and logged["value_sample_size"] == 2
    assert logged["absent_loss"].item() == 0 and logged["absent_sample_size"] == 0
    scale = torch.ones((), requires_grad=True)  # a task without examples has gradients of 0
    losses({"absent": torch.empty(0, 1) * scale}, {"value": TARGET["value"]})[0].backward()
    assert scale.grad == 0


def test_each_task_is_logged_over_all_batches():
    second = {"three": torch.empty(0, 3), "value": NUMBERS["value"], "absent": torch.empty(0, 2)}
    logs = [losses(NUMBERS, TARGET)[2], losses(second, {"value": TARGET["value"]})[2]]
    with metrics.aggregate(new_root=True) as meters:
        MultitaskCriterion.reduce_metrics(logs)
    right = {"three_loss": THREE / 2, "value_loss": VALUE / 2, "loss": (THREE + 2 * VALUE) / 6}
    assert meters.get_smoothed_values() == pytest.approx(right, abs=1e-4)


def test_uncertainties_are_told_with_the_numbers_of_their_examples():
    numbers = {**NUMBERS, "value": torch.tensor([[1.0], [5.0], [13.0], [13.0]])}
    rows = {"three": torch.tensor([[5], [0]]), "value": torch.arange(1, 5).view(4, 1)}
    ids = torch.tensor([20, 31, 31, 32, 32, 21])  # in the order of the rows
    batch = {"net_input": {"rows": rows}, "id": ids, "target": {"three": torch.ones(2), "value": torch.ones(4)}}
    uncertainties = partial(criterion.uncertainties, lambda rows: numbers)
    found, (entropy, most) = uncertainties(batch, under_dropout=False)
    p = NUMBERS["three"].softmax(1)
    assert found.tolist() == [21, 20]
    torch.testing.assert_close(entropy, -(p * p.log()).sum(1))
    torch.testing.assert_close(most, torch.full((2,), math.log(3)))
    found, (entropy, most) = uncertainties(batch, under_dropout=True)
    assert found.tolist() == [31, 32] and most.tolist() == pytest.approx([math.log(2)] * 2)
    error = 5**2 + 5**2  # 3 and 13, the means of their draws, are wrong by 2 and 12
    for number, variance in enumerate((8, 0)):
        p = NormalDist().cdf(5 / math.sqrt(error + variance))
        assert entropy[number].item() == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p))
    none = {**batch, "net_input": {"rows": {"three": rows["three"]}}, "id": ids[:2]}
    assert not len(uncertainties(none, under_dropout=True)[0])
