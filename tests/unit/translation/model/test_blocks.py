"""The backbone against fairseq's own: outputs, gradients, attention weights, draws of dropout."""

import copy
import gc
import weakref
from functools import partial

import pytest
import torch

from tests.helpers.models import batch, dense_model, moe_model, pair, stock_model


def assert_same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


PRE_NORM = dict(encoder_normalize_before=True, decoder_normalize_before=True)
MODELS = [
    dict(),
    PRE_NORM,
    dict(dropout=0.2, attention_dropout=0.1, activation_dropout=0.1, relu_dropout=0.1),
    dict(dropout=0.2, encoder_layerdrop=0.5, decoder_layerdrop=0.5),
    dict(dropout=0.1, quant_noise_pq=0.5, quant_noise_pq_block_size=4),
    dict(no_cross_attention=True, dropout=0.3),
    dict(cross_self_attention=True, dropout=0.3, **PRE_NORM),
    dict(cross_self_attention=True, no_cross_attention=True, dropout=0.3),
    dict(dropout=0.2, checkpoint_activations=True),
    dict(checkpoint_activations=True, offload_activations=True),
    dict(layernorm_embedding=True, no_scale_embedding=True, no_token_positional_embeddings=True),
    dict(decoder_learned_pos=True, encoder_learned_pos=True, no_decoder_final_norm=True),
    dict(share_all_embeddings=False, decoder_embed_dim=8, decoder_ffn_embed_dim=8, decoder_output_dim=12),
    dict(activation_fn="gelu", decoder_layers=3),
]
DENSE_ONLY = {"cross_self_attention", "no_cross_attention", "quant_noise_pq"}
CASES = [
    *((dense_model, options) for options in MODELS),
    *((partial(moe_model, dense_updates=1), options) for options in MODELS if not DENSE_ONLY & set(options)),
]


@pytest.mark.parametrize(("ours", "options"), CASES, ids=lambda case: "+".join(case) if isinstance(case, dict) else "")
def test_a_model_trains_as_fairseqs(ours, options):
    model, right = (each.train() for each in pair(ours, **options))
    net_input, stock_input = (batch(task_ids, pad=ours is dense_model) for task_ids in (True, False))
    found, wanted = [], []
    for each, inputs, results in ((model, net_input, found), (right, stock_input, wanted)):
        torch.manual_seed(3)
        logits, extra = each(**inputs, alignment_heads=1)
        logits.square().mean().backward()
        results += [logits, extra["attn"][0], extra["inner_states"]]
        results += [parameter.grad for parameter in each.parameters()]
    assert_same(found, wanted)


@pytest.mark.parametrize("alignment", [{}, dict(alignment_layer=0), dict(alignment_layer=1, alignment_heads=1)])
def test_a_model_evaluates_as_fairseqs(alignment):
    model, right = pair()
    net_input = batch(task_ids=False)
    (found, extra), (wanted, stock_extra) = (each(**net_input, **alignment) for each in (model, right))
    assert torch.equal(found, wanted)
    assert_same(extra, stock_extra)
    encoded, stock = (
        each.encoder(net_input["src_tokens"], net_input["src_lengths"], return_all_hiddens=True)
        for each in (model, right)
    )
    assert {key for key in stock if key != "fc_results"} == {key for key in encoded if key != "task_ids"}
    for key in set(encoded) - {"task_ids"}:
        assert_same(encoded[key], stock[key])
    target = net_input["prev_output_tokens"]
    whole = (each.decoder(target, copy.copy(out), full_context_alignment=True)[0]
             for each, out in ((model, encoded), (right, stock)))  # fmt: skip
    assert torch.equal(*whole)


def test_dropout_modules_have_the_names_that_fairseq_gives_them():
    """Those that `--retain-dropout-modules` knows."""

    def names(model):
        return {path: m.module_name for path, m in model.named_modules() if hasattr(m, "module_name")}

    assert names(dense_model()) == names(moe_model(dense_updates=1)) == names(stock_model())


@pytest.mark.parametrize("checkpointing", [False, True])
def test_nothing_of_a_batch_survives_its_pass(checkpointing):
    model = moe_model(expert_gates="task", checkpoint_activations=checkpointing).train()
    net_input = batch()
    ids = weakref.ref(net_input["task_ids"])
    model(**net_input)[0].sum().backward()
    del net_input
    gc.collect()
    assert ids() is None
