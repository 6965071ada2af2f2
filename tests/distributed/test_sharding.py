"""`--zero-sharding os` changes where an optimizer's state is, not what it does; the tests of training run it, too."""

from types import SimpleNamespace

import pytest
import torch
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from omegaconf import OmegaConf
from torch import distributed as dist

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.optim.fused_adam import FairseqFusedAdam, FusedAdamConfig
from fairseq_mtmoe.training.option_check import refuse_full_sharding
from fairseq_mtmoe.training.zero_sharding import shard
from tests.helpers.models import moe_model
from tests.helpers.processes import run_processes

# With experts that are sharded (4), and with experts in every process (3).
CASES = [("adam", 4), ("fused_adam", 4), ("adam", 3)]


def held(rank):
    """What this process keeps and has after two updates, in each case, without and with the state spread."""
    return [[held_in(*case, spread) for spread in (False, True)] for case in CASES]


def held_in(kind, num_experts, spread):
    """How many numbers of state there are for the next update, and the parameters."""
    parameters = list(moe_model(num_experts=num_experts, no_token_shuffle=True).parameters())
    options = dict(adam_betas="(0.9, 0.98)", weight_decay=0.01, lr=[0.01])
    if kind == "adam":
        optimizer = FairseqAdam(FairseqAdamConfig(**options, tpu=False), parameters)
    else:
        optimizer = FairseqFusedAdam(FusedAdamConfig(**options), parameters)
    if spread:
        shard(optimizer, dist.group.WORLD)
    for size in (1, -3):
        for parameter in parameters:
            parameter.grad = size * torch.linspace(-1, 2, parameter.numel()).view_as(parameter)
        optimizer.step()
    inner = optimizer.optimizer
    parts = [inner.shared.optim, inner.experts] if hasattr(inner, "shared") else [getattr(inner, "optim", inner)]
    entries = [entry for part in parts for entry in part.state.values()]
    numbers = sum(value.numel() for entry in entries for value in entry.values() if torch.is_tensor(value))
    return numbers, [parameter.detach().numpy() for parameter in parameters]


def test_spread_state_is_smaller_and_trains_alike():
    for of_rank in run_processes(held, 2):
        for (whole, right), (spread, found) in of_rank:
            assert 0 < spread < 0.8 * whole
            torch.testing.assert_close(found, right, rtol=1e-6, atol=1e-6)


def test_a_process_that_nothing_joins_keeps_the_whole_state():
    plain = object()
    optimizer = SimpleNamespace(optimizer=plain)
    shard(optimizer, None)
    assert optimizer.optimizer is plain


@pytest.mark.parametrize(
    ("model", "sampling", "has_cuda", "where"),
    [
        ({"num_experts": 4}, "temperature", True, "with experts in several processes"),
        ({"num_experts": 3}, "uncertainty", True, "with `--sampling-method uncertainty`"),
        ({"freeze_layers": "half"}, "temperature", True, "with `--freeze-layers half`"),
        ({"num_experts": 3, "gate_lr_factor": 2.0}, "temperature", True, "with `--gate-lr-factor`"),
        ({"num_experts": 3}, "temperature", False, "on a machine without CUDA"),
    ],
)
def test_full_sharding_is_refused_where_it_cannot_work(model, sampling, has_cuda, where, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    distributed = {"ddp_backend": "fully_sharded", "distributed_world_size": 2}
    cfg = OmegaConf.create({"model": model, "task": {"sampling_method": sampling}, "distributed_training": distributed})
    with pytest.raises(UserError, match=f"`--ddp-backend` must be .* {where}, .*fully_sharded"):
        refuse_full_sharding(cfg)
    cfg.distributed_training.ddp_backend = "legacy_ddp"
    refuse_full_sharding(cfg)


@pytest.mark.parametrize(("model", "task"), [({"num_experts": 3, "freeze_layers": "0"}, {}), ({}, {})])
def test_full_sharding_is_taken_elsewhere(model, task, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    distributed = {"ddp_backend": "fully_sharded", "distributed_world_size": 2}
    refuse_full_sharding(OmegaConf.create({"model": model, "task": task, "distributed_training": distributed}))
