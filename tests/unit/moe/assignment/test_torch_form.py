"""The assignment for GPUs, on a CPU: fair shares, a small gap, and that it never waits for a value."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fairseq_mtmoe.moe import priced_assignment
from fairseq_mtmoe.moe.assignment import assigned
from fairseq_mtmoe.moe.assignment.torch_form import torch_assignment
from fairseq_mtmoe.moe.device_kind import DeviceKind, device_kind_everywhere
from tests.unit.moe.assignment import made_scores as made


@pytest.mark.parametrize(("kind", "tokens", "experts"), [*made.CASES, (made.random_scores, 1, 2)])
def test_shares_are_fair(kind, tokens, experts):
    made.assert_fair(torch_assignment(made.make(kind, tokens, experts)).expert_T, tokens, experts)


@pytest.mark.parametrize(
    ("kind", "tokens", "experts"), [*made.BATCHES, (made.clustered, 640, 8), (made.clustered, 8192, 128)]
)
def test_shares_gap_and_prices_at_the_size_of_a_batch(kind, tokens, experts):
    """Prices are in units of the scores, 0 on average, and as near the optimum's as the last temperature lets them."""
    scores = made.make(kind, tokens, experts).float()
    found, right = torch_assignment(scores), priced_assignment(scores)
    made.assert_fair(found.expert_T, tokens, experts)
    assert kind is made.tied or made.gap(scores, found.expert_T, made.total(scores, right.expert_T)) <= made.FAST_GAP
    assert found.price_N.dtype == torch.float32 and found.price_N.shape == (experts,)
    spread = made.spread_of(scores)
    assert abs(found.price_N.mean().item()) <= 1e-5 * (spread + 1)
    assert (found.price_N - right.price_N).abs().max() <= 0.02 * spread + 1e-6


@pytest.mark.parametrize("start", ["own", "far", "odd"])
@pytest.mark.parametrize("padded", [False, True])
def test_any_start_gives_fair_shares_and_finite_prices(start, padded):
    """From these scores' own prices, ones far away, and such as are no prices."""
    scores = made.make(made.clustered, 700, 16)
    own = torch_assignment(scores).price_N
    noise = torch.randn(len(own), generator=torch.Generator().manual_seed(7)) * own.std()
    odd = own.clone()
    odd[0], odd[1] = torch.nan, torch.inf
    prices = {"own": own, "far": 1e6 * noise, "odd": odd}[start]
    padding = torch.arange(700) % 5 == 0 if padded else None
    found = torch_assignment(scores, padding, prices)
    real = found.expert_T[~padding] if padded else found.expert_T
    made.assert_fair(real, len(real), 16)
    assert not padded or (found.expert_T[padding] == 16).all()
    assert found.price_N.isfinite().all()
    assert torch.equal(found.expert_T, torch_assignment(scores, padding, prices).expert_T)


@pytest.mark.parametrize(("shift", "tokens", "experts"), [(0.3, 4096, 16), (1.0, 1024, 8), (1.0, 4099, 64)])
def test_gap_from_prices_of_other_batches(shift, tokens, experts):
    """The mean of four other batches, where liking for experts is off by so many deviations of a token's scores."""
    generator = torch.Generator().manual_seed(3)
    popularity = torch.randn(experts, generator=generator)
    elsewhere = popularity + shift * torch.randn(experts, generator=generator)
    others = [elsewhere + torch.randn(tokens, experts, generator=generator) for _ in range(4)]
    start = torch.stack([priced_assignment(other).price_N for other in others]).mean(0)
    scores = popularity + torch.randn(tokens, experts, generator=generator)
    best = made.total(scores, priced_assignment(scores).expert_T)
    assert made.gap(scores, torch_assignment(scores, None, start).expert_T, best) <= made.FAST_GAP


def test_padding_takes_no_part():
    scores = made.make(made.random_scores, 700, 16)
    padding = torch.rand(700, generator=torch.Generator().manual_seed(3)) < 0.3
    scores[padding] = 100 * torch.randn(int(padding.sum()), 16, generator=torch.Generator().manual_seed(4))
    expert = torch_assignment(scores, padding).expert_T
    assert (expert[padding] == 16).all()
    real = scores[~padding]
    made.assert_fair(expert[~padding], len(real), 16)
    assert made.gap(real, expert[~padding]) <= made.FAST_GAP
    assert (torch_assignment(scores, torch.ones_like(padding)).expert_T == 16).all()


SCORES, PADDING = made.make(made.clustered, 2000, 8).float(), torch.arange(2000) % 7 == 0


@pytest.mark.parametrize("arguments", [(SCORES,), (SCORES, PADDING, torch.zeros(8))])
def test_no_value_is_waited_for(arguments):
    """Its operations can be found with tensors that have no values."""
    graph = make_fx(lambda *tensors: torch_assignment(*tensors).expert_T, tracing_mode="fake")(*arguments)
    assert torch.equal(graph(*arguments), torch_assignment(*arguments).expert_T)


@pytest.mark.parametrize("padding", [None, PADDING])
def test_gates_and_assignment_take_this_form_on_a_gpu(padding):
    with device_kind_everywhere(DeviceKind.GPU):
        expert_T, price_N = assigned(SCORES, padding)
    right = torch_assignment(SCORES, padding)
    assert torch.equal(expert_T, right.expert_T) and torch.equal(price_N, right.price_N)
    assert not torch.equal(price_N, assigned(SCORES, padding)[1])  # a CPU's are exact
