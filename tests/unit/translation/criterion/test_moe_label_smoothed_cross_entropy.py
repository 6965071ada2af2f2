"""The loss from features against fairseq's; the load-balancing loss; how uncertain a translator is of a sentence."""

import math
from argparse import Namespace

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.logging import metrics
from torch import nn

from fairseq_mtmoe.moe.layer import balance_loss
from fairseq_mtmoe.translation.criterion import moe_label_smoothed_cross_entropy as module
from fairseq_mtmoe.translation.criterion.moe_label_smoothed_cross_entropy import (
    MoELabelSmoothedCrossEntropyCriterion,
    output_weight,
    sentence_entropies,
)
from tests.helpers.models import batch, dense_model, moe_model, perturb, stock_model
from tests.helpers.refused import refused

TASK = Namespace(target_dictionary=Namespace(pad=lambda: 1))


def criterion(weight):
    return MoELabelSmoothedCrossEntropyCriterion(TASK, False, 0.1, load_balancing_weight=weight)


def sample_of(model):
    net_input = batch(task_ids=hasattr(model, "task_names"))
    target = net_input["prev_output_tokens"].flip(0)
    return {"net_input": net_input, "target": target, "ntokens": int(target.ne(1).sum())}


@pytest.mark.parametrize("way", ["features", "logits"])
def test_the_weight_scales_the_loss_per_token(way, monkeypatch):
    model = moe_model(expert_gates="switch").train()
    if way == "logits":  # fairseq's own, as in half precision
        monkeypatch.setattr(module, "output_weight", lambda model: None)
    sample = sample_of(model)
    plain, tokens = criterion(0.0)(model, sample)[0].item(), sample["ntokens"]
    balance = balance_loss(model).item()
    loss, size, log = criterion(2.0)(model, sample)
    assert size == tokens and loss.item() == pytest.approx(plain + 2 * tokens * balance, rel=1e-5)
    assert log["balance_loss"].item() == pytest.approx(tokens * balance, rel=1e-5)
    assert log["loss"].item() == pytest.approx(plain, rel=1e-5)
    with metrics.aggregate(new_root=True) as meters:
        MoELabelSmoothedCrossEntropyCriterion.reduce_metrics([log, log])
    assert meters["balance_loss"].avg.item() == pytest.approx(balance, rel=1e-5)


def test_recomputed_activations_would_lose_the_gradient_and_are_refused():
    model = moe_model(expert_gates="switch").train()
    model.cfg.checkpoint_activations = True
    criterion(0.0)(model, sample_of(model))
    with refused("--load-balancing-weight", "--checkpoint-activations"):
        criterion(1.0)(model, sample_of(model))
    criterion(1.0)(model.eval(), sample_of(model))


def both(model, reduce=True, **options):
    """(loss, sample size, what is logged, gradients) of fairseq's criterion and of ours."""
    results = []
    for kind in (LabelSmoothedCrossEntropyCriterion, MoELabelSmoothedCrossEntropyCriterion):
        model.zero_grad()
        loss, sample_size, log = kind(TASK, label_smoothing=0.1, **options)(model, sample_of(model), reduce)
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
    torch.testing.assert_close(ours[3], theirs[3], rtol=1e-4, atol=1e-5)


def test_a_loss_for_each_token_is_fairseqs_own():
    theirs, ours = both(moe_model(), reduce=False, sentence_avg=False)
    assert ours[0].shape == (24, 1) and torch.equal(ours[0], theirs[0])


def test_what_is_not_a_plain_projection_goes_fairseqs_way():
    assert output_weight(nn.Identity()) is None and output_weight(moe_model().half()) is None
    with torch.autocast("cpu"):
        assert output_weight(moe_model()) is None
    biased = moe_model(share_all_embeddings=False)
    biased.decoder.output_projection = nn.Linear(16, 24)
    assert output_weight(biased) is None

    def forward(self, src_tokens, src_lengths, prev_output_tokens):
        raise AssertionError

    stock = type(stock_model())
    for methods in ({"forward": forward}, {"get_normalized_probs": lambda self, *args, **kwargs: None}):
        other = stock_model()
        other.__class__ = type("Other", (stock,), methods)
        assert output_weight(other) is None


def test_training_computes_no_attention_weights():
    model = stock_model().train()
    wanted = []
    for block in model.decoder.layers:
        block.encoder_attn.register_forward_pre_hook(
            lambda module, args, kwargs: wanted.append(kwargs["need_weights"]), with_kwargs=True
        )
    both(model, sentence_avg=False)
    assert wanted == [False, True, False, False]  # fairseq's own criterion first


def translator(**options):
    model = perturb(dense_model(**options)).requires_grad_(False)
    return model, sample_of(model)


@pytest.mark.parametrize("way", ["features", "logits"])
def test_a_sentences_uncertainty_is_the_mean_over_its_words(way, monkeypatch):
    model, sample = translator()
    if way == "logits":
        monkeypatch.setattr(module, "projection", lambda model: None)
    entropy, most = sentence_entropies(model, sample, 1)
    logits, words = model(**sample["net_input"])[0], sample["target"].ne(1)
    entropies = torch.distributions.Categorical(logits=logits).entropy()
    torch.testing.assert_close(entropy, (entropies * words).sum(1) / words.sum(1))
    torch.testing.assert_close(most, torch.full((4,), math.log(logits.shape[-1])))
    assert entropy.max() - entropy.min() > 0.01


def test_features_that_autocast_made_half_meet_a_float32_weight():
    model, sample = translator(share_all_embeddings=False, decoder_output_dim=8)  # the decoder ends with a linear layer
    right, most = sentence_entropies(model, sample, 1)
    with torch.autocast("cpu", torch.bfloat16):
        found, found_most = sentence_entropies(model, sample, 1)
    assert found.dtype == torch.float32 and not torch.equal(found, right)
    torch.testing.assert_close((found, found_most), (right, most), atol=0.05, rtol=0.05)
