"""`--ddp-backend fully_sharded` is refused where it cannot work, and taken elsewhere."""

from contextlib import nullcontext

import pytest
import torch
from omegaconf import OmegaConf

from fairseq_mtmoe.training.option_check import refuse_full_sharding
from tests.helpers.refused import refused


@pytest.mark.parametrize(("model", "sampling", "has_cuda", "is_refused"), [
    ({"num_experts": 4}, "temperature", True, True),  # in several processes
    ({"num_experts": 3}, "uncertainty", True, True),
    ({"freeze_layers": "half"}, "temperature", True, True),
    ({"num_experts": 3, "gate_lr_factor": 2.0}, "temperature", True, True),
    ({"num_experts": 3}, "temperature", False, True),
    ({"num_experts": 3, "freeze_layers": "0"}, "temperature", True, False),
])  # fmt: skip
def test_full_sharding_is_refused_where_it_cannot_work(model, sampling, has_cuda, is_refused, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    distributed = {"ddp_backend": "fully_sharded", "distributed_world_size": 2}
    cfg = OmegaConf.create({"model": model, "task": {"sampling_method": sampling}, "distributed_training": distributed})
    with refused("--ddp-backend") if is_refused else nullcontext():
        refuse_full_sharding(cfg)
