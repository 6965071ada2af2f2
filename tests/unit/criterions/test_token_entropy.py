"""How uncertain a translator is of a sentence, against the definition: values, blocks, half precision, other models."""

import math

import pytest
import torch

from fairseq_mtmoe.criterions import moe_label_smoothed_cross_entropy as module
from fairseq_mtmoe.criterions import projected_loss as blocks
from fairseq_mtmoe.criterions.moe_label_smoothed_cross_entropy import sentence_entropies
from fairseq_mtmoe.criterions.projected_loss import projected_entropies
from tests.helpers.models import batch, dense_model, perturb

PAD = 1


def inputs():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(11, 8, generator=generator), torch.randn(37, 8, generator=generator)


def reference_entropies(features_TH, weight_VH):
    """The definition, `-Σ_v p_v · log p_v`."""
    log_p_TV = torch.log_softmax((features_TH @ weight_VH.t()).float(), 1)
    return -(log_p_TV.exp() * log_p_TV).sum(1)


@pytest.mark.parametrize("rows", [4, 100])
def test_entropies_are_the_definitions(rows, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_LOGITS", 1)
    monkeypatch.setattr(blocks, "BLOCK_ROWS", rows)
    features, weight = inputs()
    torch.testing.assert_close(projected_entropies(features, weight), reference_entropies(features, weight))
    assert projected_entropies(features[:0], weight).shape == (0,)
    undecided = projected_entropies(torch.zeros(3, 8), weight)
    torch.testing.assert_close(undecided, torch.full((3,), math.log(37)))


def test_half_precision_is_as_near_as_its_rounding():
    features, weight = inputs()
    found = projected_entropies(features.half(), weight.half())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, reference_entropies(features, weight), atol=0.05, rtol=0.05)
    sure = projected_entropies((1000 * features).half(), weight.half())
    assert sure.isfinite().all() and sure.max() < 0.01


@pytest.mark.parametrize("way", ["features", "logits"])
def test_a_sentences_uncertainty_is_the_mean_over_its_words(way, monkeypatch):
    model = dense_model()
    perturb(model)
    net_input = batch(task_ids=False)
    if way == "logits":
        monkeypatch.setattr(module, "projection", lambda model: None)
    with torch.no_grad():
        entropy, most = sentence_entropies(
            model, {"net_input": net_input, "target": net_input["prev_output_tokens"]}, PAD
        )
        logits = model(**net_input)[0]
    for sentence, words, found in zip(logits, net_input["prev_output_tokens"], entropy, strict=True):
        entropies = []
        for word, logits_V in zip(words.tolist(), sentence, strict=True):
            p = logits_V.softmax(0)
            entropies += [-(p * p.log()).sum()] * (word != PAD)
        torch.testing.assert_close(found, torch.stack(entropies).mean())
    torch.testing.assert_close(most, torch.full((4,), math.log(logits.shape[-1])))
    assert entropy.max() - entropy.min() > 0.01


def test_features_that_autocast_made_half_meet_a_float32_weight():
    model = dense_model(share_all_embeddings=False, decoder_output_dim=8)  # the decoder ends with a linear layer
    perturb(model)
    net_input = batch(task_ids=False)
    sample = {"net_input": net_input, "target": net_input["prev_output_tokens"]}
    with torch.no_grad():
        right, most = sentence_entropies(model, sample, PAD)
        with torch.autocast("cpu", torch.bfloat16):
            features, _ = model(**net_input, features_only=True)
            found, found_most = sentence_entropies(model, sample, PAD)
    assert features.dtype == torch.bfloat16 and found.dtype == torch.float32
    torch.testing.assert_close(found, right, atol=0.05, rtol=0.05)
    torch.testing.assert_close(found_most, most)
