"""The load-balancing loss: its weight, its gradient, what is logged."""

from argparse import Namespace

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.logging import metrics
from torch import nn

from fairseq_mtmoe.criterions.moe_label_smoothed_cross_entropy import MoELabelSmoothedCrossEntropyCriterion
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.moe import ExpertBank, MoELayer, build_gate

TASK = Namespace(target_dictionary=Namespace(pad=lambda: 1))


class TinyModel(nn.Module):
    """Embedding, one mixture of experts, output."""

    def __init__(self, checkpoint_activations=False):
        super().__init__()
        torch.manual_seed(1)
        self.cfg = Namespace(checkpoint_activations=checkpoint_activations)
        self.embed = nn.Embedding(12, 8)
        self.moe = MoELayer(build_gate("switch", 4, 8), ExpertBank(4, 8, 16), combine="paper")
        self.out = nn.Linear(8, 12)

    def forward(self, tokens):
        h = self.embed(tokens)
        return self.out(h + self.moe(h, h))

    def get_normalized_probs(self, net_output, log_probs, sample=None):
        return net_output.log_softmax(-1)

    def get_targets(self, sample, net_output):
        return sample["target"]


def sample():
    tokens = torch.arange(2, 12).view(2, 5)
    return {"net_input": {"tokens": tokens}, "target": tokens, "ntokens": 10}


def criterion(weight):
    return MoELabelSmoothedCrossEntropyCriterion(TASK, False, 0.1, load_balancing_weight=weight)


def gradients(criterion, scale=1.0):
    model = TinyModel()
    loss, sample_size, log = criterion(model, sample())
    (loss * scale).backward()
    return {name: p.grad / sample_size for name, p in model.named_parameters()}, loss / sample_size, log


def test_without_weight_it_is_fairseqs_loss():
    ours, our_loss, log = gradients(criterion(0.0))
    theirs, their_loss, _ = gradients(LabelSmoothedCrossEntropyCriterion(TASK, False, 0.1))
    assert our_loss == their_loss and "balance_loss" not in log
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_weight_scales_the_loss_per_token():
    model = TinyModel()
    model(**sample()["net_input"])
    balance = model.moe.last_balance_loss
    _, plain, _ = gradients(criterion(0.0))
    for weight in (0.1, 2.0):
        _, weighted, log = gradients(criterion(weight))
        assert weighted.item() == pytest.approx(plain.item() + weight * balance.item(), rel=1e-5)
        assert log["balance_loss"].item() == pytest.approx(10 * balance.item(), rel=1e-5)
        assert log["loss"].item() == pytest.approx(10 * plain.item(), rel=1e-5)


def test_its_gradient_reaches_the_gate():
    plain, _, _ = gradients(criterion(0.0))
    weighted, _, _ = gradients(criterion(1.0))
    assert not torch.allclose(plain["moe.gate.weight"], weighted["moe.gate.weight"])


def test_the_average_is_logged():
    logs = [gradients(criterion(1.0))[2] for _ in range(2)]
    with metrics.aggregate(new_root=True) as meters:
        MoELabelSmoothedCrossEntropyCriterion.reduce_metrics(logs)
    assert meters["balance_loss"].avg.item() == pytest.approx(logs[0]["balance_loss"].item() / 10)
    with metrics.aggregate(new_root=True) as meters:
        MoELabelSmoothedCrossEntropyCriterion.reduce_metrics([gradients(criterion(0.0))[2]])
    assert "balance_loss" not in meters


def test_a_negative_weight_is_refused():
    with pytest.raises(UserError, match="`--load-balancing-weight` must be at least 0"):
        criterion(-1.0)


def test_recomputed_activations_would_lose_the_gradient_and_are_refused():
    model = TinyModel(checkpoint_activations=True)
    criterion(0.0)(model, sample())
    with pytest.raises(UserError, match="cannot be used with `--checkpoint"):
        criterion(1.0)(model, sample())
    criterion(1.0)(model.eval(), sample())
