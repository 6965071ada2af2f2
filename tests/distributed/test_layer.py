"""An expert layer in several processes is the layer in one: outputs, and every gradient; and its dispatcher alone."""

from unittest.mock import patch

import pytest
import torch
from torch import distributed as dist

from fairseq_mtmoe.moe import ExpertBank, MoELayer, build_gate, priced_assignment, remember_prices
from fairseq_mtmoe.moe.parallel.all_to_all_dispatcher import AllToAllDispatcher, dispatcher_for
from fairseq_mtmoe.moe.parallel.collectives import CommRecord
from fairseq_mtmoe.moe.parallel.placement import average_over_replicas, place_experts
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenShuffle, parts_of
from fairseq_mtmoe.moe.reference import slow_forward
from tests.helpers.processes import run_processes

H, F, TASKS = 8, 12, 3
# Tokens of each process: unequal, one and none; some of them padding.
SIZES = {2: (7, 12), 3: (5, 0, 8), 4: (5, 1, 0, 10)}
# More experts than processes, as many, fewer (replicas), and numbers that do not divide each other.
PROCESSES_EXPERTS = [(2, 4), (2, 2), (3, 4), (3, 6), (4, 8), (4, 2), (4, 6)]
CASES = [(*sizes, kind, True) for sizes in PROCESSES_EXPERTS for kind in ("base", "task", "switch")]
CASES += [(4, 8, kind, False) for kind in ("base", "task", "switch")]


def build(kind, num_experts, placement=None):
    torch.manual_seed(3)
    gate = build_gate(kind, num_experts, H, TASKS)
    layer = MoELayer(gate, ExpertBank(num_experts, H, F, placement=placement))
    with torch.no_grad():
        gate.weight.normal_()  # decided gates, whose values matter
        layer.blend.fill_(0.7)
    return layer


def batch(rank, size):
    """Tokens, padding, tasks, and the gradient of the output."""
    generator = torch.Generator().manual_seed(100 + rank)
    hidden = torch.randn(size, H, generator=generator)
    branch = torch.randn(size, H, generator=generator)
    padding = torch.arange(size) % 4 == 3
    tasks = torch.randint(TASKS, (size,), generator=generator)
    return hidden, branch, padding, tasks, torch.randn(size, H, generator=generator)


def pass_batch(layer, rank, size, forward=None):
    """Outputs and gradients as lists; `forward` instead of the layer's."""
    hidden, branch, padding, tasks, grad = batch(rank, size)
    hidden.requires_grad_()
    branch.requires_grad_()
    arguments = (hidden, branch, padding, tasks)
    output = layer(*arguments) if forward is None else forward(layer, *arguments)
    (output * grad).sum().backward()
    grads = (torch.zeros_like(hidden) if grad is None else grad for grad in (hidden.grad, branch.grad))
    return [value.tolist() for value in (output, *grads)]


def run_cases(rank, cases):
    """All at once: starting processes takes longer than the cases do."""
    return {case: in_one_of_several(rank, *case) for case in cases}


@pytest.fixture(scope="module")
def several():
    """The results of all processes, by number of processes and case."""
    found = {}
    for world_size in (2, 3, 4):
        cases = [case[1:] for case in CASES if case[0] == world_size]
        for results in run_processes(run_cases, world_size, cases):
            for case, result in results.items():
                found.setdefault((world_size, *case), []).append(result)
    return found


def in_one_of_several(rank, num_experts, kind, training):
    world_size = dist.get_world_size()
    placement = place_experts(num_experts)
    layer = build(kind, num_experts, placement).train(training)
    values = pass_batch(layer, rank, SIZES[world_size][rank])
    experts = list(layer.experts.parameters())
    apart = [parameter.grad.clone() for parameter in experts]
    average_over_replicas([parameter.grad for parameter in experts], placement)
    with patch("fairseq_mtmoe.moe.parallel.placement.BUCKET", 0):  # a message for each
        average_over_replicas(apart, placement)
    assert all(torch.equal(parameter.grad, alone) for parameter, alone in zip(experts, apart, strict=True))
    gradients = {}
    for name, parameter in layer.named_parameters():
        gradient = parameter.grad
        if not hasattr(parameter, "expert"):  # what data parallelism does
            dist.all_reduce(gradient.div_(world_size))
        gradients[name] = gradient.tolist()
    starts = {name: parameter.tolist() for name, parameter in layer.experts.named_parameters()}
    return values, gradients, starts, (placement.first, placement.count, placement.group_size)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_and_gradients_are_those_of_one_process(several, case):
    world_size, num_experts, kind, training = case
    several = several[case]
    whole = build(kind, num_experts).train(training)
    starts = {name: parameter.tolist() for name, parameter in whole.experts.named_parameters()}
    for rank, (values, *_) in enumerate(several):
        expected = pass_batch(whole, rank, SIZES[world_size][rank], slow_forward)
        for value, right in zip(values, expected, strict=True):
            torch.testing.assert_close(torch.tensor(value), torch.tensor(right), rtol=1e-5, atol=1e-5)
    for _, gradients, started, (first, count, group_size) in several:
        assert count == num_experts // group_size
        for name, parameter in whole.named_parameters():
            right = parameter.grad / world_size
            if name.startswith("experts."):
                right = right[first : first + count]
                assert started[name.removeprefix("experts.")] == starts[name.removeprefix("experts.")][first:][:count]
            torch.testing.assert_close(torch.tensor(gradients[name]), right, rtol=1e-5, atol=1e-5)


def test_experts_start_unlike_each_other():
    weight = build("base", 8).experts.fc1_weight
    assert len({tuple(expert.reshape(-1).tolist()) for expert in weight}) == 8


# ---- shuffled tokens ----


def shuffled(rank, num_experts, idle_rank):
    world_size = dist.get_world_size()
    placement = place_experts(num_experts)
    layer = build("base", num_experts, placement)
    layer.gate.shuffle = TokenShuffle(placement)
    layer.idle = rank == idle_rank
    size = SIZES[world_size][rank]
    hidden, _, padding, _, _ = batch(rank, size)
    torch.manual_seed(rank)
    chosen = layer.gate(hidden, None, padding | layer.idle).expert_T
    torch.manual_seed(rank)
    order = torch.randperm(size)
    remember_prices([layer.gate.prices], dist.group.WORLD)
    price = layer.gate.prices.mean.tolist()
    return chosen.tolist(), order.tolist(), pass_batch(layer, rank, size), price


@pytest.mark.parametrize("idle_rank", [None, 1])
@pytest.mark.parametrize(("world_size", "num_experts"), [(2, 4), (4, 4)])
def test_shuffled_tokens_are_assigned_evenly_in_each_random_part(world_size, num_experts, idle_rank):
    """The slow twin: collect the parts by hand, and assign each of them."""
    several = run_processes(shuffled, world_size, num_experts, idle_rank)
    layer = build("base", num_experts)
    parts = [[] for _ in range(world_size)]
    for rank, (_, order, _, _) in enumerate(several):
        sizes = parts_of(len(order), rank, world_size)
        assert sum(sizes) == len(order) and max(sizes) - min(sizes) <= 1
        for part, size in zip(parts, sizes, strict=True):
            part += [(rank, token) for token in order[:size]]
            order = order[size:]
    batches = [batch(rank, size) for rank, size in enumerate(SIZES[world_size])]
    recorded, tokens = torch.zeros(num_experts), 0
    for part in parts:
        real = [(rank, token) for rank, token in part if rank != idle_rank and not batches[rank][2][token]]
        if real:
            scores = torch.stack([batches[rank][0][token] @ layer.gate.weight.T for rank, token in real]).detach()
            right, price = priced_assignment(scores)
            right = right.tolist()
            recorded, tokens = recorded + len(real) * price, tokens + len(real)
            assert [several[rank][0][token] for rank, token in real] == right
            load = [right.count(expert) for expert in range(num_experts)]
            assert max(load) - min(load) <= 1
    for rank, (chosen, _, _, price) in enumerate(several):
        assert price == several[0][3]  # the same in all processes, to which each part counts by its tokens
        torch.testing.assert_close(torch.tensor(price), recorded / tokens, atol=1e-4, rtol=0)
        padding = batches[rank][2] if rank != idle_rank else torch.ones(len(chosen), dtype=torch.bool)
        assert [expert == num_experts for expert in chosen] == padding.tolist()


def idle(rank):
    placement = place_experts(4)
    layer = build("base", 4, placement)
    layer.idle = rank == 0
    values = pass_batch(layer, rank, SIZES[2][rank])
    return values, {name: parameter.grad.tolist() for name, parameter in layer.experts.named_parameters()}


def test_a_process_without_a_batch_serves_the_others_and_adds_nothing():
    (output, hidden_grad, branch_grad), served = run_processes(idle, 2)[0]
    assert not any(torch.tensor(value).any() for value in (output, hidden_grad, branch_grad))
    alone = build("base", 4)
    pass_batch(alone, 1, SIZES[2][1])
    for name, parameter in alone.experts.named_parameters():
        torch.testing.assert_close(torch.tensor(served[name]), parameter.grad[:2] / 2, rtol=1e-5, atol=1e-6)


# ---- the dispatcher ----


def there_and_back(rank, num_experts):
    """Rows that say which expert they are for, passed through experts that do nothing."""
    placement = place_experts(num_experts)
    dispatcher = dispatcher_for(placement, CommRecord())
    expert = torch.arange(5 + rank) % (num_experts + 1)  # the last number is padding's
    x = expert.float().unsqueeze(1).expand(-1, H).clone().requires_grad_()
    rows, plan = dispatcher.dispatch(x, expert, max_rows=1)
    scale = 2.0 + torch.arange(len(x))
    back = dispatcher.combine(rows, plan, scale)
    (back * torch.ones(H)).sum().backward()
    scale_TH = torch.where(expert == num_experts, 0, scale).unsqueeze(1).expand(-1, H)
    offsets = plan.offsets_N.tolist()
    parts = rows.tensor_split(plan.offsets_N[:-1]) if len(offsets) > 1 else [rows]
    return {
        "kind": type(dispatcher),
        "here": [sorted(set(part[:, 0].tolist())) for part in parts],
        "experts": [[float(placement.first + place)] for place in range(placement.count)],
        "ends": offsets == plan.host_offsets_N.tolist() and offsets[-1] == len(rows),
        "most": plan.max_rows,
        "back": torch.equal(back, x * scale_TH),
        "gradient": torch.equal(x.grad, scale_TH),
    }


@pytest.mark.parametrize("num_experts", [2, 4])
def test_rows_reach_their_experts_and_come_back(num_experts):
    for found in run_processes(there_and_back, 2, num_experts):
        assert found["kind"] is AllToAllDispatcher
        assert found["here"] == found["experts"] and found["ends"]
        assert found["most"] is None  # other processes' rows come too
        assert found["back"] and found["gradient"]  # divided by P, then multiplied
