"""Steps: weights and losses that are not finite, and a learning rate of the gates' own."""

import json
from types import SimpleNamespace

import pytest
import torch
from fairseq import utils
from torch import nn

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.file_io import newest_good_in
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.models.mt_tag import MTTaGModel
from fairseq_mtmoe.optim.state import MASTER, OptimizerState, trained_parameters
from fairseq_mtmoe.slots import expert_layers
from fairseq_mtmoe.training.steps import GateRate, are_finite, clip_on_cpu, unwrapped_optimizer
from tests.helpers.benchmark import make_benchmark, make_encoder, task_arguments
from tests.helpers.digits import make_digit_corpus
from tests.helpers.refused import refused
from tests.helpers.trainers import groups_of, spoil, trainer_here
from tests.helpers.training import run_here, train_here

SMALL = ("--max-tokens", 120, "--num-experts", 2, "--warmup-updates", 0, "--clip-norm", 0)
EACH = ("--save-interval-updates", 1, "--keep-interval-updates", 2)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_digit_corpus(tmp_path_factory.mktemp("digits"), train=200, valid=4, test=4)


def test_batches_that_are_left_out_are_neither_validated_nor_saved(corpus, tmp_path):
    """The first update makes weights so large that no loss is finite after it."""
    with refused("--max-nonfinite", "checkpoint_last.pt"):
        train_here(corpus, tmp_path, *SMALL, *EACH, "--lr", 1e37, "--max-nonfinite", 3)
    log = map(json.loads, (tmp_path / "mtmoe.jsonl").read_text().splitlines())
    assert [event["update"] for event in log if event["event"] == "valid"] == [1]
    assert {path.name for path in tmp_path.glob("checkpoint*.pt")} == {"checkpoint_1_1.pt", "checkpoint_last.pt"}


def test_weights_that_are_not_finite_are_not_saved(corpus, tmp_path):
    train_here(corpus, tmp_path, *SMALL, *EACH, "--max-update", 1)
    before = (tmp_path / "checkpoint_last.pt").read_bytes()
    lr = ("--lr", 2.3e38, "--weight-decay", 1, "--reset-optimizer")  # twice as much is more than float32 holds
    with pytest.raises(UserError, match=r"not finite after update 1, and are not saved: .* from `.*checkpoint_last"):
        train_here(corpus, tmp_path, *SMALL, *EACH, *lr, "--max-update", 3)
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == before

    state = file_io.load(str(tmp_path / "checkpoint_last.pt"))
    next(value for key, value in state["model"].items() if ".moe.experts." in key).view(-1)[5] = float("nan")
    file_io.save(state, str(tmp_path / "checkpoint_last.pt"))
    with refused("checkpoint_last.pt", "--restore-file", "checkpoint_best.pt"):
        train_here(corpus, tmp_path, *SMALL, *EACH, "--max-update", 3)
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
    options = (*SMALL, "--max-nonfinite", 3)
    trainer = trainer_here(corpus, tmp_path, *options)
    (good,), (bad,), (worse,) = groups_of(trainer, 3)
    for sample, way in ((good, None), (bad, "a loss that is no number"), (worse, "a loss that is no number")):
        if way:
            spoil(trainer, way)
        trainer.train_step([sample])
    place = {"train_iterator": {"epoch": 1, "iterations_in_epoch": 3}}
    trainer.consolidate_optimizer()
    trainer.save_checkpoint(str(tmp_path / "checkpoint_last.pt"), place)
    resumed = trainer_here(corpus, tmp_path, *options)
    resumed.load_checkpoint(str(tmp_path / "checkpoint_last.pt"))
    ((sample,),) = groups_of(resumed, 1)
    spoil(resumed, "a loss that is no number")
    with refused("--max-nonfinite"):
        resumed.train_step([sample])
    anew = trainer_here(corpus, tmp_path, *options)
    anew.load_checkpoint(str(tmp_path / "checkpoint_last.pt"), reset_meters=True)
    assert anew._nonfinite.state_dict() == {"total": 0, "in_a_row": 0}


# ---- the gates' rate ----

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


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmark")
    make_benchmark(folder, {"train": 32, "dev": 8})
    make_encoder(folder / "encoder.pt")
    return folder


def mt_tag(benchmark, folder, updates, *options):
    """The parameters of a run of MT-TaG, which goes on from what is in its folder."""
    model = ("--glue-tasks", "cola,stsb", "--init-encoder", benchmark / "encoder.pt", "--lr-scheduler", "fixed")
    found = run_here(task_arguments(benchmark, folder, *model, "--max-update", updates, *options))
    return found["parameters"]


def different(one, other):
    return {name.rpartition(".moe.")[2] for name, value in one.items() if (value != other[name]).any()}


def test_gates_of_mt_tag_have_a_rate_of_their_own_and_go_on_with_it(benchmark, tmp_path):
    asked = mt_tag(benchmark, tmp_path / "asked", 4, "--gate-lr-factor", MTTaGModel.gate_lr_factor)
    mt_tag(benchmark, tmp_path / "run", 2)
    assert not different(mt_tag(benchmark, tmp_path / "run", 4), asked)
    assert {"gate.weight", "blend"} <= different(mt_tag(benchmark, tmp_path / "one", 4, "--gate-lr-factor", 1), asked)


def test_a_run_of_before_goes_on_at_the_rate_that_it_had(benchmark, tmp_path, monkeypatch):
    with monkeypatch.context() as before:
        # Then there were no rate of the system and none of `blend`.
        before.setattr(MTTaGModel, "gate_lr_factor", 1.0)
        before.setattr(GateRate, "_parameters", lambda self, layer: [layer.gate.weight])
        whole = mt_tag(benchmark, tmp_path / "whole", 6)
        mt_tag(benchmark, tmp_path / "run", 2)
    path = str(tmp_path / "run" / "checkpoint_last.pt")
    state = file_io.load(path)
    del state["extra_state"]["gate_rate"], state["extra_state"]["GlueTask"]["gates"]
    file_io.save(state, path)
    mt_tag(benchmark, tmp_path / "run", 4)
    assert not different(mt_tag(benchmark, tmp_path / "run", 6), whole)  # resumed twice


# ---- the optimizer: what stays on the CPU where there is a GPU, which is pretended; what cannot be spread ----

TINY = ("--max-tokens", 120, "--num-experts", 2)
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
    trainer = trainer_here(corpus, tmp_path, *TINY, **changes)
    found = []
    for has_cuda in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda answer=has_cuda: answer)
        trainer._build_optimizer()
        trainer.optimizer._needs_sync = True  # as after a backward pass
        for parameter in trainer.get_model().parameters():
            parameter.grad = torch.full_like(parameter, 0.5)
        norm = trainer.optimizer.clip_grad_norm(0.01)
        found.append((norm, [parameter.grad for parameter in unwrapped_optimizer(trainer.optimizer).params]))
    (norm, gradients), (norm_beside, gradients_beside) = found
    assert norm > 1 and torch.equal(norm, norm_beside)
    assert all(map(torch.equal, gradients, gradients_beside))


def test_flat_gradients_cannot_be_spread(corpus, tmp_path):
    with refused("--fp16-no-flatten-grads", "--zero-sharding"):
        trainer_here(corpus, tmp_path, *TINY, **HALF, distributed_training__zero_sharding="os")
