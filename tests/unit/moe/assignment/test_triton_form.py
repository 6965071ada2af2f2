"""The assignment by Triton's kernels, interpreted on a CPU, against the optimum and the form in torch.

Triton comes with torch's builds for CUDA; elsewhere `pip install triton` lets all of these run.
"""

from importlib.util import find_spec

import pytest
import torch

from fairseq_mtmoe.moe import priced_assignment
from fairseq_mtmoe.moe.assignment import triton_form
from fairseq_mtmoe.moe.assignment.torch_form import torch_assignment
from fairseq_mtmoe.moe.assignment.triton_form import kernels_are_right, triton_assignment
from tests.unit.moe.assignment import made_scores as made

interpreted = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


@pytest.fixture
def large_tiles(monkeypatch):
    """One program does it all, because the interpreter takes its time for each."""
    monkeypatch.setattr(triton_form, "TILE", 1024)
    monkeypatch.setattr(triton_form, "CHUNK", 1024)


@interpreted
@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("kind", made.KINDS)
@pytest.mark.parametrize(("tokens", "experts"), [(1024, 8), (1003, 20)])
def test_shares_gap_and_prices_are_those_of_the_reference(kind, tokens, experts):
    scores = made.make(kind, tokens, experts)
    found, right = triton_assignment(scores), priced_assignment(scores)
    made.assert_fair(found.expert_T, tokens, experts)
    if kind is not made.tied:
        assert made.gap(scores, found.expert_T, made.total(scores, right.expert_T)) <= made.FAST_GAP
    spread = made.spread_of(scores)
    assert found.price_N.dtype == torch.float32 and abs(found.price_N.mean().item()) <= 1e-5 * (spread + 1)
    assert (found.price_N - right.price_N).abs().max() <= 0.03 * spread + 1e-6
    assert (found.price_N - torch_assignment(scores).price_N).abs().max() <= 1e-3 * spread + 1e-6


@interpreted
@pytest.mark.parametrize(("start", "padded"), [(None, True), ("own", False), ("near", True), ("odd", False)])
def test_several_programs_do_what_the_form_in_torch_does(start, padded):
    """With tiles of 64 tokens, from these scores' own prices, ones near them, and such as are no prices."""
    scores = made.make(made.clustered, 200, 5)
    prices = torch_assignment(scores).price_N
    prices = {
        None: None,
        "own": prices,
        "near": prices + 0.1 * torch.linspace(-1, 1, 5) * prices.std(),
        "odd": torch.tensor([torch.nan, torch.inf, 0, 0, 0]),
    }[start]
    padding = torch.arange(200) % 5 == 0 if padded else None
    found, right = triton_assignment(scores, padding, prices), torch_assignment(scores, padding, prices)
    assert torch.equal(found.expert_T, right.expert_T)
    torch.testing.assert_close(found.price_N, right.price_N, rtol=1e-4, atol=1e-5)
    again = triton_assignment(scores, padding, prices)
    assert torch.equal(found.expert_T, again.expert_T) and torch.equal(found.price_N, again.price_N)


@interpreted
@pytest.mark.usefixtures("large_tiles")
def test_all_padding_gets_nobody_and_one_token_an_expert():
    scores = made.make(made.random_scores, 50, 4)
    assert (triton_assignment(scores, torch.ones(50, dtype=torch.bool)).expert_T == 4).all()
    made.assert_fair(triton_assignment(scores[:1, :2]).expert_T, 1, 2)


@pytest.fixture
def trial():
    """The trial of this process, forgotten before and after."""
    kernels_are_right.cache_clear()
    yield lambda: kernels_are_right(torch.device("cpu"))
    kernels_are_right.cache_clear()


@pytest.mark.parametrize("wrong", [None, 0.1, "fails"])
def test_kernels_that_fail_their_trial_are_not_used(trial, wrong, monkeypatch):
    def kernels_of(*arguments):
        assert wrong != "fails"
        assignment = torch_assignment(*arguments)
        return assignment._replace(price_N=assignment.price_N + (wrong or 0))

    monkeypatch.setattr(triton_form, "triton_assignment", kernels_of)
    assert trial() == (wrong is None)
