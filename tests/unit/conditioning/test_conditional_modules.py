"""Each conditional module against its slow reference, gradients included."""

import pytest
import torch

from fairseq_mtmoe.conditioning import (
    ConditionalAlignment,
    ConditionalAttentionBias,
    ConditionalBottleneck,
    ConditionalLayerNorm,
    TaskEmbeddings,
    apply_norm,
    block_width,
)
from fairseq_mtmoe.nlu.bert.attention import SelfAttention
from fairseq_mtmoe.nlu.bert.unpadding import UnpaddedBatch, unpadded
from tests.helpers import conditional_reference as reference
from tests.helpers.models import perturb

K, D, H, HEADS, LENGTH = 3, 5, 6, 2, 11
TASK_IDS = torch.tensor([2, 0, 2, 1])
MODULES = {
    "alignment": (lambda: ConditionalAlignment(D, H), reference.alignment),
    "layer norm": (lambda: ConditionalLayerNorm(H, D), reference.layer_norm),
    "bottleneck with a norm": (
        lambda: ConditionalBottleneck(D, H, begins_at_zero=False, norm=ConditionalLayerNorm(H, D)),
        reference.bottleneck,
    ),
}


def trained_table() -> TaskEmbeddings:
    """Embeddings that differ, and are small, as after some training."""
    torch.manual_seed(1)
    table = TaskEmbeddings(K, D)
    perturb(table, 0.5)
    return table


def trained_bias(scale: float = 0.3) -> tuple[TaskEmbeddings, ConditionalAttentionBias]:
    """Of 9 positions in blocks of 4, 4 and 1, which begin anew beyond."""
    table, module = trained_table(), ConditionalAttentionBias(D, 9, 4)
    perturb(module, scale)
    return table, module


def weighted(output: torch.Tensor) -> torch.Tensor:
    """A sum in which no number counts as another."""
    return (output * torch.linspace(-1, 2, output.numel()).view(output.shape)).sum()


def assert_same(fast, slow, *modules, inputs=()):
    """The outputs of two ways, and the gradients of a sum by parameters and inputs."""
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-5)
    parameters = [parameter for module in modules for parameter in module.parameters()] + list(inputs)
    options = {"allow_unused": True, "retain_graph": True}
    gradients = (torch.autograd.grad(weighted(way), parameters, **options) for way in (fast, slow))
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_its_reference_for_sentences_and_for_tokens(name):
    make, slow = MODULES[name]
    table, module = trained_table(), make()
    perturb(module, 0.3)
    x_BLH = torch.randn(4, 7, H, generator=torch.Generator().manual_seed(2), requires_grad=True)
    tasks = table()
    right = slow(module, x_BLH, tasks, TASK_IDS)
    assert_same(module(x_BLH.transpose(0, 1), tasks, TASK_IDS).transpose(0, 1), right, module, table, inputs=[x_BLH])
    by_token = module(x_BLH.reshape(1, 28, H), tasks, TASK_IDS.repeat_interleave(7)).view(4, 7, H)
    assert_same(by_token, right, module, table, inputs=[x_BLH])


def test_a_new_table_makes_every_module_the_identity():
    torch.manual_seed(1)
    tasks, x = TaskEmbeddings(K, D)(), torch.randn(7, 4, H)
    plain = torch.nn.LayerNorm(H, 1e-3)
    perturb(plain)
    norm = ConditionalLayerNorm.from_norm(plain, D)
    assert norm.weight is plain.weight and norm.bias is plain.bias and norm.eps == 1e-3
    assert ConditionalLayerNorm.from_norm(torch.nn.LayerNorm(H).double(), D).film.linear.weight.dtype == torch.double
    torch.testing.assert_close(norm(x, tasks, TASK_IDS), plain(x))
    torch.testing.assert_close(apply_norm(norm, x, tasks, TASK_IDS), apply_norm(plain, x, None, None))
    torch.testing.assert_close(ConditionalAlignment(D, H)(x, tasks, TASK_IDS), x)
    assert not ConditionalBottleneck(D, H, begins_at_zero=True)(x, tasks, TASK_IDS).any()
    assert not ConditionalAttentionBias(D, 9, 4)(tasks, TASK_IDS, 11).any()


@pytest.mark.parametrize("length", [1, 9, 22])
def test_the_bias_is_the_direct_sum_of_blocks_at_any_length(length):
    table, module = trained_bias()
    tasks = table()
    slow = torch.stack([reference.attention_bias(module, tasks, int(task), length) for task in TASK_IDS]).unsqueeze(1)
    assert_same(module(tasks, TASK_IDS, length), slow, module, table)


def test_a_block_is_as_wide_as_in_the_paper():
    sizes = [(128, 768), (128, 1024), (256, 1024), (128, 16)]
    assert [block_width(*positions_and_size) for positions_and_size in sizes] == [22, 16, 64, 128]


def slow_attention(layer, x_BLH, bias_LL, num_tokens):
    """What `SelfAttention` gives for one sentence, by the reference."""
    query, key, value = (
        projection(x_BLH[0]).view(len(bias_LL), HEADS, -1).transpose(0, 1)
        for projection in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    read = reference.attention(query, key, value, bias_LL, num_tokens)
    return layer.out_proj(read.transpose(0, 1).flatten(1))


# One token, a block's end, and both sides of the next one's beginning.
@pytest.mark.parametrize(("num_tokens", "packed"), [(1, False), (4, True), (5, False), (9, True), (11, True)])
def test_padding_is_never_attended_to_whatever_the_bias_says(num_tokens, packed):
    """With padding from each position on, against a sentence without padding, gradients included."""
    table, module = trained_bias(2.0)
    layer = SelfAttention(H, HEADS, dropout=0.0)
    x_BLH = torch.randn(1, LENGTH, H, generator=torch.Generator().manual_seed(2), requires_grad=True)
    mask = (torch.arange(LENGTH) >= num_tokens).unsqueeze(0)
    rows = unpadded(mask) if packed else UnpaddedBatch((1, LENGTH), mask)
    tasks = table()
    fast = rows.pad(layer(rows.unpad(x_BLH), rows, module(tasks, torch.tensor([1]), LENGTH)))
    slow = slow_attention(layer, x_BLH, reference.attention_bias(module, tasks, 1, LENGTH), num_tokens)
    assert_same(fast[0, :num_tokens], slow[:num_tokens], module, table, layer, inputs=[x_BLH])


def test_sentences_that_are_padded_on_the_left_have_the_bias_of_their_own_positions():
    table, module = trained_bias()
    padding_B = torch.tensor([0, 3, 10, 5])
    tasks, position_BL = table(), (torch.arange(LENGTH) - padding_B.unsqueeze(1)).clamp(min=0)
    found = module(tasks, TASK_IDS, LENGTH, position_BL)
    assert found.shape == (4, 1, LENGTH, LENGTH)
    fast, slow = [], []
    for bias_LL, task, padding in zip(found[:, 0], TASK_IDS.tolist(), padding_B.tolist(), strict=True):
        fast.append(bias_LL[padding:, padding:].flatten())
        slow.append(reference.attention_bias(module, tasks, task, LENGTH - padding).flatten())
    assert_same(torch.cat(fast), torch.cat(slow), table, module)


def test_a_row_is_that_of_all():
    table, module = trained_bias()
    tasks, all_KLL = table(), module.of_tasks(table(), 20)
    for position in range(20):
        torch.testing.assert_close(module.row_of_tasks(tasks, position), all_KLL[:, position, : position + 1])
