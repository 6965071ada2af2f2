"""What leaves a process: exactly the operations and the bytes that the documented formulas say, and nothing else."""

from contextlib import ExitStack, contextmanager, nullcontext
from unittest.mock import patch

import pytest
import torch
from exchange_model import count_bytes, gather_bytes, num_operations, row_bytes, shuffle_bytes
from torch import distributed as dist

from fairseq_mtmoe.moe import ExpertBank, MoELayer, build_gate
from fairseq_mtmoe.moe.parallel.placement import place_experts
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenShuffle, parts_of
from tests.helpers.models import batch, moe_model
from tests.helpers.processes import run_processes

H, F, TASKS = 8, 12, 3
TOKENS = {2: (7, 12), 4: (5, 1, 0, 10)}
COLLECTIVES = (
    "all_reduce", "all_gather_into_tensor", "all_gather", "all_gather_object", "broadcast", "broadcast_object_list",
    "reduce", "reduce_scatter", "reduce_scatter_tensor", "gather", "scatter", "all_to_all", "all_to_all_single", "send",
    "recv", "isend", "irecv", "barrier",
)  # fmt: skip


@contextmanager
def watching():
    """Every operation between processes that starts inside: its name, its numbers' type, and the bytes that leave."""
    calls = []
    with ExitStack() as stack:
        for name in COLLECTIVES:
            original = getattr(dist, name)

            def call(*args, name=name, original=original, **kwargs):
                calls.append(describe(name, *args, **kwargs))
                return original(*args, **kwargs)

            stack.enter_context(patch.object(dist, name, call))
        yield calls


def describe(name, output=None, sent=None, receive=None, send=None, group=None, **_):
    if name == "all_gather":
        return name, str(sent.dtype), sent.numel() * sent.element_size() * (dist.get_world_size(group) - 1)
    if name != "all_to_all_single":
        return name, "", 0
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    send = send or [len(sent) // size] * size
    away = sent[: len(sent) - send[rank]]  # as much as that, whichever rows
    return name, str(sent.dtype), away.numel() * away.element_size()


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
    row_type = "torch.float32" if compute == "float32" else "torch.bfloat16"
    for rank, (calls, recorded, rows, seconds) in enumerate(several[case]):
        own, first = rank % size, rank - rank % size
        all_bytes = sum(num_bytes for *_, num_bytes in calls)
        others = [process for process in range(size) if process != own]
        sent = sum(rows[process] for process in others)
        arrived = sum(rows_of[first + process][own] for process in others)
        right = row_bytes(sent, arrived, H, 4 if compute == "float32" else 2, training)
        right += count_bytes(num_experts, size)
        steps = ["torch.int64"] + (4 if training else 2) * [row_type]
        if shuffles and training:
            tokens = [TOKENS[world_size][first + process] for process in range(size)]
            scores = tokens[own] - parts_of(tokens[own], own, size)[own]
            answers = sum(parts_of(tokens[process], process, size)[own] for process in others)
            right += shuffle_bytes(scores, answers, num_experts) + gather_bytes(size)
            steps = ["torch.int64", "torch.float32", "torch.int32", *steps]
            assert calls.pop(0)[0] == "all_gather"
            assert num_operations(True) == len(calls)
        else:
            assert num_operations(False, training) == len(calls)
        assert {name for name, *_ in calls} == {"all_to_all_single"}
        assert [dtype for _, dtype, _ in calls] == steps[len(steps) - len(calls) :]
        assert recorded == (right, len(steps)) and all_bytes == right
        assert seconds > 0


# ---- a model ----

LAYERS, STACKS, PASSES = 4, 2, 2
# Options, and how often a forward pass gathers, and exchanges in each layer.
MODELS = [
    (dict(expert_gates="base"), STACKS, 5),
    (dict(expert_gates="base", no_token_shuffle=True), 0, 3),
    (dict(expert_gates="task"), 0, 3),
]


def pass_models(rank):
    """The operations of each model's pass, and how many of them are the forward pass's; and of two passes of one."""
    found = []
    for options, _, _ in MODELS:
        model, net_input = moe_model(encoder_layers=4, decoder_layers=4, **options).train(), batch()
        with watching() as calls:
            features, _ = model(**net_input)
            num_forward = len(calls)
            features.sum().backward()
        found.append(([(name, dtype) for name, dtype, _ in calls], num_forward))
    model = moe_model(expert_gates="base", checkpoint_activations=True).train()
    with watching() as calls:
        for count in (4, 2 + rank):
            features, _ = model(**{name: value[:count] for name, value in batch().items()})
            features.sum().backward()
    return found, [name for name, *_ in calls].count("all_gather")


def test_a_model_exchanges_row_counts_once_a_layer_and_token_counts_once_a_stack():
    """Each pass asks for its token counts, and its recomputation knows them."""
    for found, num_gathered in run_processes(pass_models, 2):
        for (calls, num_forward), (options, gathers, each_forward) in zip(found, MODELS, strict=True):
            assert sum(name == "all_gather" for name, _ in calls) == gathers, options
            exchanges = [dtype for name, dtype in calls if name == "all_to_all_single"]
            assert len(exchanges) + gathers == len(calls)  # no operation of another kind
            assert exchanges.count("torch.int64") == LAYERS
            assert num_forward == gathers + LAYERS * each_forward
            assert len(calls) == num_forward + LAYERS * 2
        assert num_gathered == STACKS * PASSES
