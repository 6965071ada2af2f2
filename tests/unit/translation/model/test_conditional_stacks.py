"""Stacks that adapt to tasks: against plain ones, the slow reference, each sentence alone, and word by word."""

from collections import Counter

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from torch.nn import functional as F

from fairseq_mtmoe.conditioning import PARTS, FiLM
from tests.helpers import conditional_reference as reference
from tests.helpers.decoding import decode
from tests.helpers.models import batch, dense_model, moe_model, perturb, stub_task
from tests.helpers.pairwise import pairwise
from tests.helpers.refused import refused

ALL = ",".join(PARTS)
TASKS = "aa,bb,cc"
POSITIONS = 4  # fewer than the batch's sentences have tokens; of width 16 the only block has all of them
NORMS = {"post-norm": {}, "pre-norm": dict(encoder_normalize_before=True, decoder_normalize_before=True)}
norms = pytest.mark.parametrize("norm", NORMS)


def conditional(norm="post-norm", parts=ALL, sparse=False, **options):
    """A model whose parameters, those of its conditions too, differ from their first values."""
    options = {"conditional": parts, "conditional_positions": POSITIONS, **NORMS[norm], **options}
    return perturb(moe_model(expert_gates="task", **options) if sparse else dense_model(task_names=TASKS, **options))


@pairwise(parts=[*PARTS, ALL], norm=NORMS, make=[dense_model, moe_model])
def test_a_new_condition_changes_nothing(make, parts, norm):
    """Of a model that has the weights of a plain one; in training too, where BASE assigns."""
    plain = perturb(make(**NORMS[norm]))
    model = make(2, conditional=parts, conditional_positions=POSITIONS, task_names=TASKS, **NORMS[norm])
    model.load_state_dict(plain.state_dict())
    for training in (False, True):
        right = plain.train(training)(**batch())[0]
        torch.testing.assert_close(model.train(training)(**batch())[0], right, rtol=1e-5, atol=1e-5)


@pairwise(norm=NORMS, sparse=[False, True])
def test_a_sentence_is_translated_alike_alone_and_beside_other_pairs(norm, sparse):
    """Sources are padded on the left, targets on the right."""
    model, net_input = conditional(norm, sparse=sparse), batch()
    together = model(**net_input)[0]
    for row in range(4):
        source, target = (net_input[key][row] for key in ("src_tokens", "prev_output_tokens"))
        source, target = source[source.ne(1)].unsqueeze(0), target[target.ne(1)].unsqueeze(0)
        lengths = torch.tensor([source.shape[1]])
        alone = model(source, lengths, target, task_ids=net_input["task_ids"][row : row + 1])[0]
        torch.testing.assert_close(together[row, : target.shape[1]], alone[0], rtol=1e-4, atol=1e-4)


@norms
@pytest.mark.parametrize("part", PARTS)
def test_each_part_tells_tasks_apart_in_both_stacks(part, norm):
    model, net_input = conditional(norm, part), batch()
    encoder, decoder = [], []
    for task in (0, 1):
        encoded = model.encoder(net_input["src_tokens"], task_ids=torch.full_like(net_input["task_ids"], task))
        encoder.append(encoded["encoder_out"][0])
        encoded["encoder_out"] = encoder[:1]  # of one task, beside a decoder of the other
        decoder.append(model.decoder(net_input["prev_output_tokens"], encoder_out=encoded)[0])
    assert not torch.allclose(*encoder, atol=1e-3) and not torch.allclose(*decoder, atol=1e-3)


def slow_block(block, x_BLH, tasks, task_ids):
    """A post-norm block of the encoder, sentence by sentence."""

    def normed(norm, h_BLH):
        return reference.layer_norm(norm, h_BLH, tasks, task_ids) if hasattr(norm, "film") else norm(h_BLH)

    read = []
    for sentence_LH, task in zip(x_BLH, task_ids.tolist(), strict=True):
        bias_LL = reference.attention_bias(block.attention_bias, tasks, task, len(sentence_LH))
        read.append(block.self_attn(*[sentence_LH.unsqueeze(1)] * 3, attn_mask=bias_LL)[0].squeeze(1))
    h = normed(block.self_attn_layer_norm, x_BLH + torch.stack(read))
    h = normed(block.final_layer_norm, h + block.fc2(F.relu(block.fc1(h))))
    return h if block.bottleneck is None else h + reference.bottleneck(block.bottleneck, h, tasks, task_ids)


def test_the_encoder_is_the_slow_reference_gradients_included():
    model, net_input = conditional(), batch(pad=False)
    source, task_ids = net_input["src_tokens"], net_input["task_ids"]
    fast = model.encoder(source, task_ids=task_ids)["encoder_out"][0].transpose(0, 1)
    tasks = model.encoder.task_embeddings()
    embedded = model.encoder.forward_embedding(source)[0]
    slow = reference.alignment(model.encoder.alignment, embedded, tasks, task_ids)
    for block in model.encoder.layers:
        slow = slow_block(block, slow, tasks, task_ids)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-4)
    named = dict(model.encoder.named_parameters())
    weights = torch.linspace(-1, 2, fast.numel()).view(fast.shape)
    ours, right = (torch.autograd.grad((out * weights).sum(), list(named.values())) for out in (fast, slow))
    for name, one, other in zip(named, ours, right, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3, msg=lambda text, name=name: f"{name}: {text}")


@norms
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_words_that_come_one_by_one_are_read_as_all_together(norm, sparse):
    """In beams that reorder and drop sentences, beyond the positions of conditional attention."""
    decode(conditional(norm, sparse=sparse, share_all_embeddings=False), batch())


def test_a_search_asks_what_tasks_are_once_for_all_words():
    model, asked = conditional(share_all_embeddings=False), Counter()
    for name, film in model.decoder.named_modules():
        if isinstance(film, FiLM):
            film.linear.register_forward_hook(lambda *_, name=name: asked.update([name]))
    generator = SequenceGenerator([model], stub_task().target_dictionary, beam_size=3, max_len_b=5, min_len=5)
    for times in (1, 2):  # another search asks anew
        generator.generate([model], {"net_input": batch()})
        assert set(asked.values()) == {times} and len(asked) >= 5, asked


def test_stacks_of_other_widths_and_depths():
    model = conditional(encoder_layers=3, decoder_layers=1, encoder_embed_dim=12, encoder_attention_heads=3,
                        share_all_embeddings=False)  # fmt: skip
    model(**batch())[0].sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
    has_film = [hasattr(block.final_layer_norm, "film") for block in model.encoder.layers]
    assert has_film == [False, True, True] and hasattr(model.decoder.layers[0].encoder_attn_layer_norm, "film")


def test_what_does_not_go_with_conditions_is_refused():
    with refused("task_ids"):
        conditional()(**batch(task_ids=False))
    with refused("--conditional", "--task translation_heated"):
        dense_model(conditional="norm")
    with refused("--cross-self-attention"):
        conditional(cross_self_attention=True)
