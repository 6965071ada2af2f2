"""How processes start, on machines that are pretended; meet, as threads at a store; and what options they share."""

import json
import socket
import time
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from fairseq.dataclass.configs import CheckpointConfig, CommonConfig, DistributedTrainingConfig, FairseqConfig
from fairseq_cli import train
from omegaconf import OmegaConf
from torch import distributed as dist

from fairseq_mtmoe.analysis.run_log import what_is_wrong
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.training import failures, launch, rendezvous
from fairseq_mtmoe.training.launch import Launch, resolve, starting
from fairseq_mtmoe.training.option_check import changed_options, expect_same, shared_options
from fairseq_mtmoe.training.rendezvous import CPU, Rendezvous, choose_backend
from tests.helpers.commands import training_arguments
from tests.helpers.refused import refused
from tests.helpers.training import configured

ADDRESS = "tcp://10.0.0.1:29500"
ENVIRONMENT = "env://"


def torchrun(rank, world_size, **more):
    return {"MASTER_ADDR": "h", "MASTER_PORT": "1", "RANK": str(rank), "WORLD_SIZE": str(world_size), **more}


def options_on(gpus, **given):
    """Where fairseq's default number of processes is that of the machine's GPUs."""
    return DistributedTrainingConfig(**{"distributed_world_size": max(1, gpus), "device_id": 0, **given})


def start(gpus=0, cpu=False, environment=(), **given):
    """The decision on a machine."""
    return resolve(options_on(gpus, **given), cpu, gpus, dict(environment))


GIVEN = dict(distributed_init_method=ADDRESS, distributed_world_size=16, distributed_rank=8)
SLURM = {"SLURM_JOB_NODELIST": "a,b"}
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
    "SLURM": (start(gpus=8, environment=SLURM, distributed_world_size=16, distributed_port=1), (16, 0, None, False, 0)),
}


@pytest.mark.parametrize(("found", "right"), TABLE.values(), ids=TABLE)
def test_the_start_is(found, right):
    assert found == Launch(*right)


def test_more_processes_than_gpus_need_a_launcher():
    with refused("--distributed-world-size"):
        start(gpus=2, distributed_world_size=4)


def begun(monkeypatch, gpus=0, tpu=False, bf16=False, **options):
    """What `call_main` calls on such a machine: its name, and what it is given."""
    calls = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(rendezvous, "distributed_main", lambda i, main, cfg, kwargs: calls.append(("here", i, kwargs)))
    monkeypatch.setattr(launch, "spawn", lambda function, given, count: calls.append(("spawned", count, given[2])))
    common = CommonConfig(tpu=tpu, bf16=bf16)
    cfg = FairseqConfig(model=None, common=common, distributed_training=options_on(gpus, tpu=tpu, **options))
    cfg = OmegaConf.structured(cfg)
    call_main = starting(lambda cfg, main, **kwargs: calls.append(("fairseq's", None, kwargs)))
    call_main(cfg, lambda cfg, **kwargs: calls.append(("alone", None, kwargs)), more=1)
    ((name, number, given),) = calls
    assert (given.pop("parent", None) is None) == (name != "spawned")  # a process that is started says what ends it
    assert given.pop("register", launch.register) is launch.register  # and loads the plugin
    return (name, number, given), cfg.distributed_training


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


def start_training(monkeypatch, folder, **options):
    """As one of two processes, which goes no further."""
    monkeypatch.setattr(rendezvous, "distributed_main", lambda i, main, cfg, kwargs: None)
    distributed, checkpoint = options_on(2, **options), CheckpointConfig(save_dir=str(folder))
    cfg = FairseqConfig(distributed_training=distributed, checkpoint=checkpoint)
    starting(lambda cfg, main: None)(OmegaConf.structured(cfg), train.main)


def test_of_processes_under_slurm_the_first_alone_tries_whether_it_can_save(monkeypatch, tmp_path):
    """All of them have the rank 0 until fairseq asks SLURM; two that try at once remove each other's file."""
    for name, value in (("JOB_NODELIST", "a"), ("NNODES", "1"), ("NTASKS_PER_NODE", "2")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setattr("subprocess.check_output", lambda command: b"a\n")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    for rank in (0, 1):
        monkeypatch.setenv("SLURM_PROCID", str(rank))
        monkeypatch.setenv("SLURM_LOCALID", str(rank))
        start_training(monkeypatch, tmp_path / f"run{rank}", distributed_port=1)
        assert (tmp_path / f"run{rank}").is_dir() == (rank == 0)


SECONDS = 0.5


@pytest.fixture
def meet(monkeypatch):
    """What becomes of processes, each given as (rank, world size, options): a backend or a sentence; and the seconds.

    Each begins `late` seconds after the one before.
    """
    told = []
    monkeypatch.setattr(failures, "heard", lambda: told[0] if told else None)

    def meet(*processes, late=0.02):
        store, parts, begin = dist.HashStore(), [], time.monotonic()

        def take_part(rank, world_size, options):
            meeting = Rendezvous(rank, world_size, SECONDS)
            try:
                meeting.take_rank(store)
            except UserError as error:
                return str(error)
            try:
                return meeting.agree(store, options, f"GPU {rank}", "nccl")
            except UserError as error:
                told.append(error)  # as `distributed_main` does
                return str(error)

        with ThreadPoolExecutor(len(processes)) as pool:
            for one in processes:
                parts.append(pool.submit(take_part, *one))
                time.sleep(late)  # in this order
        return [part.result() for part in parts], time.monotonic() - begin

    return meet


OPTIONS = {"--distributed-world-size": 2, "--num-experts": 4, "--lr": 0.1}


@pytest.mark.parametrize("changed", [None, 0, 2])
def test_the_option_that_differs_is_named_to_all_at_once(changed, meet):
    others = {changed: OPTIONS | {"--num-experts": 8, "--lr": 0.2}}
    found, took = meet(*((rank, 3, others.get(rank, OPTIONS)) for rank in (2, 0, 1)))
    first, value = (8, 4) if changed == 0 else (4, 8)
    sentence = "`--num-experts` must be the same in all processes, but is {} in process 0 and {} in process {}."
    right = "nccl" if changed is None else sentence.format(first, value, max(changed, 1))
    assert found == [right] * 3 and took < SECONDS


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2)])
def test_another_number_of_processes_is_said_before_they_are_waited_for(sizes, meet):
    found, took = meet(*((rank, size, {"--distributed-world-size": size}) for rank, size in enumerate(sizes)))
    assert took < SECONDS and len(set(found)) == 1
    assert "`--distributed-world-size` must be the same in all processes" in found[0]


@pytest.mark.parametrize("ranks", [(0, 1), (1, 0), (1, 2)])
def test_a_process_that_does_not_come_is_named_in_time(ranks, meet):
    found, took = meet(*((rank, 3, OPTIONS) for rank in ranks), late=0.1)
    assert SECONDS <= took < SECONDS + 1
    (missing,) = {0, 1, 2} - set(ranks)
    for sentence in found:
        assert f"waited for process {missing}, which did not start within 0.5 seconds" in sentence


def test_two_of_one_rank_are_told_apart_and_the_others_go_on(meet):
    found, _ = meet((1, 2, OPTIONS), (1, 2, OPTIONS), (0, 2, OPTIONS))
    assert found[0] == found[2] == "nccl"
    assert "`--distributed-rank` must be different in each process, but two have 1" in found[1]


def test_nobody_or_another_is_at_the_address():
    with pytest.raises(UserError, match=r"Process 1 of 2 could not reach process 0 at tcp://127\.0\.0\.1:1 within 0.2"):
        Rendezvous(1, 2, 0.2).store_at("tcp://127.0.0.1:1")
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::", 0))
        taken.listen()
        with refused("--distributed-rank"):
            Rendezvous(0, 2, 1).store_at(f"tcp://localhost:{taken.getsockname()[1]}")


def test_a_lost_store_is_no_silence():
    class Lost(dist.HashStore):
        def check(self, keys):
            raise RuntimeError("Connection reset by peer\nat line 7")

    with pytest.raises(UserError, match=r"could not reach process 0 .*\(Connection reset by peer\)$"):
        Rendezvous(1, 2, SECONDS).agree(Lost(), OPTIONS, CPU, "nccl")


def test_nccl_needs_a_gpu_for_each_process():
    chosen = [choose_backend("nccl", devices) for devices in (["a", "b"], ["a", "b", "a"], ["a", CPU])]
    assert chosen == ["nccl", "gloo", "gloo"] and choose_backend("mpi", ["a", "a"]) == "mpi"


@pytest.mark.parametrize(
    ("options", "name"),
    [(("--fp16",), "--fp16"), (("--ddp-backend", "slowmo", "--distributed-world-size", 2), "--ddp-backend")],
)
def test_what_needs_a_gpu_is_refused_before_anything_is_built(options, name, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cfg = configured(training_arguments("data", tmp_path / "run", *options))
    with refused(name):
        launch._start(cfg, train.main, {})
    assert not (tmp_path / "run").exists()


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
    assert what_is_wrong({"event": "run", "options": changed}) is None


def configuration(folder, **changes):
    """What is shared of a run in this folder."""
    cfg = {
        "common": {"seed": 1, "log_format": "simple"},
        "distributed_training": {"distributed_world_size": 2, "distributed_rank": 0, "device_id": 0},
        "model": {"_name": "base_moe", "num_experts": 4, "encoder": {"layers": 6}},
        "task": {"_name": "translation", "data": "here", "seed": "${common.seed}", "lang_pairs": "/a/pairs.txt"},
        "dataset": {"num_workers": 1, "max_tokens": 100},
        "checkpoint": {"save_dir": str(folder), "restore_file": "checkpoint_last.pt", "reset_meters": False},
        "generation": {"beam": 5},
    }
    cfg = OmegaConf.create(cfg)
    for name, value in changes.items():
        OmegaConf.update(cfg, name, value)
    return shared_options(cfg)


SHARED = {"model.num_experts": 8, "model._name": "base_dense", "model.encoder.layers": 5, "common.seed": 2,
          "task.lang_pairs": "en-de"}  # fmt: skip
NAMES = ("--num-experts", "--arch", "--encoder.layers", "--seed", "--lang-pairs")


@pytest.mark.parametrize(("change", "name"), zip(SHARED.items(), NAMES, strict=True), ids=str)
def test_what_must_be_the_same(change, name, tmp_path):
    one, other = configuration(tmp_path), configuration(tmp_path, **dict([change]))
    assert set(one) == set(other)
    with refused(name):
        expect_same(one, other, rank=1)


def test_what_each_process_has_for_itself(tmp_path):
    own = {"distributed_training.distributed_rank": 1, "dataset.num_workers": 0, "common.log_format": "json"}
    elsewhere = {"task.data": "elsewhere", "task.lang_pairs": "/b/pairs.txt"}
    expect_same(configuration(tmp_path), configuration(tmp_path, **own, **elsewhere), rank=1)


def test_an_option_that_one_rank_does_not_have_differs():
    for given, name in (({"--lr": 1}, "--dense-updates"), ({"--lr": 1, "--dense-updates": 5, "--seed": 1}, "--seed")):
        with refused(name):
            expect_same({"--lr": 1, "--dense-updates": 5}, given, rank=1)


def test_options_of_an_architecture_as_they_came(tmp_path):
    cfg = OmegaConf.create({"model": None}, flags={"allow_objects": True})
    cfg.model = Namespace(arch="transformer", encoder_layers=6, distributed_rank=1, save_dir="x", lr=[0.1])
    assert shared_options(cfg) == {"--arch": "transformer", "--encoder-layers": 6, "--lr": "[0.1]"}


def test_a_folder_that_is_not_shared_is_seen_by_its_checkpoint(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    empty = configuration(there)
    assert configuration(here) == empty
    (here / "checkpoint_last.pt").touch()
    assert configuration(here)["--save-dir"] == "a folder with checkpoint_last.pt"
    assert empty["--save-dir"] == "a folder without checkpoint_last.pt"
