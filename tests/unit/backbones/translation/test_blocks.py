"""The backbone's blocks and stacks against fairseq's own: outputs, gradients, attention weights, draws of dropout."""

import copy
import gc
import weakref
from functools import partial

import pytest
import torch
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase

from fairseq_mtmoe.backbones.translation.blocks import DecoderBlock, EncoderBlock
from fairseq_mtmoe.options.transformer import nested_options
from fairseq_mtmoe.slots import BatchContext, dense
from tests.helpers.models import SIZES, DenseConfig, batch, dense_model, moe_model, perturb, stock_model, without_ids
from tests.helpers.pairwise import pairwise

H, L, B, S = 16, 5, 3, 7
NORMS = [False, True]


def options_of(norm=False, **options):
    normalize = dict(encoder_normalize_before=norm, decoder_normalize_before=norm)
    return nested_options(DenseConfig(**{**SIZES, **normalize, **options}))


def pair_of_blocks(ours, fairseqs, cfg, **arguments):
    block, right = ours(cfg, **arguments), fairseqs(cfg, **arguments)
    perturb(right)
    block.load_state_dict(right.state_dict())
    assert [name for name, _ in block.named_parameters()] == [name for name, _ in right.named_parameters()]
    return block, right


def padding(length):
    mask = torch.zeros(B, length, dtype=torch.bool)
    mask[0, -2:] = True
    return mask


def assert_same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def assert_same_passes(ours, theirs, inputs, seed=5):
    """The results and, with a loss over the first of them, every gradient; with the same draws of dropout."""
    results, gradients = [], []
    for block, forward in (ours, theirs):
        arguments = [x.clone().requires_grad_() for x in inputs]
        torch.manual_seed(seed)
        result = forward(*arguments)
        first = result[0] if isinstance(result, tuple) else result
        (first * torch.linspace(-1, 1, first.numel()).view_as(first)).sum().backward()
        results.append(result)
        named = {name: p.grad for name, p in block.named_parameters()}
        gradients.append({**named, **{f"input {i}": x.grad for i, x in enumerate(arguments)}})
    assert_same(*results)
    assert gradients[0].keys() == gradients[1].keys()
    for name in gradients[1]:
        assert_same(gradients[0][name], gradients[1][name])


@pairwise(norm=NORMS, padded=[False, True], dropout=[0.0, 0.3])
def test_an_encoder_block_is_fairseqs(norm, padded, dropout):
    cfg = options_of(norm, dropout=dropout, attention_dropout=dropout, activation_dropout=dropout)
    block, right = pair_of_blocks(EncoderBlock, TransformerEncoderLayerBase, cfg)
    assert block.slot is dense
    mask = padding(L) if padded else None
    forward = lambda x: block(x, BatchContext(padding_mask=mask))  # noqa: E731
    assert_same_passes((block, forward), (right, lambda x: right(x, mask)), [torch.randn(L, B, H)])


DECODERS = [
    {},
    {"cross_self_attention": True},
    {"cross_self_attention": True, "no_encoder_attn": True},
    {"no_encoder_attn": True},
]


@pairwise(
    norm=NORMS,
    options=DECODERS,
    padded=[(), ("source",), ("target",), ("source", "target")],
    weights=[(), ("need_attn",), ("need_attn", "need_head_weights")],
)
def test_a_decoder_block_is_fairseqs(norm, options, padded, weights):
    cfg = options_of(norm, dropout=0.3, cross_self_attention="cross_self_attention" in options)
    arguments = {name: value for name, value in options.items() if name == "no_encoder_attn"}
    block, right = pair_of_blocks(DecoderBlock, TransformerDecoderLayerBase, cfg, **arguments)
    source_mask = padding(S) if "source" in padded else None
    mask = padding(L) if "target" in padded else None
    future = torch.full((L, L), float("-inf")).triu(1)
    wanted = dict.fromkeys(weights, True)
    assert_same_passes(
        (block, lambda x, e: block(x, BatchContext(padding_mask=mask), e, source_mask, None, future, **wanted)),
        (
            right,
            lambda x, e: right(x, e, source_mask, None, self_attn_mask=future, self_attn_padding_mask=mask, **wanted),
        ),
        [torch.randn(L, B, H), torch.randn(S, B, H)],
    )


def test_weights_of_attention_are_given_in_evaluation_until_generation_is_made_fast():
    block, right = pair_of_blocks(DecoderBlock, TransformerDecoderLayerBase, options_of())
    x, encoded = torch.randn(L, B, H), torch.randn(S, B, H)
    for _ in range(2):
        assert_same(block.eval()(x, BatchContext(), encoded), right.eval()(x, encoded))
        for each in (block, right):
            each.make_generation_fast_(need_attn=False)
    assert block(x, BatchContext(), encoded)[1] is None


MODELS = [
    dict(),
    dict(encoder_normalize_before=True, decoder_normalize_before=True),
    dict(dropout=0.2, attention_dropout=0.1, activation_dropout=0.1, relu_dropout=0.1),
    dict(dropout=0.2, encoder_layerdrop=0.5, decoder_layerdrop=0.5),
    dict(dropout=0.1, quant_noise_pq=0.5, quant_noise_pq_block_size=4),
    dict(cross_self_attention=True),
    dict(no_cross_attention=True, cross_self_attention=True),
    dict(dropout=0.2, checkpoint_activations=True),
    dict(checkpoint_activations=True, offload_activations=True),
    dict(layernorm_embedding=True, no_scale_embedding=True, no_token_positional_embeddings=True),
    dict(decoder_learned_pos=True, encoder_learned_pos=True, no_decoder_final_norm=True),
    dict(share_all_embeddings=False, decoder_embed_dim=8, decoder_ffn_embed_dim=8, decoder_output_dim=12),
    dict(activation_fn="gelu", adaptive_input=False, decoder_layers=3),
]


DENSE_ONLY = {"cross_self_attention", "quant_noise_pq"}
CASES = [
    *((dense_model, options) for options in MODELS),
    *((partial(moe_model, dense_updates=1), options) for options in MODELS if not DENSE_ONLY & set(options)),
]


@pytest.mark.parametrize(("ours", "options"), CASES, ids=lambda case: "+".join(case) if isinstance(case, dict) else "")
def test_a_model_trains_as_fairseqs(ours, options):
    right, model = stock_model(**options).train(), ours(2, **options).train()
    perturb(right)
    model.load_state_dict(right.state_dict())
    net_input = batch(pad=ours is dense_model)
    found, wanted = [], []
    for each, inputs, results in ((model, net_input, found), (right, without_ids(net_input), wanted)):
        torch.manual_seed(3)
        logits, extra = each(**inputs, alignment_heads=1)
        logits.square().mean().backward()
        results += [logits, extra["attn"][0], extra["inner_states"]]
        results += [parameter.grad for parameter in each.parameters()]
    assert_same(found, wanted)


@pytest.mark.parametrize("alignment", [{}, dict(alignment_layer=0), dict(alignment_layer=1, alignment_heads=1)])
def test_a_model_evaluates_as_fairseqs(alignment):
    right = stock_model()
    perturb(right)
    model = dense_model()
    model.load_state_dict(right.state_dict())
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
