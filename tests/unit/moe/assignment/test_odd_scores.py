"""Odd scores in every form of the assignment: infinite, not one finite or different, and of extreme size."""

from functools import partial

import pytest
import torch

from fairseq_mtmoe.moe import priced_assignment
from fairseq_mtmoe.moe.assignment import kernels, triton_form
from fairseq_mtmoe.moe.assignment.gpu_form import gpu_assignment
from fairseq_mtmoe.moe.assignment.triton_form import triton_assignment
from tests.unit.moe.assignment import made_scores as made


@pytest.fixture(params=[*kernels.BUILDS, "stepwise", "in torch", "in Triton"])
def forms(request, monkeypatch):
    """A form for CPUs, fast and exact, or one for GPUs."""
    if request.param == "in torch":
        return [gpu_assignment]
    if request.param == "in Triton":
        pytest.importorskip("triton")
        for name in ("TILE", "CHUNK"):  # one program does it all, because the interpreter takes its time for each
            monkeypatch.setattr(triton_form, name, 1024)
        return [triton_assignment]
    if request.config.getoption("--device") != "cpu":
        pytest.skip("it is a form for CPUs alone")
    monkeypatch.setattr(kernels, "BUILDS", {k: v for k, v in kernels.BUILDS.items() if k == request.param})
    return [partial(priced_assignment, exact=exact) for exact in (False, True)]


def is_fast(form):
    return getattr(form, "keywords", {}).get("exact") is False


def test_infinite_scores_count_as_the_highest_and_lowest_finite_one(forms):
    for form in forms:
        for odd, finite in made.with_odd_ones(40), made.with_odd_ones(400):
            found, right = form(odd).expert_T, form(finite).expert_T
            if is_fast(form) and len(odd) == 400:  # its answers may differ, within the gap
                assert made.gap(finite, found) <= made.FAST_GAP
            else:
                assert torch.equal(found, right)
            assert found[3] == 2


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 0.0, 7.0])
def test_equal_scores_have_no_prices(forms, value):
    for form in forms:
        found = form(torch.full((11, 4), value))
        made.assert_fair(found.expert_T, 11, 4)
        is_exact = getattr(form, "keywords", {}).get("exact") is True
        assert found.price_N.abs().max() <= (0 if is_exact else 1e-6)


@pytest.mark.parametrize("scale", [1e-38, 3e37])
def test_scores_of_extreme_size(forms, scale):
    scores = made.make(made.random_scores, 640, 4).clamp(-3, 3)
    for form in forms:
        found = form((scores.double() * scale).float())
        made.assert_fair(found.expert_T, 640, 4)
        assert found.price_N.isfinite().all() and made.gap(scores, found.expert_T) <= made.FAST_GAP
