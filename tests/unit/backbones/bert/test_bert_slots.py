"""Experts in the encoder's slots, in every block as in MT-TaG."""

import pytest
import torch

from fairseq_mtmoe.backbones.bert.config import BERT_BASE, BERT_LARGE, MINILM
from fairseq_mtmoe.backbones.bert.encoder import BertEncoder
from fairseq_mtmoe.moe.gates import BaseGate, SwitchGate, TaskGate
from fairseq_mtmoe.slots import AdapterPlan, ExpertPlan, expert_layers, expert_slots
from tests.helpers.bert import TINY, batch, in_all_places, perturb, tiny_encoder

GATES = {"base": BaseGate, "task": TaskGate, "switch": SwitchGate}
IDS = torch.tensor([0, 2, 1])


@pytest.fixture(params=["real tokens", "all places"], autouse=True)
def each_form(request, monkeypatch):
    if request.param == "all places":
        in_all_places(monkeypatch)


def plans(gate, blocks=TINY.num_hidden_layers, num_tasks=3, combine="preserving"):
    return dict.fromkeys(range(blocks), ExpertPlan(gate, 4, combine, num_tasks, starts_dense=True))


def sparsify(encoder):
    for path, slot in expert_slots(encoder).items():
        slot.sparsify(encoder.get_submodule(path))
    return encoder


def assert_close(found, wanted, atol=1e-5):
    torch.testing.assert_close(found, wanted, rtol=0, atol=atol)


@pytest.mark.parametrize("gate", ["task", "switch"])
def test_a_sentence_is_encoded_as_by_itself(gate):
    """Each with its own task, and whatever the padding."""
    encoder, inputs = sparsify(tiny_encoder(slot_plans=plans(GATES[gate], combine="paper"))), batch()
    perturb(encoder)
    found = encoder(**inputs, task_ids=IDS).hidden
    others = encoder(**inputs, task_ids=(IDS + 1) % 3).hidden
    assert torch.equal(found, others) == (gate == "switch")
    for sentence, length in enumerate((7, 4, 6)):
        alone = {name: value[sentence : sentence + 1, :length] for name, value in inputs.items()}
        assert_close(encoder(**alone, task_ids=IDS[sentence : sentence + 1]).hidden[0], found[sentence, :length])


@pytest.mark.parametrize("gate", GATES)
def test_first_states_alone_are_the_same(gate):
    """A gate that weighs tokens against each other sees all of them in the last block, too."""
    encoder, seen = sparsify(tiny_encoder(slot_plans=plans(GATES[gate], combine="paper"))).train(), []
    perturb(encoder)
    for module in encoder.modules():
        for name in ("p", "dropout"):
            if hasattr(module, name):
                setattr(module, name, 0.0)
    last = encoder.layers[-1].moe
    last.gate.register_forward_hook(lambda module, inputs, routing: seen.append(len(routing.expert_T)))
    whole = encoder(**batch(), task_ids=IDS).hidden
    first = encoder(**batch(), task_ids=IDS, firsts_only=True).hidden
    assert_close(first[:, :1], whole[:, :1])
    last.load.enabled = True  # whose counts are of all tokens
    encoder(**batch(), task_ids=IDS, firsts_only=True)
    assert (seen[1] == 3) == (gate == "task") and seen[0] == seen[2] > 3


def test_the_last_block_computes_first_tokens_alone_where_no_gate_of_adapters_reads_the_others():
    plan = AdapterPlan("lora", 2)
    encoder, widths = tiny_encoder(slot_plans=dict.fromkeys(range(TINY.num_hidden_layers), plan)), []
    encoder.layers[-1].fc1.register_forward_hook(lambda module, inputs, output: widths.append(output.shape[:2].numel()))
    whole, first = (encoder(**batch(), firsts_only=alone).hidden for alone in (False, True))
    torch.testing.assert_close(first, whole[:, :1])
    assert widths in ([21, 3], [17, 3])


def test_padding_is_nobodys():
    """BASE gives experts equal shares of the real tokens, which are 17."""
    encoder = sparsify(tiny_encoder(slot_plans=plans(BaseGate))).train()
    for layer in expert_layers(encoder).values():
        layer.load.enabled = True
    encoder(**batch())
    for layer in expert_layers(encoder).values():
        assert sorted(layer.load.counts.sum(0).tolist()) == [4, 4, 4, 5]


@pytest.mark.parametrize(
    "config, gates, experts, millions",
    [(MINILM, 74e3, 21e6, (22, 44)), (BERT_BASE, None, None, (110, 280)), (BERT_LARGE, None, None, (335, 940))],
    ids=["MiniLM", "BERT base", "BERT large"],
)
def test_parameter_counts_are_the_papers(config, gates, experts, millions):
    """MT-TaG, §3 and table 1: 8 tasks, 4 experts. Its experts' parameters are those beyond the dense encoder's."""
    with torch.device("meta"):
        encoder = BertEncoder(config, plans(TaskGate, config.num_hidden_layers, num_tasks=8, combine="paper"))
        dense = count(encoder)
        sparsify(encoder)
    found = sum(count(layer.gate) for layer in expert_layers(encoder).values())
    more = sum(count(layer.experts) for layer in expert_layers(encoder).values()) * 3 // 4
    layers, H, F = config.num_hidden_layers, config.hidden_size, config.intermediate_size
    assert found == layers * 4 * H * 8 and more == layers * 3 * (2 * H * F + H + F)
    assert count(encoder) == dense + found + more
    if gates is not None:
        assert abs(found - gates) < 500 and abs(more - experts) < 5e5
    for parameters, published in zip((dense, count(encoder)), millions, strict=True):
        assert abs(parameters / 1e6 - published) < 0.035 * published


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())
