"""Odd scores in every form of the assignment: infinite, not one finite or different, and of extreme size."""

import pytest
import torch

from fairseq_mtmoe.moe import priced_assignment
from fairseq_mtmoe.moe.assignment import kernels, triton_form
from fairseq_mtmoe.moe.assignment.torch_form import torch_assignment
from fairseq_mtmoe.moe.assignment.triton_form import triton_assignment
from tests.unit.moe.assignment import made_scores as made


@pytest.fixture(params=[*kernels.BUILDS, "no build", "in torch", "in Triton"])
def form(request, monkeypatch):
    if request.param == "in torch":
        return torch_assignment
    if request.param == "in Triton":
        pytest.importorskip("triton")
        for name in ("TILE", "CHUNK"):  # one program does it all, because the interpreter takes its time for each
            monkeypatch.setattr(triton_form, name, 1024)
        return triton_assignment
    if request.config.getoption("--device") != "cpu":
        pytest.skip("it is a form for CPUs alone")
    builds = {name: build for name, build in kernels.BUILDS.items() if name == request.param}
    monkeypatch.setattr(kernels, "BUILDS", builds)
    return priced_assignment


def test_infinite_scores_count_as_the_highest_and_lowest_finite_one(form):
    finite = made.make(made.random_scores, 400, 4)
    odd = finite.clone()
    odd[3, 2], odd[5, 1], odd[6, 0] = torch.inf, -torch.inf, torch.nan
    finite[3, 2], finite[5, 1], finite[6, 0] = finite.max(), finite.min(), finite.min()
    expert_T = form(odd).expert_T
    made.assert_fair(expert_T, 400, 4)
    assert made.gap(finite, expert_T) <= made.FAST_GAP
    assert expert_T[3] == 2


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 0.0, 7.0])
def test_equal_scores_have_no_prices(form, value):
    assignment = form(torch.full((11, 4), value))
    made.assert_fair(assignment.expert_T, 11, 4)
    assert assignment.price_N.abs().max() <= 1e-6


@pytest.mark.parametrize("scale", [1e-38, 3e37])
def test_scores_of_extreme_size(form, scale):
    scores = made.make(made.random_scores, 640, 4).clamp(-3, 3)
    assignment = form((scores.double() * scale).float())
    made.assert_fair(assignment.expert_T, 640, 4)
    assert assignment.price_N.isfinite().all()
    assert made.gap(scores, assignment.expert_T) <= made.FAST_GAP
