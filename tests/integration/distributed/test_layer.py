"""An expert layer in several processes is the layer in one: outputs, and every gradient."""

from unittest.mock import patch

import pytest
import torch
from torch import distributed as dist

from fairseq_mtmoe.moe import ExpertBank, MoELayer, build_gate, priced_assignment, remember_prices
from fairseq_mtmoe.moe.parallel.placement import average_over_replicas, place_experts
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenShuffle, parts_of
from tests.helpers.layer_reference import slow_forward
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
    found = {case: in_one_of_several(rank, *case) for case in cases}
    if dist.get_world_size() != 3:
        found |= {("shuffled", idle_rank): shuffled(rank, idle_rank) for idle_rank in (None, 1)}
    if dist.get_world_size() == 2:
        found["idle",] = idle(rank)
    return found


@pytest.fixture(scope="module")
def several():
    """The results of all processes, by number of processes and case."""
    found = {}
    for world_size in (2, 3, 4):
        results = run_processes(run_cases, world_size, [case[1:] for case in CASES if case[0] == world_size])
        found |= {(world_size, *case): [of_rank[case] for of_rank in results] for case in results[0]}
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
    return values, gradients, slice(placement.first, placement.first + placement.count)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_and_gradients_are_those_of_one_process(several, case):
    world_size, num_experts, kind, training = case
    several = several[case]
    whole = build(kind, num_experts).train(training)
    for rank, (values, *_) in enumerate(several):
        for value, right in zip(values, pass_batch(whole, rank, SIZES[world_size][rank], slow_forward), strict=True):
            torch.testing.assert_close(torch.tensor(value), torch.tensor(right), rtol=1e-5, atol=1e-5)
    for _, gradients, held in several:
        for name, parameter in whole.named_parameters():
            right = (parameter.grad / world_size)[held if name.startswith("experts.") else ...]
            torch.testing.assert_close(torch.tensor(gradients[name]), right, rtol=1e-5, atol=1e-5)


# ---- shuffled tokens ----


def shuffled(rank, idle_rank):
    placement = place_experts(4)
    gate = build("base", 4, placement).gate
    gate.shuffle = TokenShuffle(placement)
    size = SIZES[dist.get_world_size()][rank]
    hidden, _, padding, _, _ = batch(rank, size)
    torch.manual_seed(rank)
    routing = gate(hidden, None, padding | (rank == idle_rank))
    torch.manual_seed(rank)
    order = torch.randperm(size)
    dist.all_reduce(gate.prices.recorded)
    remember_prices([gate.prices])
    return routing.expert_T.tolist(), order.tolist(), gate.prices.mean.tolist(), routing.arriving_PE.tolist()


@pytest.mark.parametrize("idle_rank", [None, 1])
@pytest.mark.parametrize("world_size", [2, 4])
def test_shuffled_tokens_are_assigned_evenly_in_each_random_part(several, world_size, idle_rank):
    """The slow twin: collect the parts by hand, and assign each of them."""
    several = several[world_size, "shuffled", idle_rank]
    num_experts, weight = 4, build("base", 4).gate.weight
    parts = [[] for _ in range(world_size)]
    for rank, (_, order, *_) in enumerate(several):
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
            scores = torch.stack([batches[rank][0][token] @ weight.T for rank, token in real]).detach()
            right, price = priced_assignment(scores)
            right = right.tolist()
            recorded, tokens = recorded + len(real) * price, tokens + len(real)
            assert [several[rank][0][token] for rank, token in real] == right
            load = [right.count(expert) for expert in range(num_experts)]
            assert max(load) - min(load) <= 1
    for rank, (chosen, _, price, arriving) in enumerate(several):
        held = range(rank * num_experts // world_size, (rank + 1) * num_experts // world_size)
        assert arriving == [[sender.count(expert) for expert in held] for sender, *_ in several]
        assert price == several[0][2]  # the same in all processes, to which each part counts by its tokens
        torch.testing.assert_close(torch.tensor(price), recorded / tokens, atol=1e-4, rtol=0)
        padding = batches[rank][2] if rank != idle_rank else torch.ones(len(chosen), dtype=torch.bool)
        assert [expert == num_experts for expert in chosen] == padding.tolist()


def idle(rank):
    placement = place_experts(4)
    layer = build("base", 4, placement)
    layer.idle = rank == 0
    values = pass_batch(layer, rank, SIZES[2][rank])
    return values, {name: parameter.grad.tolist() for name, parameter in layer.experts.named_parameters()}


def test_a_process_without_a_batch_serves_the_others_and_adds_nothing(several):
    values, served = several[2, "idle"][0]
    assert not any(torch.tensor(value).any() for value in values)
    alone = build("base", 4)
    pass_batch(alone, 1, SIZES[2][1])
    for name, parameter in alone.experts.named_parameters():
        torch.testing.assert_close(torch.tensor(served[name]), parameter.grad[:2] / 2, rtol=1e-5, atol=1e-6)
