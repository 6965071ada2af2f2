"""T5 computes what Hugging Face's does, and writes word by word what it would write at once."""

import dataclasses

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from fairseq_mtmoe.nlu.t5.blocks import buckets_of
from fairseq_mtmoe.nlu.t5.config import GATED_GELU, T5_BASE
from fairseq_mtmoe.nlu.t5.model import T5Model, shifted
from tests.helpers.decoding import decode
from tests.helpers.t5 import ALL_CONFIGS, CONFIGS, dictionary, hugging_face_model, ours_of, texts, tiny_t5


@pytest.mark.parametrize("config", ALL_CONFIGS.values(), ids=ALL_CONFIGS)
def test_outputs_and_gradients_are_hugging_faces(config):
    theirs = hugging_face_model(config)
    ours = ours_of(theirs, config)
    source, target = texts(), texts((9, 5, 2), seed=4)
    wanted = theirs(
        input_ids=source, attention_mask=source.ne(0).long(), decoder_input_ids=shifted(target, config)
    ).logits
    found, _ = ours(source, None, shifted(target, config))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    weights = torch.randn_like(wanted)
    (wanted * weights).sum().backward()
    (found * weights).sum().backward()
    parts = {
        "block.1.layer.0.SelfAttention.q": ours.encoder.layers[1].self_attn.q_proj,
        "block.0.layer.0.SelfAttention.relative_attention_bias": ours.encoder.relative_positions,
        "block.1.layer.1.layer_norm": ours.encoder.layers[1].final_layer_norm,
    }
    pairs = [(part.weight.grad, theirs.encoder.get_submodule(name).weight.grad) for name, part in parts.items()]
    pairs.append((ours.encoder.embed_tokens.weight.grad, theirs.shared.weight.grad))
    pairs.append((ours.decoder.output_projection.weight.grad, theirs.lm_head.weight.grad))
    for own, other in pairs:
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("looks_ahead", [True, False])
def test_buckets_are_hugging_faces(looks_ahead):
    attention = pytest.importorskip("transformers.models.t5.modeling_t5").T5Attention
    distances = torch.arange(-600, 600)
    for buckets, furthest in ((32, 128), (8, 9), (64, 33)):
        found = buckets_of(distances, buckets, furthest, looks_ahead)
        assert torch.equal(found, attention._relative_position_bucket(distances, looks_ahead, buckets, furthest))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("keeps_state", [True, False])
def test_word_by_word_is_what_is_written_at_once(config, keeps_state):
    source = texts((13, 4, 1, 6))
    inputs = {"src_tokens": source, "src_lengths": source.ne(0).sum(1)}
    decode(tiny_t5(config), inputs, keeps_state=keeps_state)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_fairseq_writes_with_it_what_hugging_face_writes(config):
    config = dataclasses.replace(config, num_decoder_layers=config.num_layers)  # else theirs fails
    theirs, source = hugging_face_model(config), texts((11, 6, 3))
    wanted = theirs.generate(
        input_ids=source, attention_mask=source.ne(0).long(), max_new_tokens=6, min_new_tokens=6, do_sample=False,
        suppress_tokens=[config.pad_token_id],
    )  # fmt: skip
    generator = SequenceGenerator([ours_of(theirs, config)], dictionary(config), beam_size=1, max_len_b=6, min_len=6)
    sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(0).sum(1)}}
    found = generator.generate([], sample, bos_token=config.decoder_start_token_id)
    for tokens, (best, *_) in zip(wanted, found, strict=True):
        assert best["tokens"][:6].tolist() == tokens[1:].tolist()


def test_sizes_are_the_published_ones():
    version_1_1 = dataclasses.replace(T5_BASE, d_ff=2048, feed_forward_proj=GATED_GELU, tie_word_embeddings=False)
    for config, millions in (T5_BASE, 222.9), (version_1_1, 247.6):
        with torch.device("meta"):
            model = T5Model(config, dictionary())
        assert sum(parameter.numel() for parameter in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.05)
