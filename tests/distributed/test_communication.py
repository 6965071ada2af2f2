"""What leaves a process: exactly the operations and the bytes that the documented formulas say, and nothing else."""

from contextlib import ExitStack, contextmanager, nullcontext
from unittest.mock import patch

import pytest
import torch
from exchange_model import count_bytes, gather_bytes, num_operations, row_bytes, shuffle_bytes
from torch import distributed as dist

from fairseq_mtmoe.analysis import run_log
from fairseq_mtmoe.moe import ExpertBank, MoELayer, build_gate
from fairseq_mtmoe.moe.parallel.placement import place_experts
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenShuffle, parts_of
from tests.helpers.digits import make_digit_corpus
from tests.helpers.models import batch, moe_model
from tests.helpers.processes import run_processes
from tests.helpers.training import train_here

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
    size, place = dist.get_world_size(group), dist.get_rank(group)
    send = send or [len(sent) // size] * size
    away = sent[: len(sent) - send[place]]  # as much as that, whichever rows
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
    rows = [int((routings[0] // placement.count == place).sum()) for place in range(placement.group_size)]  # padding: P
    seconds, recorded = layer.comm.seconds, (layer.comm.num_bytes, layer.comm.exchanges)
    return calls, recorded, rows, seconds


@pytest.fixture(scope="module")
def several():
    found = {}
    for world_size in TOKENS:
        cases = [case[1:] for case in CASES if case[0] == world_size]
        results = run_processes(run_cases, world_size, cases)
        found |= {(world_size, *case): [one[place] for one in results] for place, case in enumerate(cases)}
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_layer_sends_what_the_formula_says_and_nothing_else(several, case):
    world_size, num_experts, _, shuffles, compute, training = case
    size = min(num_experts, world_size)
    rows_of = [rows for _, _, rows, _ in several[case]]
    row_type = "torch.float32" if compute == "float32" else "torch.bfloat16"
    for rank, (calls, recorded, rows, seconds) in enumerate(several[case]):
        place, first = rank % size, rank - rank % size
        all_bytes = sum(num_bytes for *_, num_bytes in calls)
        others = [process for process in range(size) if process != place]
        sent = sum(rows[process] for process in others)
        arrived = sum(rows_of[first + process][place] for process in others)
        right = row_bytes(sent, arrived, H, 4 if compute == "float32" else 2, training)
        right += count_bytes(num_experts, size)
        steps = ["torch.int64"] + (4 if training else 2) * [row_type]
        if shuffles and training:
            tokens = [TOKENS[world_size][first + process] for process in range(size)]
            scores = tokens[place] - parts_of(tokens[place], place, size)[place]
            answers = sum(parts_of(tokens[process], process, size)[place] for process in others)
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


def test_half_precision_sends_half_of_the_rows_bytes(several):
    """Task gates choose the same experts in all types that the rows may have."""

    def rows(compute, dtype):
        results = several[2, 4, "task", False, compute, True]
        return [sum(num_bytes for _, found, num_bytes in calls if found == dtype) for calls, *_ in results]

    full, half = rows("float32", "torch.float32"), rows("autocast", "torch.bfloat16")
    assert [2 * num_bytes for num_bytes in half] == full and min(full) > 0


def disabled(rank):
    placement = place_experts(2)
    layer = MoELayer(build_gate("base", 2, H), ExpertBank(2, H, F, placement=placement))
    layer(torch.randn(6, H), torch.randn(6, H)).sum().backward()
    return layer.comm.num_bytes, layer.comm.exchanges, layer.comm.seconds


def test_a_record_that_is_off_records_nothing():
    assert run_processes(disabled, 2) == [(0, 0, 0.0)] * 2


# ---- a model ----


def pass_model(rank, options):
    model = moe_model(encoder_layers=4, decoder_layers=4, **options).train()
    net_input = batch()
    with watching() as calls:
        features, _ = model(**net_input)
        num_forward = len(calls)
        features.sum().backward()
    return [(name, dtype) for name, dtype, _ in calls], num_forward


@pytest.mark.parametrize(
    ("options", "gathers", "each_forward"),
    [
        (dict(expert_gates="base"), 2, 5),
        (dict(expert_gates="base", no_token_shuffle=True), 0, 3),
        (dict(expert_gates="task"), 0, 3),
    ],
    ids=["shuffled", "not shuffled", "task gates"],
)
def test_a_model_exchanges_row_counts_once_a_layer_and_token_counts_once_a_stack(options, gathers, each_forward):
    layers = 4
    for calls, num_forward in run_processes(pass_model, 2, options):
        assert sum(name == "all_gather" for name, _ in calls) == gathers
        exchanges = [dtype for name, dtype in calls if name == "all_to_all_single"]
        assert len(exchanges) + gathers == len(calls)  # no operation of another kind
        assert exchanges.count("torch.int64") == layers
        assert num_forward == gathers + layers * each_forward
        assert len(calls) == num_forward + layers * 2


def pass_two_batches(rank):
    model = moe_model(expert_gates="base", checkpoint_activations=True).train()
    with watching() as calls:
        for count in (4, 2 + rank):
            features, _ = model(**{name: value[:count] for name, value in batch().items()})
            features.sum().backward()
    return [name for name, *_ in calls].count("all_gather")


def test_each_pass_asks_for_its_token_counts_and_its_recomputation_knows_them():
    stacks, passes = 2, 2
    assert run_processes(pass_two_batches, 2) == [stacks * passes] * 2


# ---- a run ----


def train_logging(rank, data, folder):
    from fairseq.logging import metrics

    logged, log_scalar = [], metrics.log_scalar

    def noted(key, value, *args, **kwargs):
        if key.startswith("expert_comm"):
            logged.append((key, value))
        return log_scalar(key, value, *args, **kwargs)

    metrics.log_scalar = noted
    options = ("--max-update", 6, "--validate-interval-updates", 3, "--max-tokens", 250, "--no-save")
    train_here(data, folder, "--log-expert-comm", *options)
    return logged


def test_a_run_logs_each_update_and_sums_by_layer_before_each_validation(tmp_path):
    data = make_digit_corpus(tmp_path / "data", train=600)
    logged, *_ = run_processes(train_logging, 2, data, tmp_path / "run")
    names = [f"expert_comm_{name}" for name in ("ms", "mb", "share")]
    values = {name: [value for key, value in logged if key == name] for name in names}
    assert all(len(found) == 6 and min(found) > 0 for found in values.values())
    assert max(values["expert_comm_share"]) < 1
    events = [event for event in run_log.read(tmp_path / "run") if event["event"] == "expert_comm"]
    assert [(event["update"], event["updates"]) for event in events] == [(3, 3), (6, 3)]
    for event, first in zip(events, (0, 3), strict=True):
        assert set(event["layers"]) == {f"{stack}.layers.{n}" for stack in ("encoder", "decoder") for n in (0, 1)}
        for name, unit, field in (("expert_comm_mb", 1e6, "bytes"), ("expert_comm_ms", 1e-3, "seconds")):
            total = sum(layer[field] for layer in event["layers"].values())
            assert sum(values[name][first : first + 3]) == pytest.approx(total / unit)
