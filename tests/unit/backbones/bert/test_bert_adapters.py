"""Adapters in the encoder's slots: what gates read and leave is the same in both forms of the stream."""

import dataclasses

import pytest
import torch

from fairseq_mtmoe.backbones.bert.encoder import BertEncoder
from fairseq_mtmoe.models.pemt.base_model import record_similarity
from fairseq_mtmoe.slots import AdapterPlan, MixturePass, task_sparsity_loss
from tests.helpers.bert import TINY, batch, in_all_places, perturb, tiny_encoder

D = 5


class WithSources(BertEncoder):
    """Its gates read one summary for all."""

    def __init__(self, config, **options):
        super().__init__(config, **options)
        self.summary = torch.nn.Parameter(torch.randn(D))

    def context_of(self, batch):
        self.last = MixturePass(self.summary, wants_similarities=True)
        return dataclasses.replace(super().context_of(batch), mixture=self.last)


def plans(**plan):
    return dict.fromkeys(range(TINY.num_hidden_layers), AdapterPlan("lora", 2, **plan))


def with_sources(**options):
    torch.manual_seed(1)
    encoder = WithSources(TINY, slot_plans=plans(num_adapters=3, summary_size=D, target_size=4), **options).eval()
    for block in encoder.layers:
        block.register_forward_hook(record_similarity)
    perturb(encoder)
    return encoder


def learned(encoder):
    hidden = encoder(**batch(), firsts_only=True).hidden
    loss = hidden[:, 0].square().sum() + task_sparsity_loss([encoder.last])
    loss.backward()
    return {"loss": loss, **{name: value.grad for name, value in encoder.named_parameters() if value.grad is not None}}


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5)


def test_padding_has_no_part_in_the_task_sparsity_loss(monkeypatch):
    wanted = learned(with_sources())
    assert wanted["summary"].any() and wanted["layers.0.mixture.gate.weight"].any()
    in_all_places(monkeypatch)
    assert_same(learned(with_sources()), wanted)


def test_activations_that_are_computed_again_give_the_same_gradients():
    assert_same(learned(with_sources(checkpoint_activations=True)), learned(with_sources()))


@pytest.mark.parametrize("everywhere", [True, False])
def test_the_last_block_computes_first_tokens_alone_where_no_gate_reads_the_others(monkeypatch, everywhere):
    if everywhere:
        in_all_places(monkeypatch)
    encoder, widths = tiny_encoder(slot_plans=plans()), []
    encoder.layers[-1].fc1.register_forward_hook(lambda module, inputs, output: widths.append(output.shape[:2].numel()))
    whole, first = (encoder(**batch(), firsts_only=alone).hidden for alone in (False, True))
    torch.testing.assert_close(first, whole[:, :1])
    assert widths == [21 if everywhere else 17, 3]
