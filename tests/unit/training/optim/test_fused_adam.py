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

from fairseq_mtmoe.checkpoints.optimizer_state import check_when_loading
from fairseq_mtmoe.training import fused_adam as module
from fairseq_mtmoe.training.fused_adam import FairseqFusedAdam, FusedAdam
from tests.helpers.refused import refused

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kinds", [(FusedAdam, FusedAdam), (Adam, FusedAdam), (FusedAdam, Adam)])
def test_updates_and_state_are_fairseqs_also_where_a_run_changes_between_the_two(kinds, dtype):
    """The second parameter starts three updates late, so that updates of different numbers meet in one step."""
    found, states = (parameters(dtype), parameters(dtype)), []
    for values, (first, then) in zip(found, (kinds, (Adam, Adam)), strict=True):
        optimizer = first(values, **SETTINGS)
        for update in range(6):
            if update == 3:
                state = optimizer.state_dict()
                optimizer = then(values, **SETTINGS)
                optimizer.load_state_dict(state)
            give_gradients(values, update, without=(1,) if update < 3 else ())
            optimizer.step()
        states.append(optimizer.state_dict())
    torch.testing.assert_close(*found)
    ours, theirs = states
    assert ours["param_groups"] == theirs["param_groups"]
    torch.testing.assert_close(ours["state"], theirs["state"])
    assert all(isinstance(entry["step"], int) for entry in ours["state"].values())


def test_half_precision_is_updated_in_portions_of_bounded_size_bit_for_bit(monkeypatch):
    """As fairseq's memory-efficient types have it; pieces of parameters, and several small ones together."""
    sizes = []
    real = module._update
    watched = lambda *args: sizes.append(sum(part[0].numel() for part in args[3])) or real(*args)  # noqa: E731
    monkeypatch.setattr(module, "_update", watched)

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
        return values + [state[moment] for state in optimizer.state.values() for moment in ("exp_avg", "exp_avg_sq")]

    at_once = updated(1000)
    assert sizes == [486] * 3
    assert all(map(torch.equal, at_once, updated(64)))
    assert max(sizes) == 64 and sum(sizes) == 3 * 486 and len(sizes) < 3 * 12


def test_gradients_of_another_layout_are_read_by_their_values():
    found, gradient = [], torch.arange(12.0).view(3, 4)
    for kind, value, layout in (
        (Adam, torch.ones(3, 4), gradient),
        (FusedAdam, torch.ones(3, 4), gradient.t().contiguous().t()),
        (FusedAdam, torch.ones(4, 3).t(), gradient),
    ):
        found.append(nn.Parameter(value))
        found[-1].grad = layout.clone()
        optimizer = kind([found[-1]], **SETTINGS)
        for _ in range(2):
            optimizer.step()
    torch.testing.assert_close(found[1:], found[:1] * 2)


def stepped(kind, options):
    """An optimizer that was checked as the trainer does for every one, after an update, and its state."""
    values = parameters()
    optimizer = kind(values, **options)
    check_when_loading(optimizer, lambda: ["first", *"bcd"])
    give_gradients(values, 0)
    optimizer.step()
    return optimizer, copy.deepcopy(optimizer.state_dict())


@pytest.mark.parametrize("kind", [Adam, FusedAdam])
def test_a_state_that_does_not_fit_is_not_loaded(kind):
    optimizer, state = stepped(kind, SETTINGS)
    for name, value in (
        ("exp_avg_sq", torch.zeros(12)), ("exp_avg", torch.tensor(0.0)), ("step", "7"), ("exp_avg_sq", None),
        ("exp_avg", torch.zeros(3, 4, dtype=torch.int64)),
    ):  # fmt: skip
        wrong = copy.deepcopy(state)
        wrong["state"][0][name] = value
        with refused(name, "first", "--reset-optimizer"):
            optimizer.load_state_dict(wrong)


@pytest.mark.parametrize(("kind", "options"), [(Adafactor, dict(beta1=0.9)), (NAG, dict(lr=0.1, momentum=0.9))])
def test_other_optimizers_load_what_they_save(kind, options):
    optimizer, state = stepped(kind, options)
    optimizer.load_state_dict(state)


def test_its_options_are_fairseqs():
    options = dict(adam_betas="(0.8, 0.9)", adam_eps=1e-6, weight_decay=0.2, lr=[0.3])
    ours = build_optimizer(OmegaConf.create({"_name": "fused_adam", **options}), parameters())
    assert isinstance(ours, FairseqFusedAdam) and isinstance(ours.optimizer, FusedAdam)
    theirs = FairseqAdam(OmegaConf.structured(FairseqAdamConfig(**options, tpu=False)), parameters())
    theirs = {**theirs.optimizer_config, "betas": tuple(theirs.optimizer_config["betas"])}
    assert ours.optimizer_config == theirs and ours.get_lr() == 0.3
