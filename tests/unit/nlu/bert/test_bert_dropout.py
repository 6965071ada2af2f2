"""Dropout of attention weights, and of the encoder."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from fairseq_mtmoe.nlu.bert.attention import attend
from tests.helpers.bert import TINY, batch, tiny_encoder


@pytest.mark.parametrize("masked", [False, True])
def test_attention_with_dropout_is_torchs(masked):
    """With so small a probability that nothing is dropped."""
    torch.manual_seed(1)
    inputs = torch.randn(3, 2, 4, 5, 8)
    mask = torch.randn(2, 1, 5, 5) if masked else None
    found = attend(*inputs, mask, 1e-9)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(*inputs, mask), rtol=0, atol=1e-6)


def test_the_encoder_drops_with_its_probabilities_in_training_alone():
    config = replace(TINY, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2)
    encoder, inputs = tiny_encoder(config), batch()
    evaluated = [encoder(**inputs).hidden for _ in range(2)]
    encoder.train()
    trained = [encoder(**inputs).hidden for _ in range(2)]
    assert torch.equal(*evaluated) and not torch.allclose(*trained)
    for block in encoder.layers:
        block.dropout_module.p = 0.0
    encoder.dropout_module.p = 0.0
    torch.manual_seed(1)
    first = encoder(**inputs).hidden  # attention alone still does
    assert not torch.allclose(first, evaluated[0], atol=1e-4)
