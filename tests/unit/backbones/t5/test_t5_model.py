"""T5 computes what Hugging Face's does, and writes word by word what it would write at once."""

import dataclasses

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from fairseq_mtmoe.backbones.t5.blocks import buckets_of
from fairseq_mtmoe.backbones.t5.config import T5_1_1_BASE, T5_BASE
from fairseq_mtmoe.backbones.t5.model import T5Model, shifted
from tests.helpers.t5 import ALL_CONFIGS, CONFIGS, TINY, dictionary, hugging_face_model, ours_of, texts, tiny_t5

both = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


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


def test_what_linear_maps_read_lies_in_one_piece():
    """Of anything else, torch multiplies each place's few rows by themselves where nobody asks for gradients."""
    model, lies = tiny_t5(), []
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(lambda module, inputs: lies.append(inputs[0].is_contiguous()))
    with torch.no_grad():
        model(texts(), None, shifted(texts((9, 5, 2), seed=4), TINY))
    assert len(lies) == 2 * 6 + 3 * 10 + 1 and all(lies)


@both
def test_padding_changes_nothing(config):
    model, target = tiny_t5(config), shifted(texts((5,)), config)
    alone, _ = model(texts((4,)), None, target)
    padded = torch.cat([texts((4,)), torch.zeros(1, 9, dtype=torch.long)], dim=1)
    torch.testing.assert_close(model(padded, None, target)[0], alone)


@both
def test_word_by_word_is_what_is_written_at_once(config):
    """Rows change places between words as hypotheses of a beam do."""
    model, source, beam = tiny_t5(config), texts(), 2
    words = shifted(texts((9, 9, 9), seed=5).repeat_interleave(beam, 0), config)
    words[1::2, 4:] = words[1::2, 4:].flip(1)
    encoded = model.encoder.reorder_encoder_out(model.encoder(source), torch.arange(3).repeat_interleave(beam))
    state = {}
    for length in range(1, words.shape[1] + 1):
        found, _ = model.decoder(words[:, :length], encoded, incremental_state=state)
        wanted, _ = model(source.repeat_interleave(beam, 0), None, words[:, :length])
        torch.testing.assert_close(found[:, 0], wanted[:, -1])
        order = torch.tensor([[0, 0, 3, 2, 4, 5], [1, 0, 3, 3, 5, 4]][length % 2])
        words = words.clone()
        words[:, :length] = words[order, :length]
        encoded = model.encoder.reorder_encoder_out(encoded, order)
        model.decoder.reorder_incremental_state_scripting(state, order)


def search(model, source, beam):
    """fairseq's: each text's hypotheses of exactly six words and the end, the best one first."""
    generator = SequenceGenerator([model], dictionary(model.config), beam_size=beam, max_len_b=6, min_len=6)
    sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(0).sum(1)}}
    return generator.generate([], sample, bos_token=model.config.decoder_start_token_id)


@both
def test_fairseq_writes_with_it_what_hugging_face_writes(config):
    config = dataclasses.replace(config, num_decoder_layers=config.num_layers)  # else theirs fails
    theirs, source = hugging_face_model(config), texts((11, 6, 3))
    wanted = theirs.generate(
        input_ids=source, attention_mask=source.ne(0).long(), max_new_tokens=6, min_new_tokens=6, do_sample=False,
        suppress_tokens=[config.pad_token_id],
    )  # fmt: skip
    for tokens, (best, *_) in zip(wanted, search(ours_of(theirs, config), source, beam=1), strict=True):
        assert best["tokens"][:6].tolist() == tokens[1:].tolist()


@pytest.mark.parametrize(("config", "millions"), [(T5_BASE, 222.9), (T5_1_1_BASE, 247.6)])
def test_sizes_are_the_published_ones(config, millions):
    with torch.device("meta"):
        model = T5Model(config, dictionary())
    assert sum(parameter.numel() for parameter in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.05)


def test_training_drops_out():
    model = tiny_t5(dataclasses.replace(TINY, dropout_rate=0.5)).train()
    torch.manual_seed(1)
    first, _ = model(texts(), None, texts((4, 4, 4)))
    second, _ = model(texts(), None, texts((4, 4, 4)))
    assert not torch.allclose(first, second)
