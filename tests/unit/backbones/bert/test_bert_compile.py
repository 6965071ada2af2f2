"""`torch.compile` takes the encoder as one graph, without falling back to Python in between."""

import dataclasses

import torch

from tests.helpers.bert import TINY_ROBERTA, batch, tiny_encoder


def test_the_encoder_compiles_without_a_graph_break():
    torch._dynamo.reset()
    small = dict(num_hidden_layers=1, has_pooler=False, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config = dataclasses.replace(TINY_ROBERTA, **small)
    encoder = tiny_encoder(config).train()
    compiled = torch.compile(encoder, backend="aot_eager", fullgraph=True)
    for sizes in ((7, 4, 6), (3, 5)):  # another length must not need another encoder
        inputs, results = batch(config, sizes), []
        for function in (compiled, encoder):
            encoder.zero_grad()
            hidden = function(**inputs).hidden
            hidden.square().sum().backward()
            results.append([hidden.detach(), *(parameter.grad for parameter in encoder.parameters())])
        for value, expected in zip(*results, strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-4)
