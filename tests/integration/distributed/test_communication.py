"""What leaves a process: only the operations and bytes that docs/development/communication.md states."""

import logging
from contextlib import nullcontext

import pytest
import torch
from torch import distributed as dist

from fairseq_mtmoe.moe import ExpertBank, MoELayer, build_gate
from fairseq_mtmoe.moe.parallel.placement import place_experts
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenShuffle, parts_of
from tests.helpers.digits import make_digit_corpus
from tests.helpers.messages import watching
from tests.helpers.processes import run_processes
from tests.helpers.trainers import groups_of, trainer_here

H, F, TASKS = 8, 12, 3
TOKENS = {2: (7, 12), 4: (5, 1, 0, 10)}

# Gate, shuffled, the type that experts compute in, training.
KINDS = [
    ("base", True, "float32", True),
    ("base", False, "float32", True),
    ("task", False, "float32", True),
    ("base", True, "bfloat16", True),
    ("task", False, "autocast", True),
    ("base", True, "float32", False),
]
# More experts than processes; as many, and fewer, which are replicated.
CASES = [(2, 4, *kind) for kind in KINDS] + [(4, experts, *KINDS[0]) for experts in (8, 4, 2)]


def run_cases(rank, cases):
    return [run_case(rank, *case) for case in cases]


def run_case(rank, num_experts, kind, shuffles, compute, training):
    torch.manual_seed(3)
    placement = place_experts(num_experts)
    layer = MoELayer(build_gate(kind, num_experts, H, TASKS), ExpertBank(num_experts, H, F, placement=placement))
    if shuffles:
        layer.gate.shuffle = TokenShuffle(placement)
    layer.to(torch.bfloat16 if compute == "bfloat16" else torch.float32).train(training)
    layer.comm.enabled = True
    routings = []
    layer.gate.register_forward_hook(lambda gate, inputs, routing: routings.append(routing.expert_T))
    size = TOKENS[dist.get_world_size()][rank]
    hidden = torch.randn(size, H, dtype=layer.experts.fc1_weight.dtype).requires_grad_(training)
    padding, tasks = torch.arange(size) % 4 == 3, torch.arange(size) % TASKS
    autocast = torch.autocast("cpu", torch.bfloat16) if compute == "autocast" else nullcontext()
    with watching() as calls, torch.set_grad_enabled(training):
        with autocast:
            output = layer(hidden, hidden, padding, tasks)
        if training:
            output.float().sum().backward()
    rows = [int((routings[0] // placement.count == other).sum()) for other in range(placement.group_size)]  # padding: P
    assert layer.comm.seconds > 0
    return calls, layer.comm.num_bytes, rows


@pytest.fixture(scope="module")
def several():
    found = {}
    for world_size in TOKENS:
        cases = [case[1:] for case in CASES if case[0] == world_size]
        results = run_processes(run_cases, world_size, cases)
        found |= {(world_size, *case): of_case for case, of_case in zip(cases, zip(*results, strict=True), strict=True)}
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_layer_sends_what_the_formula_says_and_nothing_else(several, case):
    world_size, num_experts, _, shuffles, compute, training = case
    size, shuffled = min(num_experts, world_size), shuffles and training
    rows_of = [rows for _, _, rows in several[case]]
    for rank, (calls, recorded, rows) in enumerate(several[case]):
        own, first = rank % size, rank - rank % size
        others = [process for process in range(size) if process != own]
        sent = sum(rows[process] for process in others)
        arrived = sum(rows_of[first + process][own] for process in others)
        # Rows go to their experts and back; so do gradients.
        right = (2 if training else 1) * (sent + arrived) * H * (4 if compute == "float32" else 2)
        if shuffled:
            tokens = [TOKENS[world_size][first + process] for process in range(size)]
            scores = tokens[own] - parts_of(tokens[own], own, size)[own]
            answers = sum(parts_of(tokens[process], process, size)[own] for process in others)
            right += (size - 1) * 8 + (scores * (num_experts + 1) + answers) * 4  # numbers of tokens are int64
            right += (size - 1) * num_experts * 4  # numbers of rows, which come with the answers
        else:
            right += (num_experts - num_experts // size) * 8  # numbers of rows
        exchanges = 3 + 2 * training + shuffled
        assert [call.operation for call in calls] == ["allgather"] * shuffled + ["alltoall_base"] * exchanges
        assert recorded == right == sum(call.num_bytes for call in calls)


# Collective operations of an update, from the forward pass to the logged figures. Recomputation does not ask for the
# numbers of tokens again.
UPDATES = {
    ("--arch", "base_dense_tiny"): 2,
    ("--expert-gates", "base"): 28,
    ("--checkpoint-activations", "--expert-gates", "base"): 44,
    ("--expert-gates", "task"): 23,
}


def operations_of_updates(rank, data, folder):
    logging.disable(logging.INFO)
    several = ("--ddp-backend", "pytorch_ddp", "--distributed-world-size", 2)
    ours = ("--criterion", "moe_label_smoothed_cross_entropy", "--optimizer", "fused_adam")
    counts = []
    for options in UPDATES:
        trainer = trainer_here(data, folder, *several, *ours, *options)
        *earlier, last = groups_of(trainer, 3)
        for group in earlier:  # Data parallelism makes its buckets there.
            trainer.train_step(group)
        with watching() as calls:
            trainer.train_step(last)
        counts.append(len(calls))
    logging.disable(logging.NOTSET)
    return counts


def test_an_update_has_no_further_operations(tmp_path):
    data = make_digit_corpus(tmp_path / "data", train=400)
    for counts in run_processes(operations_of_updates, 2, data, tmp_path):
        assert counts == list(UPDATES.values())
