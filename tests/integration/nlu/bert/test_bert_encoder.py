"""The encoder against Hugging Face's (states and every gradient), and what only ours has.

Dense, with experts in all blocks as in MT-TaG, and conditional as in CA-MTL.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.nn import functional as F

from fairseq_mtmoe.moe.gates import BaseGate, SwitchGate, TaskGate
from fairseq_mtmoe.nlu.bert.config import BERT, BERT_BASE, BERT_LARGE, MINILM, ROBERTA
from fairseq_mtmoe.nlu.bert.encoder import BertEncoder
from fairseq_mtmoe.nlu.bert.key_map import KEYS
from fairseq_mtmoe.slots import ExpertPlan, expert_layers, expert_slots
from tests.helpers.bert import (
    CONFIGS,
    NO_DROPOUT,
    TINY,
    TINY_ROBERTA,
    batch,
    conditional_encoder,
    hugging_face_model,
    in_all_places,
    ours_of,
    perturb,
    theirs_of,
    tiny_encoder,
)
from tests.helpers.pairwise import pairwise
from tests.helpers.refused import refused
from tests.helpers.scheduled import rarely

SIZES, IDS = (7, 4, 6), torch.tensor([2, 0, 2])
GATES = {"base": BaseGate, "task": TaskGate, "switch": SwitchGate}


@pytest.fixture(params=["real tokens", "all places"], autouse=True)
def each_form(request, monkeypatch):
    """The rows are what they are on a CPU, and what they are elsewhere."""
    if request.param == "all places":
        in_all_places(monkeypatch)


def plans(gate, blocks=TINY.num_hidden_layers, num_tasks=3):
    return dict.fromkeys(range(blocks), ExpertPlan(GATES[gate], 4, "paper", num_tasks, starts_dense=True))


def sparsify(encoder):
    for path, slot in expert_slots(encoder).items():
        slot.sparsify(encoder.get_submodule(path))
    return encoder


def sparse_encoder(config, gate):
    return perturb(sparsify(tiny_encoder(config, slot_plans=plans(gate))))


# An encoder's name -> how it is made of a config.
ENCODERS = {
    **dict.fromkeys((BERT, ROBERTA), tiny_encoder),
    **{gate: partial(sparse_encoder, gate=gate) for gate in GATES},
    "conditional": conditional_encoder,
    "large": partial(conditional_encoder, is_large=True),
}


def made(kind, **dropout):
    return ENCODERS[kind](replace(TINY_ROBERTA if kind == ROBERTA else TINY, **{**NO_DROPOUT, **dropout}))


def assert_close(found, wanted, atol=1e-5):
    torch.testing.assert_close(found, wanted, rtol=0, atol=atol)


def total(hidden):
    """A loss to which every number contributes something of its own."""
    return (hidden * torch.linspace(-1, 1, hidden.numel()).view_as(hidden)).sum()


def gradients(model):
    return {name: parameter.grad for name, parameter in model.named_parameters() if "pooler" not in name}


def run(encoder, inputs, seen=None, function=None, **options):
    """The states of some tokens, and every gradient of a loss of them."""
    encoder.zero_grad()
    torch.manual_seed(5)
    forward = encoder if function is None else function
    hidden = forward(**inputs, task_ids=IDS[: len(inputs["tokens"])], **options).hidden[:, :seen]
    total(hidden).backward()
    return {"hidden": hidden.detach(), **gradients(encoder)}


@pytest.mark.parametrize(
    "kind, sizes", [(BERT, (7, 4, 6)), (ROBERTA, (7, 7)), (ROBERTA, (7, 4, 6)), ("minilm", (9, 4))]
)
def test_states_and_gradients_are_hugging_faces(kind, sizes):
    config = CONFIGS[kind]
    theirs = hugging_face_model(config)
    ours, inputs = ours_of(theirs), batch(config, sizes)
    wanted, found = theirs_of(theirs, inputs), ours(**inputs).hidden
    assert_close(found, wanted)
    total(wanted).backward()
    total(found).backward()
    wanted = {KEYS.our_key(name): gradient for name, gradient in gradients(theirs).items()}
    assert gradients(ours).keys() == wanted.keys()
    for name, gradient in gradients(ours).items():
        assert (gradient - wanted[name]).norm() <= 1e-4 * wanted[name].norm() + 1e-4, name


def test_without_types_all_tokens_are_of_the_first_sentence():
    encoder, inputs = tiny_encoder(), batch()
    first = {**inputs, "token_type_ids": torch.zeros_like(inputs["token_type_ids"])}
    del inputs["token_type_ids"]
    assert_close(encoder(**inputs).hidden, encoder(**first).hidden, atol=1e-6)


@pytest.mark.parametrize("kind", [kind for kind in ENCODERS if kind != "base"])
def test_a_sentence_is_the_same_in_any_company_at_any_padded_length(kind):
    """By its own task, whichever others are in the batch; nothing depends on how long the longest one is."""
    encoder = made(kind).double()  # in which no processor's rounding comes near the bound
    inputs, pad = batch(encoder.config), encoder.config.pad_token_id
    wanted = encoder(**inputs, task_ids=IDS)
    tokens, types = F.pad(inputs["tokens"], (0, 3), value=pad), F.pad(inputs["token_type_ids"], (0, 3))
    longer = encoder(tokens, types, task_ids=IDS)
    assert_close(longer.hidden[:, :-3], wanted.hidden, atol=1e-6)
    assert not longer.hidden[:, -3:].any()
    for row, size in enumerate(SIZES):
        alone = [x[row : row + 1, :size] for x in (tokens, types)]
        found, other = (encoder(*alone, task_ids=ids[row : row + 1]).hidden for ids in (IDS, (IDS + 1) % 3))
        assert_close(found, wanted.hidden[row : row + 1, :size], atol=1e-6)
        assert ((other - found).abs().max() > 1e-2) == (kind in ("task", "conditional", "large"))


def test_a_sentence_of_padding_alone_is_finite():
    encoder, inputs = tiny_encoder(), batch(sizes=(3, 0))
    for tokens in (inputs["tokens"], torch.zeros(2, 3, dtype=torch.long)):
        encoder.zero_grad()
        found = encoder(tokens).hidden
        total(found).backward()
        assert found.isfinite().all() and all(value.isfinite().all() for value in gradients(encoder).values())


@pairwise(kind=ENCODERS, sizes=[(7, 7), SIZES, (3, 0)], checkpoints=[False, True])
def test_first_states_alone_are_the_same(kind, sizes, checkpoints):
    encoder = made(kind).train()
    encoder.checkpoint_activations = checkpoints
    whole, firsts = (run(encoder, batch(encoder.config, sizes), 1, firsts_only=alone) for alone in (False, True))
    assert_close(firsts, whole)


@pytest.mark.parametrize("gate", GATES)
def test_a_gate_that_weighs_tokens_against_each_other_sees_all_of_them_in_the_last_block_too(gate):
    encoder, seen = made(gate).train(), []
    last = encoder.layers[-1].moe
    last.gate.register_forward_hook(lambda module, inputs, routing: seen.append(len(routing.expert_T)))
    for enabled in (False, True):
        last.load.enabled = enabled  # whose counts are of all tokens
        assert encoder(**batch(), task_ids=IDS, firsts_only=True).hidden.shape == (3, 1 if seen == [3] else 7, 16)
    assert (seen[0] == 3) == (gate == "task") and seen[1] in (17, 21)


@pytest.mark.parametrize("config, longest", [(TINY, 24), (TINY_ROBERTA, 22)], ids=[BERT, ROBERTA])
def test_sentences_have_at_most_as_many_tokens_as_positions(config, longest):
    encoder = tiny_encoder(config)
    assert encoder(torch.full((1, longest), 5)).hidden.shape == (1, longest, 16)
    with refused("the length of a sentence"):
        encoder(torch.full((1, longest + 1), 5))


@pairwise(kind=ENCODERS, dropout=[0.0, 0.3])
def test_activation_checkpointing_changes_nothing(kind, dropout):
    encoder, found = made(kind, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout).train(), []
    for encoder.checkpoint_activations in (False, True):
        found.append(run(encoder, batch(encoder.config)))
    assert_close(*found, atol=1e-6)


@pytest.mark.parametrize("dropped", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_the_encoder_drops_with_each_probability_in_training_alone(dropped):
    encoder, inputs = made(BERT, **{dropped: 0.3}), batch()
    assert torch.equal(*(encoder(**inputs).hidden for _ in range(2)))
    encoder.train()
    assert not torch.allclose(*(encoder(**inputs).hidden for _ in range(2)), atol=1e-4)


def test_what_trains_in_a_frozen_lower_half_gets_gradients_under_checkpointing():
    encoder = tiny_encoder(checkpoint_activations=True).train().requires_grad_(False)
    trained = encoder.layers[0].self_attn_layer_norm.requires_grad_(True)
    total(encoder(**batch()).hidden).backward()
    assert trained.weight.grad.abs().sum() > 0


def test_half_precision_and_autocast_are_near():
    inputs = batch(TINY_ROBERTA)
    wanted = made(ROBERTA)(**inputs).hidden
    half = made(ROBERTA).half().train()
    found = half(**inputs).hidden.float()
    assert_close(found, wanted, atol=0.1)
    total(found).backward()
    assert all(gradient.isfinite().all() for gradient in gradients(half).values())
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(made(ROBERTA)(**inputs).hidden.float(), wanted, atol=0.1)


@pytest.mark.parametrize("kind", rarely([ROBERTA, "conditional"], ROBERTA))
def test_it_compiles_without_a_graph_break(kind):
    """`torch.compile` takes the encoder as one graph, without falling back to Python in between."""
    torch._dynamo.reset()
    encoder = made(kind).train()
    encoder.layers = encoder.layers[1:]
    compiled = torch.compile(encoder, backend="aot_eager", fullgraph=True)
    for sizes in (SIZES, (3, 5)):  # another length must not need another encoder
        inputs = batch(encoder.config, sizes)
        torch.testing.assert_close(run(encoder, inputs, function=compiled), run(encoder, inputs), rtol=1e-4, atol=1e-4)


def test_experts_get_no_padding():
    """BASE gives them equal shares of the real tokens, which are 17."""
    encoder = made("base").train()
    for layer in expert_layers(encoder).values():
        layer.load.enabled = True
    encoder(**batch())
    for layer in expert_layers(encoder).values():
        assert sorted(layer.load.counts.sum(0).tolist()) == [4, 4, 4, 5]


@pytest.mark.parametrize("config, millions", [(MINILM, (22, 44)), (BERT_BASE, (110, 280)), (BERT_LARGE, (335, 940))])
def test_parameter_counts_are_the_papers(config, millions):
    """MT-TaG, §3 and table 1: 8 tasks, 4 experts."""
    with torch.device("meta"):
        encoder = BertEncoder(config, plans("task", config.num_hidden_layers, num_tasks=8))
        dense = count(encoder)
        sparsify(encoder)
    gates = sum(count(layer.gate) for layer in expert_layers(encoder).values())
    assert abs(gates - 74e3) < 500 or config is not MINILM
    for parameters, published in zip((dense, count(encoder)), millions, strict=True):
        assert abs(parameters / 1e6 - published) < 0.035 * published


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())
