"""Steps: weights and losses that are not finite, a learning rate of the gates' own, and the log of the exchange."""

import json
import logging
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from fairseq import utils
from fairseq.logging import metrics
from fairseq.optim.composite import CompositeOptimizer
from torch import nn

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.file_io import newest_good_in
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.models.mt_tag import MTTaGModel
from fairseq_mtmoe.moe import BaseGate, ExpertBank, MoELayer
from fairseq_mtmoe.moe.parallel.collectives import CommRecord
from fairseq_mtmoe.optim.state import MASTER, OptimizerState, trained_parameters
from fairseq_mtmoe.protocols import TrainingTask
from fairseq_mtmoe.slots import expert_layers
from fairseq_mtmoe.training.metrics import ExpertCommLog
from fairseq_mtmoe.training.steps import GateRate, are_finite, clip_on_cpu, unwrapped_optimizer
from tests.helpers.benchmark import task_arguments
from tests.helpers.refused import refused
from tests.helpers.trainers import groups_of, take, trainer_here
from tests.helpers.training import run_here, train_here

SMALL = ("--max-tokens", 120, "--num-experts", 2)
EACH = (*SMALL, "--warmup-updates", 0, "--clip-norm", 0, "--save-interval-updates", 1, "--keep-interval-updates", 2)


def test_batches_that_are_left_out_are_neither_validated_nor_saved(corpus, tmp_path):
    """The first update makes weights so large that no loss is finite after it."""
    with refused("--max-nonfinite", "checkpoint_last.pt"):
        train_here(corpus, tmp_path, *EACH, "--lr", 1e37, "--max-nonfinite", 3)
    log = map(json.loads, (tmp_path / "mtmoe.jsonl").read_text().splitlines())
    assert [event["update"] for event in log if event["event"] == "valid"] == [1]
    assert {path.name for path in tmp_path.glob("checkpoint*.pt")} == {"checkpoint_1_1.pt", "checkpoint_last.pt"}


def test_weights_that_are_not_finite_are_not_saved(corpus, tmp_path):
    train_here(corpus, tmp_path, *EACH, "--max-update", 1)
    last = tmp_path / "checkpoint_last.pt"
    before = last.read_bytes()
    lr = ("--lr", 2.3e38, "--weight-decay", 1, "--reset-optimizer")  # twice as much is more than float32 holds
    with pytest.raises(UserError, match=r"not finite after update 1, and are not saved: .* from `.*checkpoint_last"):
        train_here(corpus, tmp_path, *EACH, *lr, "--max-update", 3)
    assert last.read_bytes() == before

    state = file_io.load(str(last))
    next(value for key, value in state["model"].items() if ".moe.experts." in key).view(-1)[5] = float("nan")
    file_io.save(state, str(last))
    with refused("checkpoint_last.pt", "--restore-file", "checkpoint_best.pt"):
        train_here(corpus, tmp_path, *EACH, "--max-update", 3)
    assert newest_good_in(tmp_path).name == "checkpoint_best.pt"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_every_element_counts(dtype):
    weights = [torch.full((3000,), 60000.0, dtype=dtype), torch.zeros(0, dtype=dtype), torch.ones(6, dtype=dtype)]
    assert are_finite(weights, in_all_processes=False)
    for weight, value in ((weights[0], float("nan")), (weights[2], -float("inf"))):
        before, weight[-1] = weight[-1].clone(), value
        assert not are_finite(weights, in_all_processes=False)
        weight[-1] = before


def test_a_resumed_run_goes_on_counting(corpus, tmp_path):
    trainer, resumed, anew = (trainer_here(corpus, tmp_path, *SMALL, "--max-nonfinite", 3) for _ in range(3))
    take(trainer, groups_of(trainer, 3), {1, 2})
    trainer.consolidate_optimizer()
    position = {"train_iterator": {"epoch": 1, "iterations_in_epoch": 3}}
    path = trainer.save_checkpoint(str(tmp_path / "checkpoint_last.pt"), position)
    resumed.load_checkpoint(path)
    with refused("--max-nonfinite"):
        take(resumed, groups_of(resumed, 1), {0})
    anew.load_checkpoint(path, reset_meters=True)
    assert anew._nonfinite.state_dict() == {"total": 0, "in_a_row": 0}


OPTIONS = ("--max-tokens", 100, "--num-experts", 2, "--expert-gates", "base,task", "--expert-interval", 1)
FORMS = {
    "float32": {},
    "bfloat16 in one vector": dict(common__bf16=True),
    "bfloat16 without copies": dict(common__memory_efficient_bf16=True),
}


def way_of_an_update(corpus, folder, factor, *options, updates=1, **changes):
    """How each parameter changes in the last of some updates, and the trainer."""
    trainer = trainer_here(corpus, folder, *OPTIONS, "--gate-lr-factor", factor, *options, **changes)
    for layer in expert_layers(trainer.get_model()).values():
        layer.blend.data.fill_(0.5)  # at its initial 0 gates have no gradients
    for samples in groups_of(trainer, updates):
        trainer.optimizer.set_lr(0.01)
        before = values(trainer)
        trainer.train_step(samples)
    return {name: value - before[name] for name, value in values(trainer).items()}, trainer


def values(trainer):
    parameters = trained_parameters(trainer.get_model())
    state = OptimizerState.capture(trainer.optimizer, parameters)
    return {name: state[name].get(MASTER, value.detach()).float().clone() for name, value in parameters}


@pytest.mark.parametrize("changes", FORMS.values(), ids=FORMS)
def test_gates_go_so_many_times_as_far_and_all_else_as_ever(changes, corpus, tmp_path, monkeypatch):
    # fairseq asks CUDA for its device even on a CPU; "no index" is a CPU tensor's.
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    plain, _ = way_of_an_update(corpus, tmp_path, 1, **changes)
    factor = 3
    stretched, trainer = way_of_an_update(corpus, tmp_path, factor, **changes)
    gates = [name for name in plain if name.endswith(("gate.weight", "blend"))]
    assert len(gates) == 8 and all(plain[name].any() for name in gates)
    rounding = 0.01 if "common__memory_efficient_bf16" in changes else 1e-6
    for name, way in plain.items():
        torch.testing.assert_close(stretched[name], (factor if name in gates else 1) * way, rtol=0, atol=rounding)
    weights = dict(trainer.get_model().named_parameters())
    for name, value in values(trainer).items():  # the model computes with what was stretched
        assert torch.equal(weights[name], value.to(weights[name].dtype)), name


def test_at_0_gates_stay_while_all_else_learns_also_after_dense_updates(corpus, tmp_path):
    way, trainer = way_of_an_update(corpus, tmp_path, 0, "--dense-updates", 1, updates=3)
    assert not trainer.get_model().is_dense
    still = {name.rpartition(".moe.")[2] for name, change in way.items() if not change.any()}
    assert still == {"gate.weight", "blend"}
    assert any(change.any() for name, change in way.items() if ".moe.experts." in name)


def mt_tag(benchmark, folder, updates, *options):
    """The parameters of a run of MT-TaG, which goes on from what is in its folder."""
    model = ("--glue-tasks", "cola,stsb", "--init-encoder", benchmark / "encoder.pt", "--lr-scheduler", "fixed")
    return run_here(task_arguments(benchmark, folder, *model, "--max-update", updates, *options))["parameters"]


def different(one, other):
    return {name.rpartition(".moe.")[2] for name, value in one.items() if (value != other[name]).any()}


def test_gates_of_mt_tag_have_a_rate_of_their_own_and_go_on_with_it(benchmark, tmp_path):
    asked = mt_tag(benchmark, tmp_path / "asked", 4, "--gate-lr-factor", MTTaGModel.gate_lr_factor)
    mt_tag(benchmark, tmp_path / "run", 2)
    assert not different(mt_tag(benchmark, tmp_path / "run", 4), asked)
    assert {"gate.weight", "blend"} <= different(mt_tag(benchmark, tmp_path / "one", 4, "--gate-lr-factor", 1), asked)


def test_gates_that_follow_a_dense_run_have_the_rate_of_new_ones(corpus, tmp_path):
    dense = trainer_here(corpus, tmp_path, "--arch", "base_dense_tiny", "--max-tokens", 100)
    take(dense, groups_of(dense, 1))
    dense.consolidate_optimizer()
    path = dense.save_checkpoint(str(tmp_path / "dense.pt"), {"train_iterator": {"epoch": 1, "iterations_in_epoch": 1}})
    sparse = trainer_here(corpus, tmp_path, *OPTIONS, "--dense-updates", 2, "--gate-lr-factor", 5)
    sparse.load_checkpoint(path)
    assert sparse._gate_rate.state_dict() == {"factor": 5}


def test_a_composite_optimizer_stretches_the_gates_of_each_of_its_parts():
    gate = BaseGate(2, 3)
    layer = MoELayer(gate, ExpertBank(2, 3, 4))
    groups = {"gates": [gate.weight], "others": list(layer.experts.parameters())}
    plain = {name: torch.optim.SGD(each, lr=1.0) for name, each in groups.items()}
    composite: Any = CompositeOptimizer(
        {name: SimpleNamespace(optimizer=each, step=lambda each=each: each.step()) for name, each in plain.items()}
    )
    GateRate(3, 1.0, lambda: [layer]).follow(SimpleNamespace(optimizer=composite))
    before = {name: [value.detach().clone() for value in each] for name, each in groups.items()}
    for value in layer.parameters():
        value.grad = torch.ones_like(value)
    composite.step()
    torch.testing.assert_close(gate.weight.detach(), before["gates"][0] - 3)
    assert all(torch.equal(now, was - 1) for now, was in zip(groups["others"], before["others"], strict=True))


HALF = dict(common__fp16=True, common__fp16_init_scale=4)
OPTIMIZERS = {"float32": {}, "half precision": HALF | dict(common__memory_efficient_fp16=True)}


def parameters():
    """Three of them with gradients, the last one an expert's, and one without."""
    generator = torch.Generator().manual_seed(1)
    made = [nn.Parameter(torch.zeros(2, 3)) for _ in range(4)]
    for parameter in made[:3]:
        parameter.grad = torch.randn(2, 3, generator=generator)
    made[2].expert = True
    return made


@pytest.mark.parametrize(("max_norm", "aggregate"), [(0.0, None), (0.1, lambda norm: 3 * norm), (9.0, None)])
def test_norms_stay_with_their_gradients(max_norm, aggregate):
    right, found = parameters(), parameters()
    norm = utils.clip_grad_norm_(right, max_norm, aggregate)
    assert torch.equal(clip_on_cpu(SimpleNamespace(params=iter(found)), max_norm, aggregate), norm)
    for one, other in zip(found, right, strict=True):
        assert one.grad is other.grad is None or torch.equal(one.grad, other.grad)
    assert clip_on_cpu(SimpleNamespace(params=found[3:]), 1.0) == 0  # without gradients


@pytest.mark.parametrize("changes", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_the_norm_of_a_run_on_the_cpu_asks_nothing_of_a_gpu_beside_it(changes, corpus, tmp_path, monkeypatch):
    """fairseq's norm fails here: no GPU is behind what torch says of one."""
    trainer = trainer_here(corpus, tmp_path, *SMALL, **changes)
    norms, gradients = [], []
    for has_cuda in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda answer=has_cuda: answer)
        trainer._build_optimizer()
        trainer.optimizer._needs_sync = True  # as after a backward pass
        for parameter in trainer.get_model().parameters():
            parameter.grad = torch.full_like(parameter, 0.5)
        norms.append(trainer.optimizer.clip_grad_norm(0.01))
        gradients.append([parameter.grad for parameter in unwrapped_optimizer(trainer.optimizer).params])
    assert norms[0] > 1 and torch.equal(*norms)
    assert all(map(torch.equal, *gradients))


def test_flat_gradients_cannot_be_spread(corpus, tmp_path):
    with refused("--fp16-no-flatten-grads", "--zero-sharding"):
        trainer_here(corpus, tmp_path, *SMALL, **HALF, distributed_training__zero_sharding="os")


def slot(exchanges=True, sparse=True):
    layer = SimpleNamespace(comm=CommRecord(), experts=SimpleNamespace(placement=SimpleNamespace(is_sharded=exchanges)))
    return SimpleNamespace(moe=layer if sparse else None)


def exchange(block, num_bytes, seconds=0.1):
    """What a layer's record does in an exchange."""
    comm = block.moe.comm
    if comm.enabled:
        comm.num_bytes += num_bytes
        comm._seconds += seconds


def reported(log, update):
    """What a task is told of the updates since it was told last; it is told of nothing else."""
    task = Mock(spec=TrainingTask)
    log.report(task, update)
    assert {name for name, _, _ in task.mock_calls} <= {"expert_comm"}
    return [fields for _, _, fields in task.mock_calls]


def test_updates_are_logged_and_summed_up_by_layer(monkeypatch):
    monkeypatch.setattr("time.perf_counter", iter([10.0, 12.0, 20.0, 24.0]).__next__)
    slots = {"encoder.layers.1": slot(), "decoder.layers.1": slot()}
    log = ExpertCommLog(slots, enabled=True)
    with metrics.aggregate() as aggregate:
        for num_bytes, seconds in ((1_000_000, 0.5), (3_000_000, 1.0)):
            with log.update():
                for block in slots.values():
                    exchange(block, num_bytes, seconds)
    # Milliseconds are the mean of 2 · 500 and 2 · 1000.
    means = {"expert_comm_ms": 1500, "expert_comm_mb": 4, "expert_comm_share": 0.5}
    assert means.items() <= aggregate.get_smoothed_values().items()
    layers = {path: {"seconds": 1.5, "bytes": 4_000_000} for path in slots}
    assert reported(log, 7) == [{"update": 7, "updates": 2, "layers": layers}]
    assert reported(log, 7) == []  # nothing new


def test_validation_and_failed_updates_do_not_count():
    block = slot()
    log = ExpertCommLog({"layer": block}, enabled=True)
    with log.update():
        exchange(block, 10)
    exchange(block, 1000)
    with pytest.raises(RuntimeError), log.update():
        exchange(block, 10)
        raise RuntimeError
    exchange(block, 1000)
    (event,) = reported(log, 2)
    assert event["layers"]["layer"]["bytes"] == 10 and event["updates"] == 1
    with log.update():
        exchange(block, 20)
    (event,) = reported(log, 3)  # of what came after the first
    assert event["layers"]["layer"]["bytes"] == 20 and event["updates"] == 1


@pytest.mark.parametrize(
    ("slots", "enabled", "lines"),
    [({}, True, 1), ({"layer": slot(exchanges=False)}, True, 1), ({"layer": slot()}, False, 0)],
    ids=["dense", "all experts here", "not asked for"],
)
def test_where_nothing_is_exchanged_one_line_says_so(slots, enabled, lines, caplog):
    caplog.set_level(logging.INFO)
    log = ExpertCommLog(slots, enabled)
    with metrics.aggregate() as aggregate:
        for _ in range(3):
            with log.update():
                pass
    assert not aggregate.get_smoothed_values()
    assert ["logs nothing" in message for message in caplog.messages] == [True] * lines


def test_experts_that_come_later_are_logged_then(caplog):
    caplog.set_level(logging.INFO)
    block = slot(sparse=False)
    log = ExpertCommLog({"layer": block}, enabled=True)
    with log.update():
        pass
    block.moe = slot().moe
    with log.update():
        exchange(block, 10)
    assert reported(log, 2)[0]["updates"] == 1 and not caplog.records
