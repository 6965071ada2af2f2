"""Checkpoints of tiny sparse models after a few updates, and what processes with some of the experts would save."""

import copy
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq.dataclass.configs import EMAConfig
from fairseq.models.ema.ema import EMA
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from fairseq.optim.fp16_optimizer import FP16Optimizer
from omegaconf import OmegaConf

from fairseq_mtmoe.checkpoints import file_io, sharding
from fairseq_mtmoe.checkpoints.assemble import load_shared_part, whole, write_shard
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement
from tests.helpers.models import batch, moe_model

EXPERT = ".moe.experts."


def trained(num_experts: int = 4, flat: bool = False, seed: int = 1, **options: Any) -> tuple[dict, list]:
    """What fairseq's trainer would save after two updates, and names and shapes of the trained parameters."""
    model = moe_model(seed, num_experts=num_experts, **options).train()
    model = model.bfloat16() if flat else model
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    optimizer = optimizer_of([parameter for _, parameter in named], "flat" if flat else "plain")
    average = EMA(model, EMAConfig(store_ema=True, ema_decay=0.5, ema_fp32=True))
    for _ in range(2):
        optimizer.zero_grad()
        optimizer.backward(model(**batch())[0].float().square().mean())
        optimizer.step()
        average.step(model)
    moments = optimizer.state_dict()
    state = {
        "args": None,
        "cfg": {"model": {"_name": "base_moe"}, "task": {"_name": "translation"}},
        "model": model.state_dict(),
        "optimizer_history": [{"num_updates": 2, "optimizer_name": "Adam", "lr_scheduler_state": {"best": None}}],
        "task_state": {},
        "extra_state": {"ema": average.get_model().state_dict(), "ema_fp32_params": average.fp32_params,
                        "train_iterator": {"epoch": 3}, "gate_rate": {}},
        "last_optimizer_state": {**moments, "loss_scale": 128.0} if flat else moments,
    }  # fmt: skip
    return copy.deepcopy(state), [(name, parameter.shape) for name, parameter in named]


def optimizer_of(parameters: list, kind: str = "plain") -> Any:
    """fairseq's Adam; `masters`, `flat`: over float32 copies of parameters in bfloat16, apart or in one vector."""
    config = OmegaConf.structured(FairseqAdamConfig(adam_betas=(0.9, 0.98), lr=[0.01], tpu=False))
    if kind == "plain":
        return FairseqAdam(config, parameters)
    # fairseq asks CUDA for its device even on a CPU; "no index" is a CPU tensor's.
    with mock.patch.object(torch.cuda, "current_device", lambda: None):
        masters = FP16Optimizer.build_fp32_params(None, parameters, flatten=kind == "flat")
    cfg = {
        "common": {"bf16": True, "fp16_scale_window": 1, "model_parallel_size": 1},
        "optimization": {"update_freq": [1]},
        "distributed_training": {"distributed_world_size": 1},
        "optimizer": {},
    }
    inner = FairseqAdam(config, list(masters.values()) if kind == "flat" else masters)
    return FP16Optimizer(OmegaConf.create(cfg), parameters, inner, masters)


def placements(num_experts: int, processes: int) -> list[ExpertPlacement]:
    count = num_experts // processes
    return [ExpertPlacement(num_experts, first, count) for first in range(0, num_experts, count)]


def local_parameters(parameters: list, placement: ExpertPlacement) -> list:
    """Names and shapes of a process with these experts alone."""
    return [
        (name, torch.Size((placement.count, *shape[1:])) if EXPERT in name else shape) for name, shape in parameters
    ]


def local_state(state: dict, parameters: list, placement: ExpertPlacement) -> dict:
    """What a process with these experts alone would save: written down plainly, to compare with."""

    def cut(name: str, value: Any) -> Any:
        if EXPERT not in name or not torch.is_tensor(value) or not value.dim():
            return value
        return value[placement.first : placement.first + placement.count].clone()

    local = copy.deepcopy(state)
    for tensors in (local["model"], local["extra_state"]["ema"], local["extra_state"]["ema_fp32_params"]):
        for name in tensors:
            tensors[name] = cut(name, tensors[name])
    moments = local["last_optimizer_state"]["state"]
    if set(moments) == {0}:
        for key in ("exp_avg", "exp_avg_sq"):
            pieces = moments[0][key].split([shape.numel() for _, shape in parameters])
            pieces = [cut(name, piece.view(shape)) for (name, shape), piece in zip(parameters, pieces, strict=True)]
            moments[0][key] = torch.cat([piece.reshape(-1) for piece in pieces])
    else:
        for index, (name, _) in enumerate(parameters):
            if index in moments:
                moments[index] = {key: cut(name, value) for key, value in moments[index].items()}
    return local


def write_in_parts(path: Path, state: dict, parameters: list, processes: int) -> None:
    """Save as so many processes do, one after the other, the first of them last."""
    save_id, files = sharding.new_id(), []
    for placement in reversed(placements(sharding.count_experts(state), processes)):
        local = local_state(state, parameters, placement), placement, local_parameters(parameters, placement)
        shared_part, content = sharding.split(*local)
        files.append(write_shard(sharding.expert_folder(path) / save_id, content))
    file_io.save(sharding.with_shard_list(shared_part, save_id, files), str(path))


def read_whole(path: Path) -> dict:
    """A checkpoint with all its experts, wherever they lie."""
    return whole(path, load_shared_part(path))


def save_all(folder: Path, *states: dict) -> list[Path]:
    """Files of these states: `0.pt`, `1.pt` and so on."""
    for index, state in enumerate(states):
        file_io.save(state, str(folder / f"{index}.pt"))
    return [folder / f"{index}.pt" for index in range(len(states))]


def files_of(path: Path) -> list[Path]:
    """The files in the expert folder of a checkpoint, whatever they are."""
    return sorted(sharding.expert_folder(path).glob("*/*"))


def assert_same(one: Any, other: Any, where: str = "state") -> None:
    """Both hold the same, bit for bit and type for type, in models in the same order."""
    assert type(one) is type(other), where
    if isinstance(one, dict):
        assert list(one) == list(other) if where.endswith(("model", "ema")) else set(one) == set(other), where
        for key in one:
            assert_same(one[key], other[key], f"{where}.{key}")
    elif torch.is_tensor(one):
        assert one.dtype == other.dtype and torch.equal(one, other), where
    else:
        assert one == other, where


@pytest.fixture(scope="session")
def checkpoint():
    """The state of 4 experts and its parameters; not to be changed."""
    return trained(4)


@pytest.fixture
def parts(checkpoint, tmp_path):
    path = tmp_path / "checkpoint_last.pt"
    write_in_parts(path, *checkpoint, processes=2)
    return path
