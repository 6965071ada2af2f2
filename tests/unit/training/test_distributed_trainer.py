"""The trainer's optimizer: what stays on the CPU where there is a GPU, which is pretended; what cannot be spread."""

from types import SimpleNamespace

import pytest
import torch
from fairseq import utils
from torch import nn

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.training.steps import clip_on_cpu, unwrapped_optimizer
from tests.helpers.digits import make_digit_corpus
from tests.helpers.trainers import trainer_here

SMALL = ("--max-tokens", 120, "--num-experts", 2)
HALF = dict(common__fp16=True, common__fp16_init_scale=4)
OPTIMIZERS = {
    "float32": {},
    "half precision": HALF | dict(common__fp16_no_flatten_grads=True),
    "memory-efficient half precision": HALF | dict(common__memory_efficient_fp16=True),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_digit_corpus(tmp_path_factory.mktemp("digits"), train=60, valid=4, test=4)


def parameters():
    """Three of them with gradients, the last one an expert's, and one without."""
    generator = torch.Generator().manual_seed(1)
    made = [nn.Parameter(torch.zeros(2, 3)) for _ in range(4)]
    for parameter in made[:3]:
        parameter.grad = torch.randn(2, 3, generator=generator)
    made[2].expert = True
    return made


@pytest.mark.parametrize(
    ("count", "max_norm", "aggregate"),
    [(4, 0.0, None), (4, 0.1, lambda norm: 3 * norm), (1, 0.1, None), (4, 9.0, None)],
)
def test_norms_stay_with_their_gradients(count, max_norm, aggregate):
    right, found = parameters()[:count], parameters()[:count]
    norm = utils.clip_grad_norm_(right, max_norm, aggregate)
    assert torch.equal(clip_on_cpu(SimpleNamespace(params=iter(found)), max_norm, aggregate), norm)
    for one, other in zip(found, right, strict=True):
        assert one.grad is other.grad is None or torch.equal(one.grad, other.grad)


def test_without_gradients_the_norm_is_zero():
    assert clip_on_cpu(SimpleNamespace(params=[nn.Parameter(torch.zeros(2))]), 1.0) == 0


@pytest.mark.parametrize("changes", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_the_norm_of_a_run_on_the_cpu_asks_nothing_of_a_gpu_beside_it(changes, corpus, tmp_path, monkeypatch):
    """fairseq's norm fails here: no GPU is behind what torch says of one."""
    trainer = trainer_here(corpus, tmp_path, *SMALL, **changes)
    found = []
    for has_cuda in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda answer=has_cuda: answer)
        trainer._build_optimizer()
        trainer.optimizer._needs_sync = True  # as after a backward pass
        for parameter in trainer.get_model().parameters():
            parameter.grad = torch.full_like(parameter, 0.5)
        norm = trainer.optimizer.clip_grad_norm(0.01)
        found.append((norm, [parameter.grad for parameter in unwrapped_optimizer(trainer.optimizer).params]))
    (norm, gradients), (norm_beside, gradients_beside) = found
    assert norm > 1 and torch.equal(norm, norm_beside)
    assert all(map(torch.equal, gradients, gradients_beside))


def test_flat_gradients_cannot_be_spread(corpus, tmp_path):
    spread = dict(distributed_training__zero_sharding="os")
    trainer = trainer_here(corpus, tmp_path, *SMALL, **HALF, **spread)
    with pytest.raises(UserError, match="`--fp16-no-flatten-grads` must be on with `--fp16` and `--zero-sharding os`"):
        assert trainer.optimizer
