"""Attention of packed sentences against the same by torch's own operations, gradients included."""

import dataclasses

import pytest
import torch
from torch.nn import functional as F

from fairseq_mtmoe.moe.grouped_matmul.mkl_batch import has_batched_products
from fairseq_mtmoe.nlu.bert import attention as module
from fairseq_mtmoe.nlu.bert.attention import Packing, SelfAttention, packed_attention
from fairseq_mtmoe.nlu.bert.unpadding import unpadded
from tests.helpers.pairwise import pairwise

pytestmark = pytest.mark.skipif(not has_batched_products(torch.empty(0)), reason="this build of torch has no MKL")

WIDTH, HEADS = 12, 3


def inputs(*lengths, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(sum(lengths), WIDTH, generator=generator).requires_grad_() for _ in range(3)]


def slowly(query, key, value, readers, lengths, scales=None, bias=None):
    """One sentence after the other; `scales` are of the packed weights, `bias` is (S, 1, L, L)."""
    order = sorted(range(len(lengths)), key=lambda sentence: lengths[sentence])
    sizes = [HEADS * readers[sentence] * lengths[sentence] for sentence in order]
    scales_of = {} if scales is None else dict(zip(order, scales.split(sizes), strict=True))
    read = []
    sentences = zip(query.split([*readers]), key.split([*lengths]), value.split([*lengths]), strict=True)
    for sentence, tensors in enumerate(sentences):
        queries, keys, values = (tensor.unflatten(1, (HEADS, -1)).transpose(0, 1) for tensor in tensors)
        scores = queries @ keys.mT / 2
        if bias is not None:
            scores = scores + bias[sentence, :, : scores.shape[1], : scores.shape[2]]
        weights = scores.softmax(-1)
        weights = weights * scales_of[sentence].view_as(weights) if scales_of else weights
        read.append((weights @ values).transpose(0, 1).flatten(1))
    return torch.cat(read)


def assert_equal_with_gradients(found, wanted, tensors):
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
    direction = torch.linspace(-1, 1, found.numel()).view_as(found)
    results = [torch.autograd.grad((read * direction).sum(), tensors) for read in (found, wanted)]
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("lengths", [(5, 5, 5), (7, 1, 4, 7, 2), (3, 0, 6)])
def test_weights_of_sentences_are_dropped(lengths):
    tensors, counts = inputs(*lengths), torch.tensor(lengths)
    torch.manual_seed(1)
    scales = F.dropout(torch.ones(sum(HEADS * length * length for length in lengths)), 0.4)
    torch.manual_seed(1)
    found = packed_attention(*tensors, Packing.of(counts, counts, WIDTH, HEADS), 0.4)
    assert_equal_with_gradients(found, slowly(*tensors, lengths, lengths, scales), tensors)


@pairwise(lengths=[(5, 5, 5), (7, 1, 4, 7, 2), (3, 0, 6)], biased=[False, True], readers=["all", "first"])
def test_a_bias_is_added_to_each_sentences_scores_of_all_tokens_or_of_the_first(lengths, biased, readers):
    query, key, value = inputs(*lengths)
    bias = torch.randn(len(lengths), 1, 8, 8, requires_grad=True) if biased else None
    counts = torch.tensor(lengths)
    reading = counts if readers == "all" else torch.ones_like(counts)
    query = query if readers == "all" else torch.randn(len(lengths), WIDTH).requires_grad_()
    found = packed_attention(query, key, value, Packing.of(reading, counts, WIDTH, HEADS), 0.0, bias)
    wanted = slowly(query, key, value, reading.tolist(), lengths, bias=bias)
    assert_equal_with_gradients(found, wanted, (query, key, value, *([] if bias is None else [bias])))


@pairwise(biased=[False, True], firsts_only=[False, True], lengths=[(6, 6, 6), (6, 2, 5)])
def test_the_layer_is_the_same_in_both_forms(lengths, firsts_only, biased, monkeypatch):
    torch.manual_seed(1)
    layer = SelfAttention(WIDTH, HEADS, dropout=0.0).train()
    mask = torch.arange(6) >= torch.tensor(lengths).unsqueeze(1)
    bias = torch.randn(3, 1, 6, 6, requires_grad=True) if biased else None
    rows = dataclasses.replace(unpadded(mask), firsts_only=firsts_only)
    x = torch.randn(1, sum(lengths), WIDTH, requires_grad=True)
    found = layer(x, rows, bias)
    monkeypatch.setattr(module, "can_pack", lambda *operands: False)
    wanted = layer(x, rows, bias)
    assert found.shape == ((1, len(lengths), WIDTH) if firsts_only else x.shape)
    assert_equal_with_gradients(found, wanted, (x, *layer.parameters(), *([] if bias is None else [bias])))


@pytest.mark.parametrize("masked", [False, True])
def test_attention_with_dropout_is_torchs(masked):
    """With so small a probability that nothing is dropped."""
    inputs = torch.randn(3, 2, 4, 5, 8)
    mask = torch.randn(2, 1, 5, 5) if masked else None
    wanted = F.scaled_dot_product_attention(*inputs, mask)
    torch.testing.assert_close(module.attend(*inputs, mask, 1e-9), wanted, rtol=0, atol=1e-6)


def test_what_cannot_be_packed_is_not(monkeypatch):
    layer, x = SelfAttention(WIDTH, HEADS, 0.1), torch.randn(1, 7, WIDTH)
    rows, calls = unpadded(torch.zeros(1, 7, dtype=torch.bool)), []
    monkeypatch.setattr(module, "packed_attention", lambda *args: calls.append(1) or packed_attention(*args))
    layer(x[:, :5], unpadded(torch.tensor([[True, False, False, True, False, False, False]])), torch.zeros(1, 1, 7, 7))
    layer.double()(x.double(), rows)
    with torch.autocast("cpu", torch.bfloat16):
        layer.float()(x, rows)
    assert not calls
    layer(x, rows)
    assert calls
