"""The loss of PEMT: the likelihood's, and the sparsity loss by its weight in whatever sums the trainer divides."""

from types import SimpleNamespace

import pytest
import torch
from fairseq.logging import metrics
from torch.nn.functional import cross_entropy

from tests.helpers.bert import perturb
from tests.helpers.pemt import inputs, pemt_model, target_model
from tests.helpers.t5 import dictionary, texts

from fairseq_mtmoe.pemt.criterion import PemtCriterion, PemtCriterionConfig  # isort: skip


def criterion(weight=0.1):
    cfg = PemtCriterionConfig(sparsity_weight=weight, sentence_avg=False)
    return PemtCriterion.build_criterion(cfg, SimpleNamespace(target_dictionary=dictionary()))


def sample():
    target = texts((5, 3, 2), seed=4)
    return {"net_input": inputs(), "target": target, "ntokens": int(target.ne(0).sum()), "nsentences": 3}


def losses(model, given):
    """The negative log-likelihood of all words, and the sparsity loss, from a pass."""
    scores, extra = model(**given["net_input"])
    nll = cross_entropy(scores.flatten(0, 1), given["target"].flatten(), ignore_index=0, reduction="sum")
    return nll, extra.get("task_sparsity")


def test_it_is_the_likelihood_s_loss_and_the_sparsity_s_with_its_weight():
    model, given = perturb(target_model(no_prompt=True)).train(), sample()
    loss, size, logged = criterion(0.25)(model, given)
    gates = [value for name, value in model.named_parameters() if ".gate." in name]
    found = torch.autograd.grad(loss, gates)
    nll, sparsity = losses(model, given)
    wanted = nll + 0.25 * sparsity * given["ntokens"]
    assert size == given["ntokens"]
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(found, torch.autograd.grad(wanted, gates), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(logged["loss"], nll.detach())
    torch.testing.assert_close(logged["sparsity_loss"], (sparsity * given["ntokens"]).detach())
    with metrics.aggregate(new_root=True) as meters:
        PemtCriterion.reduce_metrics([logged, {"loss": 1.0, "nll_loss": 1.0, "ntokens": 1, "sample_size": size}])
    assert meters["sparsity_loss"].avg == pytest.approx(sparsity.item() / 2)


def test_without_gates_or_a_weight_it_is_the_likelihood_s_alone():
    """In stage 1, and in validation; without a weight the model works nothing out for it."""
    given, target = sample(), target_model(no_prompt=True)
    for model, weight in ((pemt_model(name="aa", pemt_stage="source"), 0.1), (target.eval(), 0.1), (target, 0.0)):
        model.train(weight == 0 or model is not target)
        loss, _, logged = criterion(weight)(model, given)
        nll, sparsity = losses(model, given)
        torch.testing.assert_close(loss, nll)
        assert "sparsity_loss" not in logged and (weight or sparsity is None)
    assert "sparsity_loss" in criterion()(target, given)[2]
