"""How many processes a run has, who starts them, and where each computes: on machines that are pretended."""

from types import SimpleNamespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.dataclass.configs import CheckpointConfig, DistributedTrainingConfig, FairseqConfig
from fairseq_cli import train
from omegaconf import OmegaConf

from fairseq_mtmoe.training import launch, rendezvous
from fairseq_mtmoe.training.launch import Launch, resolve, starting
from tests.helpers.refused import refused

ADDRESS = "tcp://10.0.0.1:29500"
ENVIRONMENT = "env://"


def torchrun(rank, world_size, **more):
    return {"MASTER_ADDR": "h", "MASTER_PORT": "1", "RANK": str(rank), "WORLD_SIZE": str(world_size), **more}


def start(gpus=0, cpu=False, environment=(), **given):
    """The decision on a machine, where fairseq's default number of processes is that of its GPUs."""
    options = {
        "distributed_world_size": max(1, gpus), "distributed_rank": 0, "distributed_init_method": None,
        "distributed_no_spawn": False, "distributed_port": -1, "device_id": 0,
    }  # fmt: skip
    assert set(given) <= set(options)
    return resolve(SimpleNamespace(**{**options, **given}), cpu, gpus, dict(environment))


GIVEN = dict(distributed_init_method=ADDRESS, distributed_world_size=16, distributed_rank=8)
TABLE = {
    # machine and options: processes, rank, address, whether fairseq starts no others, GPU, how many are started on CPUs
    "one CPU": (start(), (1, 0, None, False, 0)),
    "GPUs": (start(gpus=8), (8, 0, None, False, 0)),
    "--cpu beside GPUs": (start(gpus=8, cpu=True), (1, 0, None, False, 0)),
    "several on CPUs": (start(distributed_world_size=3), (3, 0, None, False, 0, 3)),
    "several with --cpu": (start(gpus=8, cpu=True, distributed_world_size=2), (2, 0, None, False, 0, 2)),
    "torchrun on CPUs": (start(environment=torchrun(3, 4)), (4, 3, ENVIRONMENT, True, 0)),
    "torchrun on GPUs": (start(gpus=3, environment=torchrun(6, 7, LOCAL_RANK="2")), (7, 6, ENVIRONMENT, True, 2)),
    "torchrun on one GPU": (start(gpus=1, environment=torchrun(1, 2, LOCAL_RANK="1")), (2, 1, ENVIRONMENT, True, 0)),
    "a launcher without local ranks": (start(gpus=4, environment=torchrun(6, 8)), (8, 6, ENVIRONMENT, True, 2)),
    "torchrun with one process": (start(environment=torchrun(0, 1)), (1, 0, None, False, 0)),
    "an address with --cpu": (start(gpus=8, cpu=True, **GIVEN), (16, 8, ADDRESS, True, 0)),
    "an address on GPUs": (start(gpus=8, **GIVEN, distributed_no_spawn=True, device_id=3), (16, 8, ADDRESS, True, 3)),
    "SLURM": (
        start(gpus=8, environment={"SLURM_JOB_NODELIST": "a,b"}, distributed_world_size=16, distributed_port=1),
        (16, 0, None, False, 0),
    ),
}


@pytest.mark.parametrize(("found", "right"), TABLE.values(), ids=TABLE)
def test_the_start_is(found, right):
    assert found == Launch(*right)


def test_more_processes_than_gpus_need_a_launcher():
    with refused("--distributed-world-size"):
        start(gpus=2, distributed_world_size=4)


# ---- what becomes of it ----


def begun(monkeypatch, gpus=0, tpu=False, bf16=False, **options):
    """What `call_main` calls on such a machine: its name, and what it is given."""
    calls = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(rendezvous, "distributed_main", lambda i, main, cfg, kwargs: calls.append(("here", i, kwargs)))
    monkeypatch.setattr(launch, "spawn", lambda function, given, count: calls.append(("spawned", count, given[2])))
    defaults = {
        "distributed_world_size": max(1, gpus), "distributed_rank": 0, "distributed_init_method": None, "tpu": tpu,
        "distributed_no_spawn": False, "distributed_port": -1, "device_id": 0, "pipeline_model_parallel": False,
        "distributed_num_procs": 1,
    }  # fmt: skip
    common = {"cpu": False, "tpu": tpu, "bf16": bf16, "log_format": None}
    cfg = OmegaConf.create({"common": common, "distributed_training": {**defaults, **options}})
    fairseqs = lambda cfg, main, **kwargs: calls.append(("fairseq's", None, kwargs))  # noqa: E731
    call_main = starting(fairseqs)
    call_main(cfg, lambda cfg, **kwargs: calls.append(("alone", None, kwargs)), more=1)
    ((name, place, given),) = calls
    assert (given.pop("parent", None) is None) == (name != "spawned")  # a process that is started says what ends it
    assert given.pop("register", launch.register) is launch.register  # and loads the plugin
    return (name, place, given), cfg.distributed_training


def test_each_process_begins_where_it_should(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert begun(monkeypatch)[0] == ("alone", None, {"more": 1})
    assert begun(monkeypatch, tpu=True)[0][0] == "fairseq's"
    one, options = begun(monkeypatch, distributed_world_size=2, tpu=True, bf16=True)  # as fairseq takes --bf16
    assert one == ("spawned", 2, {"more": 1, "start_rank": 0})
    assert options.distributed_init_method.startswith("tcp://localhost:") and options.distributed_rank is None
    assert begun(monkeypatch, gpus=4, distributed_world_size=3)[0] == ("spawned", 3, {"more": 1, "start_rank": 0})
    assert begun(monkeypatch, gpus=8, **GIVEN)[0] == ("spawned", 8, {"more": 1, "start_rank": 8})
    assert begun(monkeypatch, gpus=8, **GIVEN, distributed_no_spawn=True, device_id=3)[0] == ("here", 3, {"more": 1})


def test_of_processes_under_slurm_the_first_alone_tries_whether_it_can_save(monkeypatch, tmp_path):
    """All of them have the rank 0 until fairseq asks SLURM; two that try at once remove each other's file."""
    slurm = {"JOB_NODELIST": "a", "NNODES": "1", "NTASKS_PER_NODE": "2"}
    for name, value in slurm.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setattr("subprocess.check_output", lambda command: b"a\n")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(rendezvous, "distributed_main", lambda i, main, cfg, kwargs: None)
    for rank in (0, 1):
        monkeypatch.setenv("SLURM_PROCID", str(rank))
        monkeypatch.setenv("SLURM_LOCALID", str(rank))
        cfg = FairseqConfig(
            distributed_training=DistributedTrainingConfig(distributed_world_size=2, distributed_port=1),
            checkpoint=CheckpointConfig(save_dir=str(tmp_path / f"run{rank}")),
        )
        starting(lambda cfg, main: None)(OmegaConf.structured(cfg), train.main)
        assert (tmp_path / f"run{rank}").is_dir() == (rank == 0)


def test_a_run_remembers_nothing_of_the_one_before_in_its_process(tmp_path, monkeypatch):
    """As under hydra's `--multirun`; else only a better run than that would have a best checkpoint."""
    monkeypatch.setattr(rendezvous, "distributed_main", lambda i, main, cfg, kwargs: None)
    functions = checkpoint_utils.save_checkpoint, train.should_stop_early
    for function in functions:
        function.best, function.num_runs = 99.0, 3
    cfg = FairseqConfig(
        distributed_training=DistributedTrainingConfig(distributed_world_size=2, distributed_init_method=ADDRESS),
        checkpoint=CheckpointConfig(save_dir=str(tmp_path)),
    )
    starting(lambda cfg, main: None)(OmegaConf.structured(cfg), train.main)
    assert [vars(function).keys() & {"best", "num_runs"} for function in functions] == [set(), set()]
