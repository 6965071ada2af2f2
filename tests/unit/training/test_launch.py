"""How processes start, on machines that are pretended, and options that need other machines."""

import json
from contextlib import nullcontext

import pytest
import torch
from fairseq.dataclass.configs import CheckpointConfig, DistributedTrainingConfig, FairseqConfig
from fairseq_cli import train
from omegaconf import OmegaConf

from fairseq_mtmoe.core.typed import fault
from fairseq_mtmoe.report.run_log import Plain
from fairseq_mtmoe.training import launch
from fairseq_mtmoe.training.option_check import changed_options, refuse_full_sharding
from tests.helpers.commands import training_arguments
from tests.helpers.refused import refused
from tests.helpers.training import configured

ADDRESS = "tcp://10.0.0.1:29500"


def torchrun(rank, world_size, **more):
    return {"MASTER_ADDR": "h", "MASTER_PORT": "1", "RANK": str(rank), "WORLD_SIZE": str(world_size), **more}


def options_on(gpus, **given):
    """Where fairseq's default number of processes is that of the machine's GPUs."""
    return DistributedTrainingConfig(**{"distributed_world_size": max(1, gpus), "device_id": 0, **given})


GIVEN = dict(distributed_init_method=ADDRESS, distributed_world_size=16, distributed_rank=8)
SLURM = {"SLURM_JOB_NODELIST": "a,b"}
TABLE = {
    # GPUs, environment, options; number of processes, rank, address, whether fairseq starts no others, GPU
    "one CPU": ((0, {}, {}), (1, 0, None, False, 0)),
    "GPUs": ((8, {}, {}), (8, 0, None, False, 0)),
    "torchrun on CPUs": ((0, torchrun(3, 4), {}), (4, 3, "env://", True, 0)),
    "torchrun on GPUs": ((3, torchrun(6, 7, LOCAL_RANK="2"), {}), (7, 6, "env://", True, 2)),
    "torchrun on one GPU": ((1, torchrun(1, 2, LOCAL_RANK="1"), {}), (2, 1, "env://", True, 0)),
    "a launcher without local ranks": ((4, torchrun(6, 8), {}), (8, 6, "env://", True, 2)),
    "torchrun with one process": ((0, torchrun(0, 1), {}), (1, 0, None, False, 0)),
    "an address on CPUs": ((0, {}, GIVEN), (16, 8, ADDRESS, True, 0)),
    "an address on GPUs": ((8, {}, {**GIVEN, "distributed_no_spawn": True, "device_id": 3}), (16, 8, ADDRESS, True, 3)),
    "SLURM": ((8, SLURM, dict(distributed_world_size=16, distributed_port=1)), (16, 0, None, False, 0)),
}


@pytest.mark.parametrize(("machine", "right"), TABLE.values(), ids=TABLE)
def test_the_start_is(machine, right, monkeypatch):
    gpus, environment, given = machine
    options = options_on(gpus, **given)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    launch.take_launcher(options, gpus)
    names = ("world_size", "rank", "init_method", "no_spawn")
    assert (*(getattr(options, f"distributed_{name}") for name in names), options.device_id) == right


def start_under_slurm(monkeypatch, folder, gpus, **variables):
    """Start as one process of one node, which goes no further."""
    for name, value in {"JOB_NODELIST": "a", **variables}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setattr("subprocess.check_output", lambda command: b"a\n")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(launch, "join", lambda cfg: None)
    distributed, checkpoint = options_on(2, distributed_port=1), CheckpointConfig(save_dir=str(folder))
    cfg = FairseqConfig(distributed_training=distributed, checkpoint=checkpoint)
    launch._prepare(OmegaConf.structured(cfg), train.main)


@pytest.mark.parametrize("rank", [0, 1])
def test_of_processes_under_slurm_the_first_alone_tries_whether_it_can_save(rank, monkeypatch, tmp_path):
    """All of them have the rank 0 until fairseq asks SLURM; two that try at once remove each other's file."""
    of_rank = {"PROCID": str(rank), "LOCALID": str(rank)}
    start_under_slurm(monkeypatch, tmp_path / "run", 2, NNODES="1", NTASKS_PER_NODE="2", **of_rank)
    assert (tmp_path / "run").is_dir() == (rank == 0)


def test_a_node_of_slurm_without_gpus_needs_more_than_one_task(monkeypatch, tmp_path):
    """fairseq would start a process for each GPU, and end as if all were well; more than GPUs need a launcher."""
    for gpus in (0, 2):
        with refused("--distributed-world-size"):
            launch.take_launcher(options_on(gpus, distributed_world_size=4), gpus)
    with refused("srun", "--ntasks-per-node", "--distributed-world-size"):
        start_under_slurm(monkeypatch, tmp_path, 0, NNODES="2", NTASKS_PER_NODE="1", NODEID="0")


TWO = ("--distributed-world-size", 2, "--distributed-init-method", ADDRESS)
SLOWMO, SHARDED = (("--ddp-backend", backend, *TWO) for backend in ("slowmo", "fully_sharded"))


@pytest.mark.parametrize("options", [("--fp16",), SLOWMO, SHARDED])
def test_what_needs_a_gpu_is_refused_before_anything_is_built(options, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cfg = configured(training_arguments("data", tmp_path / "run", *options))
    with refused(options[0]):
        launch._prepare(cfg, train.main)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("model", "sampling", "is_refused"), [
    ({"max_nonfinite": 10}, "temperature", True),  # one of ours
    ({}, "uncertainty", True),
    ({}, "temperature", False),
])  # fmt: skip
def test_full_sharding_is_refused_where_it_cannot_work(model, sampling, is_refused):
    distributed = {"ddp_backend": "fully_sharded", "distributed_world_size": 2}
    cfg = OmegaConf.create({"model": model, "task": {"sampling_method": sampling}, "distributed_training": distributed})
    with refused("--ddp-backend") if is_refused else nullcontext():
        refuse_full_sharding(cfg)


def test_options_that_are_not_the_defaults(tmp_path):
    changed = changed_options(configured(training_arguments("data", tmp_path, "--max-update", 30, "--fp16")))
    expected = {
        "arch": "base_moe_tiny", "task": "translation_heated", "criterion": "label_smoothed_cross_entropy",
        "optimizer": "adam", "lr": [0.005], "max_update": 30, "fp16": True, "max_tokens": 1000, "clip_norm": 1.0,
        "label_smoothing": 0.1, "num_experts": 4, "encoder_langtok": "tgt", "save_dir": str(tmp_path), "cpu": True,
        "encoder_embed_dim": 64, "warmup_updates": 100, "data": "data",
    }  # fmt: skip
    assert expected.items() <= changed.items()
    assert not changed.keys() & {"seed", "max_epoch", "patience", "weight_decay", "beam", "expert_gates"}
    assert json.loads(json.dumps(changed)) == changed
    assert fault(changed, dict[str, Plain]) is None
