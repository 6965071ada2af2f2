"""The shared battery: what every system must pass. A system joins by a module in `rows/`; nothing here knows one."""

import pytest
import torch

from tests.helpers.models import perturb
from tests.helpers.scheduled import rarely
from tests.systems.system import all_systems, train

BY_NAME = {system.name: (system,) for system in all_systems()}
VARIANTS = (  # of which unit tests have what differs
    "pemt_translation, without correlation", "pemt_translation, bottleneck",
    "pemt_bert, without correlation",
)  # fmt: skip
systems = pytest.mark.parametrize("system", rarely(BY_NAME, *VARIANTS, given=BY_NAME))


@systems
def test_it_learns(system):
    """One draw of three may be an unlucky one."""
    shares = []
    for seed in (1, 2, 3):
        model = system.build(seed)
        first = system.loss(model, system.batch()).item()
        train(model, system.loss, system.batch(), 60, enough=first / 4)
        shares.append(system.loss(model.eval(), system.batch()).item() / first)
        if sum(share < 1 / 3 for share in shares) == 2:
            return
    pytest.fail(f"the losses are still {shares} of what they were")


@systems
def test_saves_and_loads_equal(system, tmp_path):
    model = perturb(system.build(1))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other = system.build(2)
    other.load_state_dict(torch.load(tmp_path / "model.pt"))
    right = system.output(model, system.batch())
    assert torch.equal(system.output(other, system.batch()), right)
    assert not torch.equal(system.output(system.build(2), system.batch()), right)


@systems
@pytest.mark.parametrize("training", [True, False])
def test_with_nothing_added_it_equals_its_dense_twin(system, training):
    dense = system.dense_twin()
    model = system.of_dense(dense).train(training)
    right = system.output(dense.train(training), system.batch())
    torch.testing.assert_close(system.output(model, system.batch()), right, rtol=1e-5, atol=1e-5)


@systems
def test_what_is_frozen_stays_frozen_and_all_else_trains(system):
    model = system.build(1)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(system.trainable(name))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    train(model, system.loss, system.batch(), 3)
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed == {name for name in before if system.trainable(name)}


@systems
@pytest.mark.usefixtures("every_device_kind")
def test_every_parameter_gets_a_gradient(system):
    """None may be left out: data-parallel training waits for all of them."""
    model = system.build(1).train()
    model.zero_grad(set_to_none=True)
    system.loss(model, system.batch()).backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@systems
def test_the_same_seed_gives_the_same_run(system):
    def run():
        model = system.build(1)
        return train(model, system.loss, system.batch(), 5), model.state_dict()

    (first_loss, first), (second_loss, second) = run(), run()
    assert first_loss == second_loss and all(torch.equal(first[key], second[key]) for key in first)
