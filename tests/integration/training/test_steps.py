"""Steps: weights and losses that are not finite, norms, and a learning rate of the gates' own."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.optim.composite import CompositeOptimizer

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.file_io import newest_good_in
from fairseq_mtmoe.checkpoints.optimizer_state import MASTER, OptimizerState, trained_parameters
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.moe import BaseGate, ExpertBank, MoELayer
from fairseq_mtmoe.nlu.mt_tag import MTTaGModel
from fairseq_mtmoe.slots import expert_layers
from fairseq_mtmoe.training.steps import GateRate, unwrapped_optimizer
from tests.helpers.benchmark import task_arguments
from tests.helpers.refused import refused
from tests.helpers.trainers import groups_of, take, trainer_here, trainer_of
from tests.helpers.training import train_here

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


def test_a_resumed_run_goes_on_counting_and_with_its_rate_of_gates(corpus, tmp_path):
    rates = (("--gate-lr-factor", 3), (), ())
    trainer, resumed, anew = (trainer_here(corpus, tmp_path, *SMALL, "--max-nonfinite", 3, *rate) for rate in rates)
    take(trainer, groups_of(trainer, 3), {1, 2})
    trainer.consolidate_optimizer()
    position = {"train_iterator": {"epoch": 1, "iterations_in_epoch": 3}}
    path = trainer.save_checkpoint(str(tmp_path / "checkpoint_last.pt"), position)
    resumed.load_checkpoint(path)
    assert resumed._gate_rate.state_dict() == {"factor": 3}
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


def test_gates_of_mt_tag_have_a_rate_of_their_own(benchmark, tmp_path):
    model = ("--arch", "mt_tag", "--glue-tasks", "cola", "--init-encoder", benchmark / "encoder.pt")
    rate = trainer_of(task_arguments(benchmark, tmp_path, *model))._gate_rate.state_dict()
    assert rate == {"factor": MTTaGModel.gate_lr_factor} != {"factor": 1}


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


OPTIMIZERS = {"float32": {}, "half precision": dict(common__fp16=True, common__memory_efficient_fp16=True)}


@pytest.mark.parametrize("changes", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_the_norm_of_a_run_on_the_cpu_asks_nothing_of_a_gpu_beside_it(changes, corpus, tmp_path, monkeypatch):
    """fairseq's norm fails here: no GPU is behind what torch says of one."""
    trainer = trainer_here(corpus, tmp_path, *SMALL, **changes)
    norms, gradients = [], []
    for has_cuda in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda answer=has_cuda: answer)
        trainer._build_optimizer()
        trainer.optimizer._needs_sync = True  # as after a backward pass
        for name, parameter in trainer.get_model().named_parameters():
            parameter.grad = torch.full_like(parameter, 0.5)
            if ".experts." in name:  # no part of the norm
                parameter.expert = True
        norms.append(trainer.optimizer.clip_grad_norm(0.01, aggregate_norm_fn=lambda norm: 3 * norm))
        gradients.append([parameter.grad for parameter in unwrapped_optimizer(trainer.optimizer).params])
    assert norms[0] > 1 and torch.equal(*norms)
    assert all(map(torch.equal, *gradients))
