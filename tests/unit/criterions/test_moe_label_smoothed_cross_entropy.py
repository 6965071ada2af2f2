"""The loss from features against fairseq's; the load-balancing loss: its weight, its gradient, what is logged."""

from argparse import Namespace

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.logging import metrics
from torch import nn

from fairseq_mtmoe.criterions.moe_label_smoothed_cross_entropy import (
    MoELabelSmoothedCrossEntropyCriterion,
    output_weight,
)
from fairseq_mtmoe.moe import ExpertBank, MoELayer, build_gate
from tests.helpers.models import batch, dense_model, moe_model, stock_model
from tests.helpers.refused import refused

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


def test_the_weight_scales_the_loss_per_token():
    model = TinyModel()
    plain = criterion(0.0)(model, sample())[0].item()
    balance = model.moe.last_balance_loss.item()
    loss, size, log = criterion(2.0)(model, sample())
    assert size == 10 and loss.item() == pytest.approx(plain + 2 * 10 * balance, rel=1e-5)
    assert log["balance_loss"].item() == pytest.approx(10 * balance, rel=1e-5)
    assert log["loss"].item() == pytest.approx(plain, rel=1e-5)
    with metrics.aggregate(new_root=True) as meters:
        MoELabelSmoothedCrossEntropyCriterion.reduce_metrics([log, log])
    assert meters["balance_loss"].avg.item() == pytest.approx(balance, rel=1e-5)


def test_recomputed_activations_would_lose_the_gradient_and_are_refused():
    model = TinyModel(checkpoint_activations=True)
    criterion(0.0)(model, sample())
    with refused("--load-balancing-weight", "--checkpoint-activations"):
        criterion(1.0)(model, sample())
    criterion(1.0)(model.eval(), sample())


def both(model, reduce=True, **options):
    """(loss, sample size, what is logged, gradients) of fairseq's criterion and of ours, on a padded batch."""
    net_input = batch(task_ids=hasattr(model, "task_names"))
    target = net_input["prev_output_tokens"].flip(0)
    sample = {"net_input": net_input, "target": target, "ntokens": int(target.ne(1).sum())}
    results = []
    for kind in (LabelSmoothedCrossEntropyCriterion, MoELabelSmoothedCrossEntropyCriterion):
        model.zero_grad()
        loss, sample_size, log = kind(TASK, label_smoothing=0.1, **options)(model, sample, reduce)
        loss.sum().backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        results.append((loss.detach(), sample_size, log, gradients))
    return results


@pytest.mark.parametrize(
    ("build", "options"),
    [
        (dense_model, {}),
        (stock_model, {"ignore_prefix_size": 2, "report_accuracy": True}),
        (lambda: moe_model(share_all_embeddings=False), {"sentence_avg": True}),
    ],
)
def test_from_features_it_is_fairseqs_loss(build, options):
    model = build()
    assert output_weight(model) is not None
    theirs, ours = both(model, **{"sentence_avg": False, **options})
    torch.testing.assert_close(ours[0], theirs[0])
    assert ours[1] == theirs[1] and ours[2].keys() == theirs[2].keys()
    for key, value in theirs[2].items():
        assert ours[2][key] == pytest.approx(float(value), rel=1e-5), key
    assert ours[3].keys() == theirs[3].keys()
    for name, gradient in theirs[3].items():
        torch.testing.assert_close(ours[3][name], gradient, rtol=1e-4, atol=1e-5, msg=name)


def test_a_loss_for_each_token_is_fairseqs_own():
    theirs, ours = both(moe_model(), reduce=False, sentence_avg=False)
    assert ours[0].shape == (24, 1) and torch.equal(ours[0], theirs[0])


def test_what_is_not_a_plain_projection_goes_fairseqs_way():
    assert output_weight(TinyModel()) is None and output_weight(moe_model().half()) is None
    with torch.autocast("cpu"):
        assert output_weight(moe_model()) is None
    biased = moe_model(share_all_embeddings=False)
    biased.decoder.output_projection = nn.Linear(16, 24)
    assert output_weight(biased) is None

    def forward(self, src_tokens, src_lengths, prev_output_tokens):
        return stock.forward(self, src_tokens, src_lengths, prev_output_tokens)

    stock, other = type(stock_model()), stock_model()
    others = {"get_normalized_probs": lambda self, *args, **kwargs: stock.get_normalized_probs(self, *args, **kwargs)}
    for methods in ({"forward": forward}, others):
        other.__class__ = type("Other", (stock,), methods)
        assert output_weight(other) is None
    theirs, ours = both(other, sentence_avg=False)
    assert torch.equal(ours[0], theirs[0])


def test_training_computes_no_attention_weights():
    model = stock_model().train()
    wanted = []
    for block in model.decoder.layers:
        block.encoder_attn.register_forward_pre_hook(
            lambda module, args, kwargs: wanted.append(kwargs["need_weights"]), with_kwargs=True
        )
    both(model, sentence_avg=False)
    assert wanted == [False, True, False, False]  # fairseq's own criterion first
