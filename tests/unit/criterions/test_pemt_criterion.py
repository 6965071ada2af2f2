"""The loss of PEMT: the likelihood's, and the sparsity loss by its weight in whatever sums the trainer divides."""

from types import SimpleNamespace

import pytest
import torch
from fairseq.logging import metrics

from tests.helpers.pemt import inputs, pemt_model, perturbed, target_model
from tests.helpers.refused import refused
from tests.helpers.t5 import dictionary, texts

from fairseq_mtmoe.criterions.pemt import PemtCriterion  # isort: skip


def criterion(weight=0.1, **options):
    return PemtCriterion(SimpleNamespace(target_dictionary=dictionary()), False, 0.0, sparsity_weight=weight, **options)


def sample():
    target = texts((5, 3, 2), seed=4)
    return {"net_input": inputs(), "target": target, "ntokens": int(target.ne(0).sum()), "nsentences": 3}


def losses(model, given):
    """The negative log-likelihood of all words, and the sparsity loss, word by word and from a pass."""
    scores, extra = model(**given["net_input"])
    words = scores.log_softmax(-1)
    places = given["target"].ne(0).nonzero().tolist()
    nll = -sum(words[row, place, given["target"][row, place]] for row, place in places)
    return nll, extra.get("task_sparsity")


def test_it_is_the_likelihood_s_loss_and_the_sparsity_s_with_its_weight():
    model, given = perturbed(target_model(no_prompt=True)).train(), sample()
    loss, size, logged = criterion(0.25)(model, given)
    gates = [value for name, value in model.named_parameters() if ".gate." in name]
    found = torch.autograd.grad(loss, gates)
    nll, sparsity = losses(model, given)
    wanted = nll + 0.25 * sparsity * given["ntokens"]
    assert size == given["ntokens"]
    torch.testing.assert_close(loss, wanted)
    for own, other in zip(found, torch.autograd.grad(wanted, gates), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(logged["loss"], nll.detach())
    torch.testing.assert_close(logged["sparsity_loss"], (sparsity * given["ntokens"]).detach())


@pytest.mark.parametrize(
    "model",
    [lambda: pemt_model(name="aa", pemt_stage="source").train(), lambda: target_model(no_prompt=True).eval()],
    ids=["stage 1", "validation"],
)
def test_where_no_gate_weighs_it_is_the_likelihood_s_alone(model):
    model, given = model(), sample()
    loss, _, logged = criterion()(model, given)
    torch.testing.assert_close(loss, losses(model, given)[0])
    assert "sparsity_loss" not in logged


def test_without_a_weight_nothing_is_worked_out_for_it():
    model, given = target_model(no_prompt=True).train(), sample()
    logged = criterion(0.0)(model, given)[2]
    assert "sparsity_loss" not in logged and losses(model, given)[1] is None
    assert "sparsity_loss" in criterion()(model, given)[2]
    with refused("--sparsity-weight"):
        criterion(-0.1)


def test_means_are_logged():
    logs = [
        {"loss": 8.0, "nll_loss": 8.0, "ntokens": 2, "sample_size": 2, "sparsity_loss": -1.0},
        {"loss": 4.0, "nll_loss": 4.0, "ntokens": 6, "sample_size": 6, "sparsity_loss": -1.4},
    ]
    with metrics.aggregate() as meters:
        PemtCriterion.reduce_metrics(logs)
        PemtCriterion.reduce_metrics([{"loss": 1.0, "nll_loss": 1.0, "ntokens": 1, "sample_size": 1}])
    assert meters["sparsity_loss"].avg == pytest.approx(-2.4 / 8)
