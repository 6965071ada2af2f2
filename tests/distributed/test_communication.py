"""What leaves a process: exactly the operations and the bytes that the documented formulas say, and nothing else."""

import logging
from contextlib import nullcontext

import pytest
import torch
from torch import distributed as dist

from fairseq_mtmoe.moe import ExpertBank, MoELayer, build_gate, remember_prices, running_prices
from fairseq_mtmoe.moe.parallel.placement import place_experts
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenShuffle, parts_of
from tests.helpers.digits import make_digit_corpus
from tests.helpers.exchange_bytes import (
    count_bytes,
    gather_bytes,
    num_operations,
    row_bytes,
    shuffle_bytes,
)
from tests.helpers.messages import watching
from tests.helpers.models import batch, moe_model
from tests.helpers.processes import run_processes
from tests.helpers.trainers import groups_of, trainer_here

H, F, TASKS = 8, 12, 3
TOKENS = {2: (7, 12), 4: (5, 1, 0, 10)}

# ---- one layer ----

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
    seconds, recorded = layer.comm.seconds, (layer.comm.num_bytes, layer.comm.exchanges)
    return calls, recorded, rows, seconds


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
    size = min(num_experts, world_size)
    rows_of = [rows for _, _, rows, _ in several[case]]
    row_type = "float32" if compute == "float32" else "bfloat16"
    for rank, (calls, recorded, rows, seconds) in enumerate(several[case]):
        own, first = rank % size, rank - rank % size
        all_bytes = sum(call.num_bytes for call in calls)
        others = [process for process in range(size) if process != own]
        sent = sum(rows[process] for process in others)
        arrived = sum(rows_of[first + process][own] for process in others)
        right = row_bytes(sent, arrived, H, 4 if compute == "float32" else 2, training)
        shuffled = shuffles and training
        right += count_bytes(num_experts, size, shuffled)
        steps = ["int32" if shuffled else "int64"] + (4 if training else 2) * [row_type]
        if shuffled:
            tokens = [TOKENS[world_size][first + process] for process in range(size)]
            scores = tokens[own] - parts_of(tokens[own], own, size)[own]
            answers = sum(parts_of(tokens[process], process, size)[own] for process in others)
            right += shuffle_bytes(scores, answers, num_experts) + gather_bytes(size)
            steps = ["int64", "float32", *steps]
            assert calls.pop(0).operation == "allgather"
            assert num_operations(True) == len(calls)
        else:
            assert num_operations(False, training) == len(calls)
        assert {call.operation for call in calls} == {"alltoall_base"}
        assert [call.dtype for call in calls] == steps[len(steps) - len(calls) :]
        assert recorded == (right, len(steps)) and all_bytes == right
        assert seconds > 0


# ---- a model ----

LAYERS, PASSES = 4, 2
# Options, and how often a forward pass gathers, and exchanges in each layer. Numbers of rows come with the answers,
# but where tokens go by known prices, and not as they were assigned.
MODELS = [
    (dict(expert_gates="base"), 1, 4),
    (dict(expert_gates="base", no_token_shuffle=True), 0, 3),
    (dict(expert_gates="task"), 0, 3),
]


def pass_models(rank):
    """The operations of each model's pass, and how many of them are the forward pass's; and of two passes of one."""
    found = []
    for options, _, _ in MODELS:
        model, net_input = moe_model(encoder_layers=4, decoder_layers=4, **options).train(), batch()
        for prices in running_prices(model):
            prices.record(torch.zeros(4), torch.ones(()))
        remember_prices(running_prices(model))
        with watching() as calls:
            features, _ = model(**net_input)
            num_forward = len(calls)
            features.sum().backward()
        found.append((calls, num_forward))
    model = moe_model(expert_gates="base", checkpoint_activations=True).train()
    with watching() as calls:
        for count in (4, 2 + rank):
            features, _ = model(**{name: value[:count] for name, value in batch().items()})
            features.sum().backward()
    return found, sum(call.operation == "allgather" for call in calls)


def test_a_model_exchanges_row_counts_once_a_layer_and_token_counts_once_a_pass():
    """Each pass asks for its token counts, and its recomputation knows them."""
    for found, num_gathered in run_processes(pass_models, 2):
        for (calls, num_forward), (options, gathers, each_forward) in zip(found, MODELS, strict=True):
            assert sum(call.operation == "allgather" for call in calls) == gathers, options
            exchanges = [call.dtype for call in calls if call.operation == "alltoall_base"]
            assert len(exchanges) + gathers == len(calls)  # no operation of another kind
            assert exchanges.count("int32") == gathers * LAYERS
            assert exchanges.count("int64") == (0 if each_forward == 4 else LAYERS)
            assert num_forward == gathers + LAYERS * each_forward
            assert len(calls) == num_forward + LAYERS * 2
        assert num_gathered == PASSES


# ---- an update ----

# Collective operations of an update, from the forward pass to the logged figures.
UPDATES = {
    ("--arch", "base_dense_tiny"): 2,
    ("--expert-gates", "base"): 28,
    ("--expert-gates", "task"): 23,
}


def operations_of_updates(rank, data, folder):
    logging.disable(logging.INFO)
    several = ("--ddp-backend", "pytorch_ddp", "--distributed-world-size", 2)
    ours = ("--criterion", "moe_label_smoothed_cross_entropy", "--optimizer", "fused_adam")
    counts = []
    for options in UPDATES:
        trainer = trainer_here(data, folder / options[-1], *several, *ours, *options)
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
