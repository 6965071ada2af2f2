"""The encoder against Hugging Face's (states, pooled states and every gradient), and what only ours has."""

import dataclasses

import pytest
import torch
from torch import nn

from fairseq_mtmoe.backbones.bert.config import BERT, ROBERTA
from fairseq_mtmoe.backbones.bert.encoder import BertEncoder
from fairseq_mtmoe.backbones.bert.key_map import our_key
from tests.helpers.bert import (
    CONFIGS,
    TINY,
    TINY_ROBERTA,
    batch,
    hugging_face_model,
    in_all_places,
    ours_of,
    theirs_of,
    tiny_encoder,
)
from tests.helpers.pairwise import pairwise
from tests.helpers.refused import refused

WITHOUT_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
kinds = pytest.mark.parametrize("config", [TINY, TINY_ROBERTA], ids=[BERT, ROBERTA])


@pytest.fixture(params=["real tokens", "all places"], autouse=True)
def each_form(request, monkeypatch):
    """The rows are what they are on a CPU, and what they are elsewhere."""
    if request.param == "all places":
        in_all_places(monkeypatch)


def assert_close(found, wanted, atol=1e-5):
    torch.testing.assert_close(found, wanted, rtol=0, atol=atol)


def total(hidden, pooled):
    """A loss to which every number contributes something of its own."""
    return sum((x * torch.linspace(-1, 1, x.numel()).view_as(x)).sum() for x in (hidden, pooled))


def gradients(model):
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(
    "kind, sizes", [(BERT, (7, 4, 6)), (ROBERTA, (7, 7)), (ROBERTA, (7, 4, 6)), ("minilm", (9, 4))]
)
def test_states_and_gradients_are_hugging_faces(kind, sizes):
    config = CONFIGS[kind]
    theirs = hugging_face_model(config)
    ours, inputs = ours_of(theirs), batch(config, sizes)
    hidden, pooled = theirs_of(theirs, inputs)
    hidden = hidden.masked_fill(inputs["padding_mask"].unsqueeze(-1), 0)
    found = ours(**inputs)
    assert_close(found.hidden, hidden)
    assert_close(found.pooled, pooled)
    total(hidden, pooled).backward()
    total(*found[:2]).backward()
    wanted = {our_key(name): gradient for name, gradient in gradients(theirs).items()}
    assert gradients(ours).keys() == wanted.keys()
    for name, gradient in gradients(ours).items():
        assert (gradient - wanted[name]).norm() <= 1e-4 * wanted[name].norm() + 1e-4, name


@kinds
def test_without_types_all_tokens_are_of_the_first_sentence(config):
    encoder, inputs = tiny_encoder(config), batch(config)
    first = {**inputs, "token_type_ids": torch.zeros_like(inputs["token_type_ids"])}
    del inputs["token_type_ids"]
    assert_close(encoder(**inputs).hidden, encoder(**first).hidden, atol=1e-6)


@kinds
def test_padding_changes_nothing_and_is_found_by_its_token(config):
    encoder, inputs = tiny_encoder(config), batch(config)
    wanted = encoder(**inputs)
    longer = {name: nn.functional.pad(value, (0, 3)) for name, value in inputs.items()}
    longer["tokens"][:, -3:] = config.pad_token_id
    del longer["padding_mask"]
    found = encoder(**longer)
    assert_close(found.hidden[:, :-3], wanted.hidden, atol=1e-6)
    assert_close(found.pooled, wanted.pooled, atol=1e-6)
    assert not found.hidden[:, -3:].any()
    alone = encoder(inputs["tokens"][1:2, :4], inputs["token_type_ids"][1:2, :4])
    assert_close(alone.hidden, wanted.hidden[1:2, :4], atol=1e-6)


def test_a_sentence_of_padding_alone_is_finite():
    encoder, inputs = tiny_encoder(), batch(sizes=(3, 0))
    for tokens in (inputs["tokens"], torch.zeros(2, 3, dtype=torch.long)):
        encoder.zero_grad()
        found = encoder(tokens)
        total(*found[:2]).backward()
        assert found.pooled.isfinite().all() and all(value.isfinite().all() for value in gradients(encoder).values())


@pairwise(config=[TINY, TINY_ROBERTA], sizes=[(7, 7), (7, 4, 6), (3, 0)], checkpoints=[False, True])
def test_first_states_alone_are_the_same(config, sizes, checkpoints):
    encoder, inputs, found = tiny_encoder(config, checkpoint_activations=checkpoints), batch(config, sizes), []
    for firsts_only in (False, True):
        encoder.zero_grad()
        hidden, pooled = encoder(**inputs, firsts_only=firsts_only)[:2]
        total(hidden[:, :1], pooled).backward()
        found.append({"hidden": hidden[:, :1].detach(), "pooled": pooled.detach(), **gradients(encoder)})
    assert hidden.shape == (len(sizes), 1, 16)
    for name, value in found[0].items():
        assert_close(found[1][name], value)


def test_first_states_alone_leave_the_others_of_the_last_block_out():
    encoder, widths = tiny_encoder(), []
    for block in encoder.layers:
        block.fc1.register_forward_hook(lambda module, inputs, output: widths.append(output.shape[:-1].numel()))
    encoder(**batch(sizes=(7, 4, 6)), firsts_only=True)
    assert widths in ([17, 3], [21, 3])


@pytest.mark.parametrize("config, longest", [(TINY, 24), (TINY_ROBERTA, 22)], ids=[BERT, ROBERTA])
def test_sentences_have_at_most_as_many_tokens_as_positions(config, longest):
    encoder = tiny_encoder(config)
    assert encoder(torch.full((1, longest), 5)).hidden.shape == (1, longest, 16)
    with refused("the length of a sentence"):
        encoder(torch.full((1, longest + 1), 5))


def test_initial_values_are_berts():
    torch.manual_seed(1)
    encoder = BertEncoder(dataclasses.replace(TINY, hidden_size=64, intermediate_size=256))
    block = encoder.layers[1]
    for weight in (block.fc1.weight, block.self_attn.q_proj.weight, encoder.embed_tokens.weight[1:]):
        assert 0.018 < weight.std() < 0.022
    assert not encoder.embed_tokens.weight[0].any() and not block.fc2.bias.any()
    assert block.final_layer_norm.weight.eq(1).all()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_activation_checkpointing_changes_nothing(dropout):
    config = dataclasses.replace(TINY, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    found = []
    for checkpoints in (False, True):
        encoder = tiny_encoder(config, checkpoint_activations=checkpoints).train()
        torch.manual_seed(5)
        output = encoder(**batch())
        total(*output[:2]).backward()
        found.append({"hidden": output.hidden.detach(), **gradients(encoder)})
    for name, value in found[0].items():
        assert_close(found[1][name], value, atol=1e-6)


def test_what_trains_in_a_frozen_lower_half_gets_gradients_under_checkpointing():
    encoder = tiny_encoder(checkpoint_activations=True).train().requires_grad_(False)
    trained = encoder.layers[0].self_attn_layer_norm.requires_grad_(True)
    total(*encoder(**batch())[:2]).backward()
    assert trained.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_near(dtype, config=TINY_ROBERTA):
    config = dataclasses.replace(config, **WITHOUT_DROPOUT)
    encoder, inputs = tiny_encoder(config), batch(config)
    wanted = encoder(**inputs).hidden
    half = tiny_encoder(config).to(dtype).train()
    found = half(**inputs)
    assert found.hidden.dtype == dtype
    assert_close(found.hidden.float(), wanted, atol=0.1)
    total(*(x.float() for x in found[:2])).backward()
    assert all(gradient.isfinite().all() and gradient.dtype == dtype for gradient in gradients(half).values())
    with_dropout = tiny_encoder(dataclasses.replace(config, hidden_dropout_prob=0.1)).to(dtype).train()
    assert with_dropout(**inputs).hidden.isfinite().all()


def test_autocast_is_near():
    encoder, inputs = tiny_encoder(), batch()
    wanted = encoder(**inputs).hidden
    with torch.autocast("cpu", torch.bfloat16):
        found = encoder.train()(**inputs).hidden, encoder.eval()(**inputs).hidden
    assert_close(found[1].float(), wanted, atol=0.1)
    assert found[0].isfinite().all()


def test_the_encoder_compiles_without_a_graph_break():
    """`torch.compile` takes the encoder as one graph, without falling back to Python in between."""
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
