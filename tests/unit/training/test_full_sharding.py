"""`--ddp-backend fully_sharded` is refused where it cannot work, and taken elsewhere."""

import pytest
import torch
from omegaconf import OmegaConf

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.training.option_check import refuse_full_sharding


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
