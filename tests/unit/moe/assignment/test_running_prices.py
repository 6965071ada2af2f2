"""The running mean of prices: what moves it, what it is worth, and that it travels with a model's state."""

import copy

import pytest
import torch

from fairseq_mtmoe.moe import BaseGate, RunningPrices, remember_prices, running_prices
from fairseq_mtmoe.moe.assignment import priced_assignment

N, H = 8, 16


def updated(prices, *batches):
    """One update of these batches, pairs of prices and numbers of tokens."""
    for price, count in batches:
        prices.record(torch.tensor(price), torch.tensor(float(count)))
    remember_prices([prices])
    return prices.mean


ONE, THREE = ([1.0, -1.0], 5), ([3.0, -3.0], 5)


@pytest.mark.parametrize(
    ("memory", "updates", "mean"),
    [
        (0.75, [[ONE], [THREE]], 3.75 / 1.75), (0, [[ONE], [THREE]], 3),  # never biased
        (0.9, [[([1.0, -1.0], 30), ([5.0, -5.0], 10)]], 2),  # batches count by their tokens
        (0.75, [[ONE], [], [([9.0, -9.0], 0)], [THREE]], 3.75 / 1.75),  # without tokens they move nothing
        *((0.9, [[ONE], [(odd, 100)]], 1) for odd in ([3e38, -3e38], [float("nan"), 0.0])),
    ],
)  # fmt: skip
def test_the_mean_of_updates(memory, updates, mean):
    prices = RunningPrices(2, memory)
    assert torch.equal(prices.mean, torch.zeros(2)) and not prices.known
    for batches in updates:
        found = updated(prices, *batches)
    assert found.tolist() == pytest.approx([mean, -mean]) and prices.known


def test_it_is_float32_in_every_model():
    gate = BaseGate(N, H)
    updated(gate.prices, (torch.linspace(-1 / 3, 1 / 3, N).tolist(), 1))
    before = copy.deepcopy(gate.prices.state_dict())
    gate.prices.record(torch.zeros(N), torch.tensor(1.0))
    gate.to(torch.float16)
    assert gate.weight.dtype == torch.float16 and not gate.prices.recorded.any()
    assert all(torch.equal(before[name], value) for name, value in gate.prices.state_dict().items())
    prices = gate.prices  # whose buffers a wrapper makes half behind its back
    prices.total, prices.weight = prices.total.half(), prices.weight.half()
    assert prices.mean.dtype == torch.float32
    updated(prices, ([0.0] * N, 1))
    assert prices.total.dtype == prices.weight.dtype == torch.float32


@pytest.mark.parametrize("odd", [dict(total=float("nan")), dict(total=float("inf")), dict(weight=0)])
def test_it_travels_with_the_state_and_damaged_prices_count_as_none(odd):
    gate, other = BaseGate(N, H), BaseGate(N, H)
    updated(gate.prices, (torch.randn(N).tolist(), 1))
    state = {key: value.cpu() for key, value in gate.state_dict().items()}  # as a file's
    other.load_state_dict(state)
    assert other.prices.known and torch.equal(other.prices.mean, gate.prices.mean)
    assert copy.deepcopy(gate).prices.known
    for name, value in odd.items():
        state[f"prices.{name}"] = torch.full_like(state[f"prices.{name}"], value)
    other.load_state_dict(state)
    assert not other.prices.known and not other.prices.mean.any()


def test_the_mean_of_several_states_is_that_of_those_with_prices():
    one, other, new, mean = (RunningPrices(2) for _ in range(4))
    updated(one, ONE)
    updated(other, THREE)
    states = [one.state_dict(), other.state_dict(), new.state_dict()]
    mean.load_state_dict({name: sum(state[name] for state in states) / 3 for name in states[0]})
    assert mean.mean.tolist() == pytest.approx([2, -2])


@torch.no_grad()  # training is told by the gate's mode alone
def trained_gate(evaluation="prices", updates=20):
    """A gate that was trained on tokens which mostly prefer the same few experts; and a batch of such tokens."""
    torch.manual_seed(0)
    gate = BaseGate(N, H, evaluation=evaluation)
    common = 2 * torch.randn(H)
    for _ in range(updates):
        gate(torch.randn(512, H) + common)
        remember_prices(running_prices(gate))
    return gate, torch.randn(2048, H) + common


@pytest.mark.usefixtures("every_device_kind")
@pytest.mark.parametrize("padded", [False, True])
def test_balanced_evaluation_assigns_as_training_does_and_changes_nothing(padded):
    gate, hidden = trained_gate("balanced")
    padding = torch.arange(len(hidden)) % 3 == 0 if padded else None
    in_training = gate(hidden, None, padding)
    gate.prices.forget()
    before, drawn = gate.prices.mean, torch.get_rng_state()
    gate.eval()
    gate.shuffle = None if padded else pytest.fail  # tokens stay in their process, and nothing is drawn
    evaluated = gate(hidden, None, padding)
    assert torch.equal(evaluated.expert_T, in_training.expert_T) and evaluated.max_rows == in_training.max_rows
    shares = torch.bincount(evaluated.expert_T, minlength=N)[:N]
    assert shares.max() - shares.min() <= 1
    assert not gate.prices.recorded.any() and torch.equal(gate.prices.mean, before)
    assert torch.equal(torch.get_rng_state(), drawn)


def test_padding_and_idle_batches_do_not_count():
    gate, hidden = trained_gate(updates=0)
    padding = torch.arange(len(hidden)) % 3 == 0
    gate(hidden, None, padding)
    gate(hidden + 100, None, torch.ones(len(hidden), dtype=torch.bool))
    remember_prices([gate.prices])
    expected = priced_assignment((hidden @ gate.weight.t()).detach()[~padding]).price_N
    torch.testing.assert_close(gate.prices.mean, expected)
