"""The fused Adam against fairseq's: the same updates, the same state, and runs that change between the two."""

import copy

import pytest
import torch
from fairseq.optim import build_optimizer
from fairseq.optim.adafactor import Adafactor
from fairseq.optim.adam import Adam, FairseqAdam, FairseqAdamConfig
from fairseq.optim.nag import NAG
from omegaconf import OmegaConf
from torch import nn

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.optim import fused_adam as module
from fairseq_mtmoe.optim.fused_adam import FairseqFusedAdam, FusedAdam
from fairseq_mtmoe.optim.state import check_when_loading

SETTINGS = dict(lr=0.01, betas=(0.9, 0.98), eps=1e-3, weight_decay=0.1)
SHAPES = [(3, 4), (5,), (), (2, 3, 4)]


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]


def give_gradients(values, update, without=()):
    generator = torch.Generator().manual_seed(update)
    for index, value in enumerate(values):
        gradient = torch.randn(value.shape, generator=generator).to(value.dtype)
        value.grad = None if index in without else gradient


def assert_same_state(ours, theirs):
    ours, theirs = ours.state_dict(), theirs.state_dict()
    assert ours["param_groups"] == theirs["param_groups"]
    assert ours["state"].keys() == theirs["state"].keys()
    for index, entry in theirs["state"].items():
        assert ours["state"][index].keys() == entry.keys()
        assert ours["state"][index]["step"] == entry["step"] and isinstance(ours["state"][index]["step"], int)
        for moment in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(ours["state"][index][moment], entry[moment])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_updates_and_state_are_fairseqs(dtype):
    """The second parameter starts three updates late, so that updates of different numbers meet in one step."""
    values = {kind: parameters(dtype) for kind in (FusedAdam, Adam)}
    optimizers = {kind: kind(own, **SETTINGS) for kind, own in values.items()}
    for update in range(6):
        for kind, optimizer in optimizers.items():
            give_gradients(values[kind], update, without=(1,) if update < 3 else ())
            optimizer.step()
        for ours, theirs in zip(*values.values(), strict=True):
            torch.testing.assert_close(ours, theirs)
    assert_same_state(optimizers[FusedAdam], optimizers[Adam])


def test_half_precision_is_updated_in_portions_of_bounded_size_bit_for_bit(monkeypatch):
    """As fairseq's memory-efficient types have it; pieces of parameters, and several small ones together."""
    sizes = []
    real = module._update
    monkeypatch.setattr(
        module, "_update", lambda *args: sizes.append(sum(p[0].numel() for p in args[3])) or real(*args)
    )

    def updated(portion):
        monkeypatch.setattr(module, "PORTION", portion)
        sizes.clear()
        generator = torch.Generator().manual_seed(1)
        values = [torch.randn(size, generator=generator) for size in (100, 7, 300, 0, 64)]
        values = [nn.Parameter(value.bfloat16()) for value in [*values, torch.randn(5, 3, generator=generator).t()]]
        optimizer = FusedAdam(values, **SETTINGS)
        for update in range(3):
            give_gradients(values, update)
            optimizer.step()
        return values + [
            moment for state in optimizer.state.values() for moment in (state["exp_avg"], state["exp_avg_sq"])
        ]

    at_once = updated(1000)
    assert sizes == [486] * 3
    assert all(map(torch.equal, at_once, updated(64)))
    assert max(sizes) == 64 and sum(sizes) == 3 * 486 and len(sizes) < 3 * 12


def test_gradients_of_another_layout_are_read_by_their_values():
    ours, theirs = nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(3, 4))
    spread = nn.Parameter(torch.ones(4, 3).t())
    gradient = torch.arange(12.0).view(3, 4)
    ours.grad, theirs.grad, spread.grad = gradient.t().contiguous().t(), gradient.clone(), gradient.clone()
    for kind, parameter in ((FusedAdam, ours), (Adam, theirs), (FusedAdam, spread)):
        optimizer = kind([parameter], **SETTINGS)
        for _ in range(2):
            optimizer.step()
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(spread, theirs)


@pytest.mark.parametrize(("first", "then"), [(Adam, FusedAdam), (FusedAdam, Adam)])
def test_runs_change_between_the_two_when_they_resume(first, then):
    straight, changing = parameters(), parameters()
    optimizer = Adam(straight, **SETTINGS)
    for update in range(6):
        give_gradients(straight, update)
        optimizer.step()
    optimizer = first(changing, **SETTINGS)
    for update in range(6):
        if update == 3:
            state = optimizer.state_dict()
            optimizer = then(changing, **SETTINGS)
            optimizer.load_state_dict(state)
        give_gradients(changing, update)
        optimizer.step()
    for one, other in zip(straight, changing, strict=True):
        torch.testing.assert_close(one, other)


def test_the_kernel_is_not_given_a_smaller_moment():
    """It would write 64 numbers into a moment of 3."""
    value, memory = nn.Parameter(torch.ones(64)), torch.zeros(64)
    optimizer = FusedAdam([value], **SETTINGS)
    optimizer.state[value] = {"step": 1, "exp_avg": memory[:3], "exp_avg_sq": torch.zeros(64)}  # by hand
    value.grad = torch.ones(64)
    with pytest.raises(ValueError):
        optimizer.step()
    assert not memory.any() and torch.equal(value, torch.ones(64))


WRONG_STATES = [
    ({"exp_avg_sq": torch.zeros(12)}, r"of the shape \(3, 4\), but is \(12,\)"),
    ({"exp_avg": torch.tensor(0.0)}, r"of the shape \(3, 4\), but is \(\)"),
    ({"step": "7"}, "a tensor or a number, but is str"),
    ({"exp_avg_sq": None}, "there, but is missing"),
    ({"exp_avg": torch.zeros(3, 4, dtype=torch.int64)}, "floating-point numbers, but is int64"),
    ({"exp_avg": torch.full((3, 4), float("nan"))}, "finite, but is not finite"),
    ({"exp_avg_sq": torch.full((3, 4), -1.0)}, "nowhere below 0, but is -1 somewhere"),
]


@pytest.mark.parametrize("kind", [Adam, FusedAdam])
def test_a_state_that_does_not_fit_is_not_loaded(kind):
    values = parameters()
    optimizer = kind(values, **SETTINGS)
    check_when_loading(optimizer, lambda: ["first", *"bcd"])  # as the trainer does for every optimizer
    give_gradients(values, 0)
    optimizer.step()
    saved = optimizer.state_dict()
    for change, words in WRONG_STATES:
        wrong = copy.deepcopy(saved)
        wrong["state"][0].update(change)
        with pytest.raises(UserError, match=f"of `first` in the optimizer's state must be .*{words}"):
            optimizer.load_state_dict(wrong)
    del wrong["state"][0]["exp_avg"]
    with pytest.raises(UserError, match="`exp_avg` of `first` in the optimizer's state must be there"):
        optimizer.load_state_dict(wrong)


OTHERS = {
    "adafactor": lambda values: Adafactor(values, beta1=0.9),
    "nag": lambda values: NAG(values, lr=0.1, momentum=0.9),
    "adagrad": torch.optim.Adagrad,
    "sgd": torch.optim.SGD,
}


@pytest.mark.parametrize("kind", OTHERS.values(), ids=OTHERS)
def test_every_optimizer_loads_what_it_saves(kind):
    values = parameters()
    optimizer = kind(values)
    check_when_loading(optimizer)
    give_gradients(values, 0)
    optimizer.step()
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def test_a_closure_is_called_with_gradients_and_its_loss_returned():
    (value, *_) = parameters()
    optimizer = FusedAdam([value], **SETTINGS)

    def closure():
        loss = value.square().sum()
        loss.backward()
        return loss

    before = value.detach().clone()
    assert optimizer.step(closure) == before.square().sum()
    assert not torch.equal(value, before)


@pytest.mark.parametrize("betas", ["(0.8, 0.9)", [0.8, 0.9]])
def test_its_options_are_fairseqs(betas):
    options = dict(adam_betas=betas, adam_eps=1e-6, weight_decay=0.2, lr=[0.3])
    ours = build_optimizer(OmegaConf.create({"_name": "fused_adam", **options}), parameters())
    assert isinstance(ours, FairseqFusedAdam) and isinstance(ours.optimizer, FusedAdam)
    theirs = FairseqAdam(OmegaConf.structured(FairseqAdamConfig(**options, tpu=False)), parameters())
    theirs = {**theirs.optimizer_config, "betas": tuple(theirs.optimizer_config["betas"])}
    assert ours.optimizer_config == theirs and ours.get_lr() == 0.3
    assert type(ours).__name__ == FairseqAdam.__name__  # what fairseq's trainer compares when it resumes
    assert ours.supports_flat_params and ours.supports_memory_efficient_fp16
