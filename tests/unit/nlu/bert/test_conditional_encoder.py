"""The encoder that adapts to tasks: what it begins as, in both of its forms; and what is frozen."""

import pytest
import torch

from fairseq_mtmoe.conditioning import PARTS, conditional_names
from fairseq_mtmoe.nlu.bert.config import BERT, BERT_BASE, BERT_LARGE, ROBERTA
from fairseq_mtmoe.nlu.bert.encoder import BertEncoder
from fairseq_mtmoe.nlu.bert.model import freeze
from fairseq_mtmoe.slots.blocks import Conditions
from tests.helpers.bert import CONFIGS, TINY, batch, conditional_encoder, in_all_places, tiny_encoder
from tests.helpers.pairwise import pairwise
from tests.helpers.refused import refused
from tests.integration.nlu.bert.test_bert_encoder import IDS, SIZES, made, run


@pairwise(kind=[BERT, ROBERTA], parts=[PARTS, *((part,) for part in PARTS)])
def test_it_begins_as_the_pretrained_encoder(kind, parts):
    config = CONFIGS[kind]
    wanted = tiny_encoder(config)(**batch(config)).hidden
    found = conditional_encoder(config, parts, scale=0)(**batch(config), task_ids=IDS).hidden
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_the_large_form_begins_so_without_its_bottlenecks_and_hands_on_a_third_of_the_dimensions_with_them():
    wanted = tiny_encoder()(**batch()).hidden
    found, chained = (
        conditional_encoder(parts=parts, is_large=True, scale=0)(**batch(), task_ids=IDS).hidden
        for parts in (PARTS[:3], PARTS)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert torch.linalg.matrix_rank(chained.flatten(0, 1)) == TINY.hidden_size // 3


@pairwise(kind=["conditional", "large"], firsts_only=[False, True], sizes=[SIZES, (6, 6)])
def test_packed_and_padded_it_computes_the_same(kind, firsts_only, sizes, monkeypatch):
    encoder = made(kind).train()
    found = run(encoder, batch(sizes=sizes), firsts_only=firsts_only)
    in_all_places(monkeypatch)
    torch.testing.assert_close(run(encoder, batch(sizes=sizes), firsts_only=firsts_only), found, rtol=1e-5, atol=1e-5)


def test_sentences_without_tasks_are_refused():
    with refused("task_ids"):
        conditional_encoder()(**batch())


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
    D = config.hidden_size
    with torch.device("meta"):
        conditions = Conditions(frozenset(parts), 8, D, 128, is_large=config is BERT_LARGE)
        encoders = BertEncoder(config), BertEncoder(config, conditions=conditions)
    plain, ours = (sum(parameter.numel() for parameter in encoder.parameters()) for encoder in encoders)
    assert ours - plain == added + 8 * D + D * D + D  # with the table, whose map alignment does not have


def test_a_frozen_lower_half_gets_no_gradient_but_what_is_conditional_in_it_does():
    """Those are as large as if nothing were frozen."""
    encoder = made("conditional").train()
    wanted = run(encoder, batch())
    freeze(encoder, 1)
    found, adapts = run(encoder, batch()), set(conditional_names(encoder))
    lower = {name for name in found if name.startswith(("embed_", "layernorm_embedding.", "layers.0."))}
    assert {name for name, gradient in found.items() if gradient is None} == lower - adapts
    for name in adapts:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-4, atol=1e-5)
