"""The encoder that adapts to tasks: what it begins as, in both of its forms, packed and padded; and what is frozen."""

import dataclasses

import pytest
import torch

from fairseq_mtmoe.backbones.bert.config import BERT, BERT_BASE, BERT_LARGE, ROBERTA
from fairseq_mtmoe.backbones.bert.encoder import BertEncoder
from fairseq_mtmoe.backbones.bert.model import freeze
from fairseq_mtmoe.backbones.blocks import Conditions
from fairseq_mtmoe.conditioning import ATTENTION, PARTS, conditional_names, with_new_conditions
from tests.helpers.bert import CONFIGS, TINY, batch, in_all_places, perturb, tiny_encoder
from tests.helpers.pairwise import pairwise
from tests.helpers.refused import refused

FORMS = {"base": False, "large": True}
SIZES = (7, 4, 6)
TASK_IDS = torch.tensor([2, 0, 2])
NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
forms = pytest.mark.parametrize("is_large", FORMS.values(), ids=FORMS)


def plain_encoder(config=TINY):
    return tiny_encoder(dataclasses.replace(config, has_pooler=False, **NO_DROPOUT))


def conditional(config=TINY, parts=PARTS, is_large=False, positions=5, **options):
    """An encoder with a plain one's parameters, and new conditional parts."""
    plain = plain_encoder(config)
    torch.manual_seed(2)
    conditions = Conditions(frozenset(parts), 3, config.hidden_size, positions, is_large)
    encoder = BertEncoder(plain.config, conditions=conditions, **options).eval()
    encoder.load_state_dict(with_new_conditions(encoder, plain.state_dict()))
    return encoder


def trained(*args, **options):
    """One whose conditional parts matter."""
    encoder = conditional(*args, **options).train()
    perturb(encoder, 0.2)
    return encoder


def run(encoder, config=TINY, sizes=SIZES, firsts_only=False):
    """What comes out, and every gradient of a sum of it in which no number counts as another."""
    encoder.zero_grad(set_to_none=True)
    hidden = encoder(**batch(config, sizes), task_ids=TASK_IDS[: len(sizes)], firsts_only=firsts_only).hidden
    (hidden * torch.linspace(-1, 2, hidden.numel()).view(hidden.shape)).sum().backward()
    return hidden.detach(), {name: parameter.grad for name, parameter in encoder.named_parameters()}


def assert_same(found, wanted):
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-5, atol=1e-5)
    assert found[1].keys() == wanted[1].keys()
    for name, gradient in wanted[1].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-4, atol=1e-4, msg=lambda text, at=name: at + text)


@pairwise(kind=[BERT, ROBERTA], parts=[PARTS, *((part,) for part in PARTS)])
def test_it_begins_as_the_pretrained_encoder(kind, parts):
    config = CONFIGS[kind]
    wanted = plain_encoder(config)(**batch(config)).hidden
    found = conditional(config, parts)(**batch(config), task_ids=TASK_IDS).hidden
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_the_large_form_begins_so_without_its_bottlenecks_and_hands_on_a_third_of_the_dimensions_with_them():
    wanted = plain_encoder()(**batch()).hidden
    found = conditional(parts=PARTS[:3], is_large=True)(**batch(), task_ids=TASK_IDS).hidden
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    chained = conditional(is_large=True)(**batch(), task_ids=TASK_IDS).hidden
    assert torch.linalg.matrix_rank(chained.flatten(0, 1)) == TINY.hidden_size // 3


@pairwise(is_large=[False, True], firsts_only=[False, True], sizes=[SIZES, (6, 6)])
def test_packed_and_padded_it_computes_the_same(is_large, firsts_only, sizes, monkeypatch):
    encoder = trained(is_large=is_large)
    found = run(encoder, sizes=sizes, firsts_only=firsts_only)
    in_all_places(monkeypatch)
    assert_same(found, run(encoder, sizes=sizes, firsts_only=firsts_only))


@forms
def test_first_tokens_alone_are_those_of_all(is_large):
    encoder = trained(is_large=is_large).eval()
    whole = encoder(**batch(), task_ids=TASK_IDS).hidden
    firsts = encoder(**batch(), task_ids=TASK_IDS, firsts_only=True).hidden
    torch.testing.assert_close(firsts, whole[:, :1], rtol=1e-5, atol=1e-5)


@forms
@pytest.mark.parametrize("padded", [False, True])
def test_a_sentence_is_the_same_in_any_company_at_any_padded_length(is_large, padded, monkeypatch):
    """By its own task, whichever others are in the batch; nothing depends on how long the longest one is."""
    encoder = trained(is_large=is_large).eval()
    if padded:
        in_all_places(monkeypatch)
    together = encoder(**batch(), task_ids=TASK_IDS).hidden
    for index, size in enumerate(SIZES):
        alone = {name: value[index : index + 1, :size] for name, value in batch().items()}
        found = encoder(**alone, task_ids=TASK_IDS[index : index + 1]).hidden
        torch.testing.assert_close(found, together[index : index + 1, :size], rtol=1e-5, atol=1e-5)
        other = encoder(**alone, task_ids=(TASK_IDS[index : index + 1] + 1) % 3).hidden
        assert (other - found).abs().max() > 1e-2


@forms
def test_recomputed_activations_have_the_same_gradients(is_large):
    encoder = trained(is_large=is_large)
    wanted = run(encoder)
    encoder.checkpoint_activations = True
    assert_same(run(encoder), wanted)


def test_it_compiles_without_a_graph_break():
    torch._dynamo.reset()
    encoder = trained()
    encoder.layers = encoder.layers[1:]
    wanted = run(encoder)
    compiled = torch.compile(encoder, backend="aot_eager", fullgraph=True)
    hidden = compiled(**batch(), task_ids=TASK_IDS).hidden
    torch.testing.assert_close(hidden, wanted[0], rtol=1e-4, atol=1e-4)


def test_sentences_without_tasks_are_refused():
    with refused("task_ids"):
        conditional()(**batch())


# ---- parameters ----


def parameters_of(config, parts, is_large=False):
    """Of a plain encoder, and of one that adapts to 8 tasks."""
    with torch.device("meta"):
        plain = BertEncoder(config)
        ours = BertEncoder(config, conditions=Conditions(frozenset(parts), 8, config.hidden_size, 128, is_large))
    return tuple(sum(parameter.numel() for parameter in encoder.parameters()) for encoder in (plain, ours))


def test_base_has_1_12_times_the_encoders_parameters():
    plain, ours = parameters_of(BERT_BASE, PARTS)
    assert round(ours / plain, 2) == 1.12


BOTTLENECK = 768 * 1536 + 1536 + 2 * 768 * 256 + 256 + 768 + 2 * 768
OF_NORM = 1024 * 2048 + 2048  # of BERT large


@pytest.mark.parametrize(
    ("config", "parts", "added"),
    [
        (BERT_BASE, ["alignment"], 768 * 768 + 768 * 1536 + 1536 - (768 * 768 + 768)),
        (BERT_BASE, ["attention"], 12 * (128 * 22 + 768 * 44 + 44)),
        (BERT_BASE, ["norm"], 6 * (768 * 1536 + 1536)),
        (BERT_BASE, ["bottleneck"], BOTTLENECK),
        (BERT_LARGE, ["norm", "bottleneck"], 24 * OF_NORM + 24 * (OF_NORM + 2 * 1024 * 341 + 341 + 1024)),
    ],
)
def test_each_part_adds_what_the_readme_counts(config, parts, added):
    plain, ours = parameters_of(config, parts, is_large=config is BERT_LARGE)
    D = config.hidden_size
    assert ours - plain == added + 8 * D + D * D + D  # with the table, whose map alignment does not have


# ---- freezing ----


def frozen_half(parts=PARTS, **options):
    encoder = trained(parts=parts, **options)
    freeze(encoder, 1)
    return encoder


@pytest.mark.parametrize("parts", [PARTS, (ATTENTION,), ("norm", "bottleneck")], ids="-".join)
def test_the_lower_half_and_the_embeddings_get_no_gradient_and_all_else_does(parts):
    encoder = frozen_half(parts)
    adapts = set(conditional_names(encoder))
    _, gradients = run(encoder)
    lower = {name for name in gradients if name.startswith(("embed_", "layernorm_embedding.", "layers.0."))}
    assert {name for name, gradient in gradients.items() if gradient is None} == lower - adapts
    assert len(lower - adapts) == 5 + 16


def test_frozen_blocks_lose_no_gradient_of_what_is_conditional_in_them():
    """Those are as large as if nothing were frozen."""
    encoder = trained()
    _, wanted = run(encoder)
    freeze(encoder, 2)
    _, found = run(encoder)
    for name in conditional_names(encoder):
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-4, atol=1e-5)
