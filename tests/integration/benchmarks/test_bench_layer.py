"""The layer benchmark: its checks see what is wrong, its bound and memory are what they say."""

import layer_systems
import pytest
import torch

SIZES = layer_systems.Sizes(64, 8, 16)


@pytest.fixture
def inputs():
    torch.manual_seed(1)
    return SIZES.inputs(2)


@pytest.fixture
def systems(inputs):
    return layer_systems.own_systems(4, SIZES, inputs)


def test_systems_do_the_same_work_with_all_gradients(systems, inputs):
    for system in systems.values():
        for input_TH in inputs:
            system.prepare()
            leaves = [system.input_TH, *system.module.parameters()]
            assert torch.equal(system.input_TH, input_TH) and all(leaf.grad is None for leaf in leaves)
            system.step()
            assert all(leaf.grad is not None for leaf in leaves) and system.input_TH.grad.abs().sum() > 0


def test_peers_count_by_the_experts_of_a_token(inputs):
    try:
        systems = layer_systems.peer_systems(4, SIZES, inputs)
        assert systems["fairscale, top 2"].experts_per_token == 2
        for system in systems.values():
            system.prepare()
            system.step()
            assert system.input_TH.grad.abs().sum() > 0
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def test_checks_pass_what_is_right_and_see_wrong_outputs(systems):
    for gate in layer_systems.GATES:
        layer_systems.check_in_place(systems[gate])
        right = systems[gate].call
        systems[gate].call = lambda x_TH, right=right: 1.01 * right(x_TH)
        with pytest.raises(AssertionError):
            layer_systems.check_in_place(systems[gate])
    for bound in layer_systems.BOUNDS:
        layer_systems.check_bound(systems[bound], 4)
        right = systems[bound].module.forward
        systems[bound].module.forward = lambda x_TH, right=right: right(x_TH.flip(0))
        with pytest.raises(AssertionError):
            layer_systems.check_bound(systems[bound], 4)


def test_memory_is_that_of_the_values_in_between(systems):
    inner, outer = (4 * SIZES.tokens * size for size in (SIZES.inner, SIZES.hidden))
    found = layer_systems.peak_memory(systems[layer_systems.BOUNDS[0]])
    # At least the activations and one gradient of their size; weights (32 kB with their gradients) do not count.
    assert 2 * inner + outer <= found <= 3 * inner + 3 * outer
