"""The running mean of prices: what moves it, what it is worth, and that it travels with a model's state."""

import copy

import pytest
import torch

from fairseq_mtmoe.moe import BaseGate, BaseRouting, RunningPrices, forget_prices, remember_prices, running_prices
from fairseq_mtmoe.moe.assignment import priced_assignment
from fairseq_mtmoe.moe.gates import assigned
from tests.helpers.refused import refused

N, H = 8, 16


def updated(prices, *batches):
    """One update of these batches, pairs of prices and numbers of tokens."""
    for price, count in batches:
        prices.record(torch.tensor(price), torch.tensor(float(count)))
    remember_prices([prices])
    return prices.mean


@pytest.mark.parametrize("memory", [0.75, 0])
def test_the_mean_is_unbiased_from_the_first_update_on(memory):
    prices = RunningPrices(2, memory)
    assert torch.equal(prices.mean, torch.zeros(2)) and not prices.known
    assert updated(prices, ([1.0, -1.0], 5)).tolist() == [1, -1] and prices.known
    expected = (3 + memory * 1) / (1 + memory)
    assert updated(prices, ([3.0, -3.0], 5)).tolist() == pytest.approx([expected, -expected])


def test_settings_that_are_none_are_refused():
    for memory in (-0.1, 1):
        with refused("memory"):
            RunningPrices(2, memory)
    for name in ("training", "evaluation"):
        with refused(name):
            BaseRouting(**{name: "even"})


def test_the_batches_of_an_update_count_by_their_tokens():
    assert updated(RunningPrices(2), ([1.0, -1.0], 30), ([5.0, -5.0], 10)).tolist() == pytest.approx([2, -2])


@pytest.mark.parametrize("batches", [[], [([9.0, -9.0], 0)]])
def test_batches_without_tokens_move_nothing(batches):
    prices = RunningPrices(2)
    updated(prices, ([1.0, -1.0], 5))
    before = copy.deepcopy(prices.state_dict())
    updated(prices, *batches)
    assert all(torch.equal(before[name], value) for name, value in prices.state_dict().items())


@pytest.mark.parametrize("odd", [[3e38, -3e38], [float("nan"), 0.0], [float("inf"), 0.0]])
def test_prices_that_are_not_finite_do_not_stay(odd):
    prices = RunningPrices(2)
    updated(prices, ([1.0, -1.0], 5))
    assert updated(prices, (odd, 100)).tolist() == [1, -1]


def test_an_update_that_was_left_out_moves_nothing():
    gate = BaseGate(N, H)
    gate(torch.randn(16, H))
    forget_prices(running_prices(gate))
    remember_prices(running_prices(gate))
    assert not gate.prices.known and gate.prices.weight == 0


def test_it_is_float32_in_every_model():
    gate = BaseGate(N, H)
    updated(gate.prices, (torch.linspace(-1 / 3, 1 / 3, N).tolist(), 1))
    before = copy.deepcopy(gate.prices.state_dict())
    gate.prices.record(torch.zeros(N), torch.tensor(1.0))
    gate.to(torch.float16)
    assert gate.weight.dtype == torch.float16 and gate.prices.take() is None
    assert all(torch.equal(before[name], value) for name, value in gate.prices.state_dict().items())
    prices = gate.prices  # whose buffers a wrapper makes half behind its back
    prices.total, prices.weight = prices.total.half(), prices.weight.half()
    assert prices.mean.dtype == torch.float32
    updated(prices, ([0.0] * N, 1))
    assert prices.total.dtype == prices.weight.dtype == torch.float32


def test_it_travels_with_the_state():
    gate, other = BaseGate(N, H), BaseGate(N, H)
    updated(gate.prices, (torch.randn(N).tolist(), 1))
    other.load_state_dict(gate.state_dict())
    assert other.prices.known and torch.equal(other.prices.mean, gate.prices.mean)
    assert copy.deepcopy(gate).prices.known


def test_a_state_without_prices_has_none_of_before_and_one_with_half_of_them_is_refused():
    gate = BaseGate(N, H)
    state = {key: value for key, value in gate.state_dict().items() if "prices" not in key}
    updated(gate.prices, (torch.randn(N).tolist(), 1))
    gate.load_state_dict(dict(state))
    assert not gate.prices.known and not gate.prices.mean.any()
    for name in ("total", "weight"):
        with pytest.raises(RuntimeError, match="Missing key"):
            gate.load_state_dict({**state, f"prices.{name}": gate.state_dict()[f"prices.{name}"]})


@pytest.mark.parametrize("odd", [dict(total=float("nan")), dict(total=float("inf")), dict(weight=0), dict(weight=-1.0)])
def test_damaged_prices_count_as_none(odd):
    gate = BaseGate(N, H)
    updated(gate.prices, (torch.randn(N).tolist(), 1))
    state = {key: value.cpu() for key, value in gate.state_dict().items()}  # as a file's
    for name, value in odd.items():
        state[f"prices.{name}"] = torch.full_like(state[f"prices.{name}"], value)
    gate.load_state_dict(state)
    assert not gate.prices.known and not gate.prices.mean.any()


def test_the_mean_of_several_states_is_that_of_those_with_prices():
    one, other, new = RunningPrices(2), RunningPrices(2), RunningPrices(2)
    updated(one, ([1.0, -1.0], 1))
    updated(other, ([3.0, -3.0], 1))
    states = [one.state_dict(), other.state_dict(), new.state_dict()]
    mean = RunningPrices(2)
    mean.load_state_dict({name: sum(state[name] for state in states) / 3 for name in states[0]})
    assert mean.mean.tolist() == pytest.approx([2, -2])


# ---- the gate ----


def trained_gate(routing=None, updates=20, seed=0):
    """A gate that was trained on tokens which mostly prefer the same few experts; and a batch of such tokens."""
    torch.manual_seed(seed)
    gate = BaseGate(N, H, routing=routing)
    common = 2 * torch.randn(H)
    for _ in range(updates):
        gate(torch.randn(512, H) + common)
        remember_prices(running_prices(gate))
    return gate, torch.randn(2048, H) + common


def scores_of(gate, hidden):
    return (hidden @ gate.weight.t()).detach()


@pytest.mark.usefixtures("every_device_kind")
def test_evaluation_takes_the_highest_score_less_its_price():
    gate, hidden = trained_gate()
    gate.eval()
    assert torch.equal(gate(hidden).expert_T, (scores_of(gate, hidden) - gate.prices.mean).argmax(1))
    assert gate(hidden[:3]).expert_T.tolist() == gate(hidden).expert_T[:3].tolist()


def test_greedy_evaluation_is_one_option_away():
    gate, hidden = trained_gate(BaseRouting(evaluation="greedy"))
    assert gate.prices.known
    assert torch.equal(gate.eval()(hidden).expert_T, scores_of(gate, hidden).argmax(1))


@pytest.mark.usefixtures("every_device_kind")
@pytest.mark.parametrize("padded", [False, True])
def test_balanced_evaluation_assigns_as_training_does_and_changes_nothing(padded):
    gate, hidden = trained_gate(BaseRouting(evaluation="balanced"))
    padding = torch.arange(len(hidden)) % 3 == 0 if padded else None
    in_training = gate(hidden, None, padding)
    forget_prices([gate.prices])
    before, drawn = gate.prices.mean, torch.get_rng_state()
    gate.eval()
    gate.shuffle = None if padded else pytest.fail  # tokens stay in their process, and nothing is drawn
    evaluated = gate(hidden, None, padding)
    assert torch.equal(evaluated.expert_T, in_training.expert_T) and evaluated.max_rows == in_training.max_rows
    shares = torch.bincount(evaluated.expert_T, minlength=N)[:N]
    assert shares.max() - shares.min() <= 1
    assert gate.prices.take() is None and torch.equal(gate.prices.mean, before)
    assert torch.equal(torch.get_rng_state(), drawn)


def test_padding_and_idle_batches_do_not_count():
    gate, hidden = trained_gate(updates=0)
    padding = torch.arange(len(hidden)) % 3 == 0
    gate(hidden, None, padding)
    gate(hidden + 100, None, torch.ones(len(hidden), dtype=torch.bool))
    remember_prices([gate.prices])
    expected = priced_assignment(scores_of(gate, hidden)[~padding]).price_N
    torch.testing.assert_close(gate.prices.mean, expected)


def test_training_by_prices_begins_balanced_and_is_evaluation_by_prices():
    gate, hidden = trained_gate(BaseRouting(training="prices"), updates=0)
    assert torch.bincount(gate(hidden).expert_T, minlength=N).tolist() == [len(hidden) // N] * N
    remember_prices([gate.prices])
    torch.testing.assert_close(gate.prices.mean, assigned(scores_of(gate, hidden))[1])
    gate, hidden = trained_gate(BaseRouting(training="prices"))
    before = gate.prices.mean
    expert = gate(hidden).expert_T
    assert torch.equal(expert, (scores_of(gate, hidden) - before).argmax(1))
    assert torch.equal(expert, gate.eval()(hidden).expert_T)
    load = torch.bincount(expert, minlength=N)
    assert load.max() > load.min() and load.max() < 1.3 * len(hidden) / N and load.min() > 0.7 * len(hidden) / N


# ---- what it is worth ----


@pytest.mark.parametrize(("memory", "drift"), [(0.9, 0.001), (0.95, 0.0)])
def test_prices_route_nearly_all_tokens_as_exact_assignment_does(memory, drift):
    """Made scores whose best prices are known: normal ones, plus a popularity per expert that may drift."""
    generator = torch.Generator().manual_seed(1)
    popularity, slope = (torch.randn(N, generator=generator) for _ in range(2))
    prices, same = RunningPrices(N, memory), []
    for update in range(80):
        popularity = popularity + drift * slope
        scores = popularity + torch.randn(8192, N, generator=generator)
        expert, price = assigned(scores, None, prices.mean if prices.known else None)
        if update >= 60:
            same.append(((scores - prices.mean).argmax(1) == expert).float().mean().item())
        prices.record(price, torch.tensor(float(len(scores))))
        remember_prices([prices])
    assert min(same) >= 0.97
    torch.testing.assert_close(prices.mean, popularity - popularity.mean(), atol=0.03 + 20 * drift, rtol=0)
