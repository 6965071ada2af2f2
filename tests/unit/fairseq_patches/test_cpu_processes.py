"""What stays on the CPU where there is a GPU, which is pretended: asking it for anything fails."""

import pytest
import torch
from fairseq import utils
from torch import nn

from fairseq_mtmoe import register

register()


def parameters():
    """Three of them with gradients, the last one an expert's, and one without."""
    generator = torch.Generator().manual_seed(1)
    made = [nn.Parameter(torch.zeros(2, 3)) for _ in range(4)]
    for parameter in made[:3]:
        parameter.grad = torch.randn(2, 3, generator=generator)
    made[2].expert = True
    return made


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("max_norm", [0.0, 0.1, 100.0])
@pytest.mark.parametrize("aggregate", [None, lambda norm: 3 * norm])
def test_norms_stay_with_their_gradients(count, max_norm, aggregate, monkeypatch):
    right, found = parameters()[:count], parameters()[:count]
    norm = utils.clip_grad_norm_(right, max_norm, aggregate)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert torch.equal(utils.clip_grad_norm_(iter(found), max_norm, aggregate), norm)
    for one, other in zip(found, right, strict=True):
        assert one.grad is other.grad is None or torch.equal(one.grad, other.grad)


def test_a_vector_and_nothing_are_fairseqs_business(monkeypatch):
    (vector, *_), bare = parameters(), nn.Parameter(torch.zeros(2))
    norm = vector.grad.norm()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert utils.clip_grad_norm_(vector, 0.0) == norm
    assert utils.clip_grad_norm_([bare], 1.0) == utils.clip_grad_norm_([], 1.0) == 0
