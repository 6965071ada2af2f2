"""Adapters beside the feed-forward layers of all three backbones: what blocks compute, what they leave in the pass."""

import pytest
import torch
from torch.nn import functional as F

from fairseq_mtmoe.core.transformer_options import nested_options
from fairseq_mtmoe.nlu.bert.encoder import BertBlock
from fairseq_mtmoe.nlu.t5.blocks import EncoderBlock as T5EncoderBlock
from fairseq_mtmoe.slots import (
    AdapterPass,
    AdapterPlan,
    BatchContext,
    task_sparsity_loss,
)
from fairseq_mtmoe.translation.model.blocks import EncoderBlock
from tests.helpers.adapter_reference import slow_mixture, slow_similarity
from tests.helpers.bert import TINY as TINY_BERT
from tests.helpers.bert import perturb
from tests.helpers.models import SIZES, DenseConfig
from tests.helpers.t5 import TINY as TINY_T5
from tests.helpers.t5 import TINY_1_1

L, B, H, K, D = 5, 3, 16, 4, 7


def translation_block(norm):
    return EncoderBlock(nested_options(DenseConfig(**{**SIZES, "encoder_normalize_before": norm})))


BLOCKS = {
    "t5": lambda: T5EncoderBlock(TINY_T5),
    "t5 1.1": lambda: T5EncoderBlock(TINY_1_1),
    "bert": lambda: BertBlock(TINY_BERT),
    "translation, pre-norm": lambda: translation_block(True),
    "translation, post-norm": lambda: translation_block(False),
}
backbones = pytest.mark.parametrize("backbone", BLOCKS)
kinds = pytest.mark.parametrize("kind", ["lora", "bottleneck"])
MIXED = {"num_adapters": K, "summary_size": D, "target_size": 3}


def filled(backbone, seed=0, **plan):
    """A block in evaluation mode with these adapters; nothing in it is 0."""
    torch.manual_seed(seed)
    block = BLOCKS[backbone]()
    AdapterPlan(**{"rank": 2, **plan}).fill(block)
    perturb(block)
    return block.eval()


def stream():
    return torch.randn(L, B, H, generator=torch.Generator().manual_seed(3))


def target_adapter_of(block, y):
    adapter = block.mixture.target_adapter
    return y + adapter.up(F.gelu(adapter.down(y), approximate="tanh"))


@backbones
@kinds
def test_a_block_computes_layer_mixture_target_adapter_and_residual(backbone, kind):
    block, h, summary = filled(backbone, kind=kind, **MIXED), stream(), torch.randn(B, D)
    through = AdapterPass(summary, wants_similarities=True)
    padding = torch.zeros(B, L, dtype=torch.bool)
    padding[1, 3:] = True
    output = block.feed_forward(h, BatchContext(padding_mask=padding, adapter_pass=through))
    read = block.final_layer_norm(h) if block.normalize_before else h
    inner = block.inner(read)
    weights = (summary @ block.mixture.gate.weight.t()).softmax(-1)
    mixed = slow_mixture(block.mixture.adapters, inner if kind == "lora" else read, weights)
    wanted = h + target_adapter_of(block, block.fc2(block.inner(read)) + mixed)
    wanted = wanted if block.normalize_before else block.final_layer_norm(wanted)
    torch.testing.assert_close(output, wanted)
    torch.testing.assert_close([*through.weights.values()], [weights])
    similarity = slow_similarity(block.mixture.adapters, inner if kind == "lora" else read, output, weights, padding)
    torch.testing.assert_close(task_sparsity_loss([through]), -similarity)


@backbones
@kinds
def test_one_source_is_that_sources_own_block(backbone, kind):
    source = filled(backbone, kind=kind)
    target = filled(backbone, seed=1, kind=kind, summary_size=D)
    gate = target.mixture.gate.weight.clone()
    missing, unexpected = target.load_state_dict(source.state_dict(), strict=False)
    assert (missing, unexpected) == (["mixture.gate.weight"], []) and gate.any()
    output = target.feed_forward(stream(), BatchContext(adapter_pass=AdapterPass(torch.randn(D))))
    assert torch.equal(output, source.feed_forward(stream(), BatchContext()))


def test_a_target_adapter_alone():
    block = filled("t5", kind="lora", num_adapters=0, target_size=3)
    read = block.final_layer_norm(stream())
    wanted = stream() + target_adapter_of(block, block.fc2(block.inner(read)))
    torch.testing.assert_close(block.feed_forward(stream(), BatchContext()), wanted)
    assert block.mixture.adapters is None and block.mixture.gate is None


def test_gates_are_asked_once_while_a_text_grows():
    block = filled("t5", kind="lora", **MIXED)
    context = BatchContext(adapter_pass=AdapterPass(torch.randn(D)))
    asked = []
    block.mixture.recorded_weights.enabled = True
    block.mixture.gate.register_forward_hook(lambda *_: asked.append(1))
    with torch.no_grad():
        first, second = (block.feed_forward(stream(), context) for _ in range(2))
    assert torch.equal(first, second) and len(asked) == 1 and block.mixture.recorded_weights.sums[-1] == 1
    block.feed_forward(stream(), context).sum().backward()  # as where activations are computed again
    assert len(asked) == 2 and block.mixture.recorded_weights.sums[-1] == 1 and block.mixture.gate.weight.grad.any()


def test_the_loss_is_of_all_layers_of_all_passes():
    blocks = [filled("t5", seed, kind="lora", **MIXED) for seed in range(3)]
    passes = [AdapterPass(torch.randn(D), wants_similarities=True) for _ in range(2)]
    h = stream()
    for block, through in zip(blocks, (passes[0], passes[0], passes[1]), strict=True):
        h = block.feed_forward(h, BatchContext(adapter_pass=through))
    similarities = [value for through in passes for value in through.similarities.values()]
    assert len(set(map(float, similarities))) == 3
    loss = task_sparsity_loss(passes)
    torch.testing.assert_close(loss, -sum(similarities) / 3)
    unwanted = AdapterPass(torch.randn(D))
    blocks[0].feed_forward(h, BatchContext(adapter_pass=unwanted))
    assert not unwanted.similarities and len(unwanted.weights) == 1
