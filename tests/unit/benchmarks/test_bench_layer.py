"""The layer benchmark: its checks see what is wrong, its bound and memory are what they say."""

import pytest
import torch

NAME = "ours, BASE gate"


@pytest.fixture
def sizes():
    import layer_systems

    torch.manual_seed(1)
    return layer_systems.Sizes(64, 8, 16)


def test_systems_do_the_same_work_with_all_gradients(sizes):
    import layer_costs
    import layer_systems

    inputs = sizes.inputs(2)
    systems = layer_systems.own_systems(4, sizes, inputs)
    for system in systems.values():
        system.prepare()
        system.step()
        assert torch.equal(system.input_TH.detach(), inputs[0])
        assert system.input_TH.grad.abs().sum() > 0
        assert all(parameter.grad is not None for parameter in system.module.parameters())
        system.prepare()
        assert system.input_TH.grad is None
        assert torch.equal(system.input_TH.detach(), inputs[1])
        assert all(parameter.grad is None for parameter in system.module.parameters())
    for name in (layer_systems.DENSE, *layer_systems.BOUNDS):
        assert layer_costs.matmul_work(systems[name]) == 12 * sizes.tokens * sizes.hidden * sizes.inner


@pytest.fixture
def _no_process_group():
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("_no_process_group")
def test_peers_count_by_the_experts_of_a_token(sizes):
    import layer_systems

    systems = layer_systems.peer_systems(4, sizes, sizes.inputs(1))
    assert systems["fairscale, top 2"].experts_per_token == 2
    for system in systems.values():
        system.prepare()
        system.step()
        assert system.input_TH.grad.abs().sum() > 0


@pytest.mark.parametrize("gate", [NAME, "ours, task gate", "ours, skewed task gate"])
def test_checks_pass_what_is_right(sizes, gate):
    import layer_checks
    import layer_systems

    layer_checks.check_small(gate, 4, sizes)
    layer_checks.check_in_place(layer_systems.own_systems(4, sizes, sizes.inputs(1))[gate])


def test_checks_see_wrong_outputs_and_gradients(sizes, monkeypatch):
    import layer_checks
    import layer_systems

    system = layer_systems.own_systems(4, sizes, sizes.inputs(1))[NAME]
    right = system.call
    system.call = lambda x_TH: 1.01 * right(x_TH)
    with pytest.raises(AssertionError):
        layer_checks.check_in_place(system)
    layer = layer_systems.our_layer(NAME, 4, sizes)
    layer.register_forward_pre_hook(lambda layer, args: (args[0].detach(), *args[1:]))  # the gate's gradient is lost
    monkeypatch.setattr(layer_checks, "our_layer", lambda *args: layer)
    with pytest.raises(AssertionError):
        layer_checks.check_small(NAME, 4, sizes)


@pytest.mark.parametrize("bound", [0, 1])
def test_the_bound_is_what_it_says(sizes, bound):
    import layer_checks
    import layer_systems

    system = layer_systems.own_systems(4, sizes, sizes.inputs(1))[layer_systems.BOUNDS[bound]]
    layer_checks.check_bound(system, 4)
    right = system.module.forward
    system.module.forward = lambda x_TH: right(x_TH.flip(0))
    with pytest.raises(AssertionError):
        layer_checks.check_bound(system, 4)


def test_the_peak_leaves_kept_gradients_out():
    from layer_costs import peak

    # 1: freed early; 2: another's, then a gradient's; 3: held to the end
    changes = [(1, 100), (2, 30), (1, -100), (3, 50), (2, -30), (2, 1000), (9, -7)]
    assert peak(changes, kept=set()) == 1050
    assert peak(changes, kept={2}) == 130
    assert peak([*changes, (2, -1000)], kept={2}) == 1050


def test_memory_is_that_of_the_values_in_between(sizes):
    import layer_costs
    import layer_systems

    systems = layer_systems.own_systems(4, sizes, sizes.inputs(1))
    inner, outer = (4 * sizes.tokens * size for size in (sizes.inner, sizes.hidden))
    found = layer_costs.peak_memory(systems[layer_systems.BOUNDS[0]])
    # At least the activations and one gradient of their size; weights (32 kB with their gradients) do not count.
    assert 2 * inner + outer <= found <= 3 * inner + 3 * outer
