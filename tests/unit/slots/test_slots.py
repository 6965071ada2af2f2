"""Slots in a block of no backbone: what they need of a block."""

import copy

import pytest
import torch
from torch import nn

from fairseq_mtmoe.moe import BaseGate, SwitchGate
from fairseq_mtmoe.moe.gates import GATES
from fairseq_mtmoe.slots import BatchContext, Block, ExpertPlan
from fairseq_mtmoe.slots.plan import plan_experts
from fairseq_mtmoe.translation.base_sparse.model import BaseMoEConfig
from tests.helpers.refused import refused

L, B, H, F = 5, 3, 8, 16


class Least(Block):
    """The least that has a slot."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(H, F), nn.Linear(F, H)
        self.activation_fn = torch.relu
        self.activation_dropout_module = nn.Dropout(0.0)
        self.begin_dense()

    def forward(self, hidden, context):
        return self.slot(self, hidden, hidden, context)


class OwnGate(SwitchGate):
    """A gate with a setting of its own, which has no default."""

    def __init__(self, num_experts, hidden_size, num_tasks, sharpness):
        super().__init__(num_experts, hidden_size, num_tasks)
        self.sharpness = sharpness


def plan(gate="base", **options):
    return ExpertPlan(gate, 4, "preserving", 3, **{"starts_dense": True, **options})


def filled(slot_plan):
    torch.manual_seed(0)
    block = Least()
    slot_plan.fill(block)
    return block


@pytest.mark.parametrize("gate", ["base", "task", "switch"])
def test_copied_experts_compute_what_the_block_did(gate):
    block, hidden = filled(plan(gate)), torch.randn(L, B, H)
    context = BatchContext(torch.tensor([0, 2, 1]), None)
    before, weight = block(hidden, context), block.fc1.weight.detach()
    block.slot.sparsify(block)
    torch.testing.assert_close(block(hidden, context), before)
    assert all(name.startswith("moe.") for name in block.state_dict())
    assert torch.equal(block.moe.experts.fc1_weight[2], weight)


@pytest.mark.parametrize(("given", "dropout"), [(None, 0.1), (0.0, 0.0)])
def test_experts_may_drop_more_than_all_else(given, dropout):
    torch.manual_seed(0)
    block = Least()
    block.activation_dropout_module.p = 0.1
    plan(starts_dense=False, dropout=given).fill(block)
    assert block.moe.experts.dropout == dropout


def test_a_gate_is_made_with_the_settings_of_its_plan():
    cfg = BaseMoEConfig(expert_gates="base,switch,own", price_memory=0.5, task_names="aa,bb", expert_interval=1)
    plans = plan_experts(cfg, 4, {**GATES, "own": OwnGate}, {"own": {"sharpness": 3.0}})
    gates = [filled(slot_plan).moe.gate for slot_plan in plans.values()]
    assert [type(gate) for gate in gates] == [BaseGate, SwitchGate, OwnGate, BaseGate]
    assert {(gate.evaluation, gate.prices.memory) for gate in (gates[0], gates[3])} == {("prices", 0.5)}
    assert (gates[2].sharpness, gates[2].num_tasks) == (3.0, 2)


def test_experts_see_each_sentences_task_and_padding():
    block, hidden = filled(plan("task", starts_dense=False)), torch.randn(L, B, H)
    seen = {}
    block.moe.register_forward_pre_hook(lambda module, args: seen.update(mask=args[2], ids=args[3]))
    mask = torch.zeros(B, L, dtype=torch.bool)
    mask[1, 3:] = True
    output = block(hidden, BatchContext(torch.tensor([0, 2, 1]), mask))
    assert seen["ids"].tolist() == [0, 2, 1] and torch.equal(seen["mask"], mask.t())
    assert not output[3:, 1].any() and output[:3, 1].all()
    with refused("task_ids"):
        block(hidden, BatchContext())


def test_a_copy_has_experts_of_its_own():
    block = filled(plan(starts_dense=False))
    other = copy.deepcopy(block)
    assert other.slot.moe is other.moe and other.moe is not block.moe
    nn.init.zeros_(other.moe.experts.fc2_weight)
    assert block.moe.experts.fc2_weight.any()
