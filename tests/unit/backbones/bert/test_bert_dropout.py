"""Dropout by draws of 16 bits, and the attention that uses it."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from fairseq_mtmoe.backbones.bert.attention import attend, dropout
from tests.helpers.bert import TINY, batch, tiny_encoder


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_numbers_are_dropped_with_their_probability_and_keep_their_mean(p):
    torch.manual_seed(1)
    x = torch.full((301, 997), 2.0, requires_grad=True)
    dropped = dropout(x, p)
    assert abs(dropped.eq(0).float().mean() - p) < 0.004
    assert abs(dropped.mean() - 2) < 0.03
    kept = dropped[dropped != 0]
    assert kept.unique().numel() == 1
    torch.testing.assert_close(kept[0].item(), 2 / (1 - p), rtol=1e-4, atol=0)
    dropped.sum().backward()
    torch.testing.assert_close(x.grad * 2, dropped.detach())


def test_draws_are_independent_and_follow_the_seed():
    torch.manual_seed(1)
    first, second = dropout(torch.ones(400, 401), 0.5), dropout(torch.ones(400, 401), 0.5)
    for a, b in ((first, second), (first[1:], first[:-1]), (first[:, 1:], first[:, :-1])):
        assert abs((a * b).ne(0).float().mean() - 0.25) < 0.006
    torch.manual_seed(1)
    assert torch.equal(dropout(torch.ones(400, 401), 0.5), first)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 0), (5, 7, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_any_shape_and_type(shape, dtype):
    x = torch.ones(shape, dtype=dtype)
    found = dropout(x, 0.25)
    assert found.shape == shape and found.dtype == dtype
    assert not dropout(x, 0.99999999).isnan().any() and dropout(x, 0.0) is x


@pytest.mark.parametrize("masked", [False, True])
def test_attention_with_dropout_is_torchs(masked):
    """With so small a probability that nothing is dropped."""
    torch.manual_seed(1)
    inputs = torch.randn(3, 2, 4, 5, 8)
    mask = torch.randn(2, 1, 5, 5) if masked else None
    found = attend(*inputs, mask, 1e-9)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(*inputs, mask), rtol=0, atol=1e-6)


def test_attention_drops_weights_and_not_values():
    """A row reads the sum of its four weights, each 0 or twice 1/4."""
    torch.manual_seed(1)
    read = attend(torch.zeros(1, 1, 2000, 4), torch.zeros(1, 1, 4, 4), torch.ones(1, 1, 4, 1), None, 0.5)
    assert set(read.unique().tolist()) == {0.0, 0.5, 1.0, 1.5, 2.0}
    assert abs(read.mean() - 1) < 0.05


def test_the_encoder_drops_with_its_probabilities_in_training_alone():
    config = replace(TINY, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2)
    encoder, inputs = tiny_encoder(config), batch()
    block = encoder.layers[1]
    assert (encoder.dropout_module.p, block.dropout_module.p, block.self_attn.dropout) == (0.3, 0.3, 0.2)
    assert block.activation_dropout_module.p == 0
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
