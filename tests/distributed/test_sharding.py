"""`--zero-sharding os` changes where an optimizer's state is, not what it does, and not what is saved of it."""

import numpy as np
import pytest
import torch
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from omegaconf import OmegaConf
from torch import distributed as dist

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.optim.fused_adam import FairseqFusedAdam, FusedAdamConfig
from fairseq_mtmoe.training.option_check import refuse_full_sharding
from fairseq_mtmoe.training.zero_sharding import shard
from tests.helpers.models import batch, moe_model, perturb
from tests.helpers.processes import run_processes


def build(kind, spread, num_experts):
    """A sparse model and its optimizer, whose state is spread over the processes or not."""
    model = moe_model(num_experts=num_experts, no_token_shuffle=True)
    perturb(model)
    options = dict(adam_betas="(0.9, 0.98)", weight_decay=0.01, lr=[0.01])
    parameters = list(model.parameters())
    if kind == "adam":
        optimizer = FairseqAdam(FairseqAdamConfig(**options, tpu=False), parameters)
    else:
        optimizer = FairseqFusedAdam(FusedAdamConfig(**options), parameters)
    if spread:
        shard(optimizer, dist.group.WORLD)
    return model.train(), optimizer


def held_by(optimizer):
    """How many numbers of state this process keeps for its next update."""
    inner = optimizer.optimizer
    parts = [inner.shared.optim, inner.experts] if hasattr(inner, "shared") else [getattr(inner, "optim", inner)]
    entries = [entry for part in parts for entry in part.state.values()]
    return sum(value.numel() for entry in entries for value in entry.values() if torch.is_tensor(value))


def train(rank, kind, num_experts):
    """The parameters after some updates, and what is held, without and with the state spread."""
    results = []
    for spread in (False, True):
        model, optimizer = build(kind, spread, num_experts)
        net_input = {key: value[2 * rank : 2 * rank + 2] for key, value in batch().items()}
        for _ in range(3):
            optimizer.zero_grad()
            logits, _ = model(**net_input)
            target = net_input["prev_output_tokens"].flatten()
            optimizer.backward(torch.nn.functional.cross_entropy(logits.flatten(0, 1), target))
            for parameter in model.parameters():
                if not hasattr(parameter, "expert"):  # what data parallelism does
                    dist.all_reduce(parameter.grad.div_(dist.get_world_size()))
            optimizer.step()
        results.append(({name: value.numpy() for name, value in model.state_dict().items()}, held_by(optimizer)))
    return results


@pytest.mark.parametrize(("kind", "num_experts"), [("adam", 4), ("fused_adam", 4), ("adam", 3)])
def test_spread_state_is_smaller_and_trains_alike(kind, num_experts):
    """With experts that are sharded (4), and with experts in every process (3); test_training.py saves such states."""
    several = run_processes(train, 2, kind, num_experts)
    for (whole, held), (spread, less) in several:
        assert less < 0.8 * held
        for name, value in whole.items():
            np.testing.assert_allclose(spread[name], value, rtol=1e-6, atol=1e-6, err_msg=name)
    for name, value in several[0][1][0].items():
        own = num_experts == 4 and ".moe.experts." in name
        assert np.array_equal(value, several[1][1][0][name]) != own, name


@pytest.mark.parametrize(
    ("model", "sampling", "has_cuda", "place"),
    [
        ({"num_experts": 4}, "temperature", True, "with experts in several processes"),
        ({"num_experts": 3}, "uncertainty", True, "with `--sampling-method uncertainty`"),
        ({"freeze_layers": "half"}, "temperature", True, "with `--freeze-layers half`"),
        ({"num_experts": 3, "gate_lr_factor": 2.0}, "temperature", True, "with `--gate-lr-factor`"),
        ({"num_experts": 3}, "temperature", False, "on a machine without CUDA"),
    ],
)
def test_full_sharding_is_refused_where_it_cannot_work(model, sampling, has_cuda, place, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    distributed = {"ddp_backend": "fully_sharded", "distributed_world_size": 2}
    cfg = OmegaConf.create({"model": model, "task": {"sampling_method": sampling}, "distributed_training": distributed})
    with pytest.raises(UserError, match=f"`--ddp-backend` must be .* {place}, .*fully_sharded"):
        refuse_full_sharding(cfg)
    cfg.distributed_training.ddp_backend = "legacy_ddp"
    refuse_full_sharding(cfg)


@pytest.mark.parametrize(("model", "task"), [({"num_experts": 3, "freeze_layers": "0"}, {}), ({}, {})])
def test_full_sharding_is_taken_elsewhere(model, task, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    distributed = {"ddp_backend": "fully_sharded", "distributed_world_size": 2}
    refuse_full_sharding(OmegaConf.create({"model": model, "task": task, "distributed_training": distributed}))


def test_one_process_keeps_the_whole_state():
    _, optimizer = build("adam", False, 4)
    plain = optimizer.optimizer
    shard(optimizer, None)
    assert optimizer.optimizer is plain
