"""Our trainer in one process: updates that are left out, options that cannot work, and whose place it takes."""

import copy
import os
from types import SimpleNamespace

import pytest
import torch
from fairseq.logging import metrics
from fairseq.trainer import Trainer
from omegaconf import OmegaConf, open_dict

from fairseq_mtmoe import register
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.training.option_check import refuse_what_cannot_work
from fairseq_mtmoe.training.trainer import SparseTrainer
from tests.helpers.digits import make_digit_corpus
from tests.helpers.trainers import WAYS, groups_of, spoil, state_of, trainer_here

SMALL = ("--max-tokens", 120, "--num-experts", 2)
HALF = dict(common__fp16=True, common__fp16_no_flatten_grads=True)
PRECISIONS = {"float32": {}, "bfloat16": dict(common__bf16=True)}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_digit_corpus(tmp_path_factory.mktemp("digits"), train=200, valid=4, test=4)


def take(trainer, groups, spoiled=(), way=None):
    """Train on each group of batches; `spoiled` are the numbers of those that go wrong in their last batch."""
    outputs = []
    for number, samples in enumerate(groups):
        if number in spoiled:
            spoil(trainer, way, call=len(samples) - 1)
        outputs.append(trainer.train_step(copy.deepcopy(samples)))
    return outputs


def assert_equal(found, right):
    assert set(found) == set(right)
    assert [name for name in right if not torch.equal(found[name], right[name])] == []


# ---- its place ----


def test_it_takes_the_place_of_fairseqs_trainer_and_of_no_other(corpus, tmp_path):
    register()
    ours = trainer_here(corpus, tmp_path, *SMALL)
    assert type(ours) is SparseTrainer
    arguments = (ours.cfg, ours.task, ours.get_model(), ours.get_criterion())
    others = type("Others", (Trainer,), {})
    assert type(others(*arguments)) is others and type(Trainer(*arguments)) is SparseTrainer


def test_a_model_without_our_options_is_trained_as_fairseq_does(corpus, tmp_path):
    """Our steps are fairseq's to the last bit, and what is not finite stops the run as it does there."""
    runs = []
    for kind in (type("Stock", (Trainer,), {}), Trainer):
        dense = trainer_here(corpus, tmp_path, "--arch", "base_dense_tiny", "--max-tokens", 120)
        with open_dict(dense.cfg.model):
            for option in ("max_nonfinite", "distributed_timeout"):
                dense.cfg.model.pop(option)
        trainer = kind(dense.cfg, dense.task, dense.get_model(), dense.task.build_criterion(dense.cfg.criterion))
        take(trainer, groups_of(trainer, 3))
        runs.append(state_of(trainer))
    assert_equal(*runs)
    assert_stops_as_fairseq_does(trainer)


def assert_stops_as_fairseq_does(trainer):
    """Its search for the layer fails on models that return dictionaries, while it handles its own error."""
    with pytest.raises((FloatingPointError, TypeError, StopIteration)) as raised:
        take(trainer, groups_of(trainer, 1), {0}, "a loss that is no number")
    assert isinstance(raised.value, FloatingPointError) or isinstance(raised.value.__context__, FloatingPointError)


# ---- updates that are left out ----


@pytest.mark.parametrize(("precision", "way"), [*(("float32", way) for way in WAYS), ("bfloat16", next(iter(WAYS)))])
def test_bad_updates_are_as_if_their_batches_were_not_there(precision, way, corpus, tmp_path):
    options = (*SMALL, "--update-freq", 2, "--store-ema", "--ema-decay", 0.5, "--dropout", 0.1)
    spoiled = trainer_here(corpus, tmp_path, *options, **PRECISIONS[precision])
    groups = groups_of(spoiled, 6)
    outputs = take(spoiled, groups, {1, 2, 4}, way)
    assert [output is None for output in outputs] == [False, True, True, False, True, False]
    without = trainer_here(corpus, tmp_path, *options, **PRECISIONS[precision])
    assert all(take(without, [groups[index] for index in (0, 3, 5)]))
    assert spoiled.get_num_updates() == without.get_num_updates() == 3
    assert_equal(state_of(spoiled), state_of(without))


def test_bad_updates_are_counted(corpus, tmp_path):
    trainer = trainer_here(corpus, tmp_path, *SMALL)
    groups = groups_of(trainer, 4)
    take(trainer, groups[:1])
    assert "nonfinite_updates" not in metrics.get_smoothed_values("train")
    take(trainer, groups, {0, 2}, "a loss that is no number")
    assert metrics.get_smoothed_values("train")["nonfinite_updates"] == 2
    assert metrics.get_active_aggregators() == [metrics.get_meters("default")]


def test_uncertainty_sampling_counts_what_updates_were_made_of(corpus, tmp_path):
    options = (*SMALL, "--sampling-method", "uncertainty", "--update-freq", 2)
    spoiled = trainer_here(corpus, tmp_path, *options)
    groups = groups_of(spoiled, 4)
    take(spoiled, groups, {1, 3}, "infinite gradients of a finite loss")
    without = trainer_here(corpus, tmp_path, *options)
    groups = groups_of(without, 4)
    take(without, [groups[0], groups[2]])
    (found,), (right,) = (trainer.task.get_checkpoint_dict().values() for trainer in (spoiled, without))
    assert found["selection"]["updates"] == right["selection"]["updates"] == 2
    assert found["selection"]["sums"] == right["selection"]["sums"]
    for trainer in (spoiled, without):
        trainer.task.gather()  # which reports them, and counts anew
    (found,), (right,) = (trainer.task.get_checkpoint_dict().values() for trainer in (spoiled, without))
    for name, seen in right["selection"]["seen"].items():
        assert seen["bits"].any() and torch.equal(found["selection"]["seen"][name]["bits"], seen["bits"]), name


def test_too_many_in_a_row_end_the_run(corpus, tmp_path):
    trainer = trainer_here(corpus, tmp_path, *SMALL, "--max-nonfinite", 2)
    groups = groups_of(trainer, 5)
    take(trainer, groups, {0, 2, 4}, "a loss that is no number")
    with pytest.raises(UserError, match=r"2 times in a row in the place of update 3 .*start again; no checkpoint with"):
        take(trainer, groups[:1], {0}, "a loss that is no number")


def test_with_a_limit_of_0_the_first_ends_the_run_and_the_log_names_layers(corpus, tmp_path, caplog):
    trainer = trainer_here(corpus, tmp_path, *SMALL, "--max-nonfinite", 0)
    groups = groups_of(trainer, 2)
    take(trainer, groups[:1])
    layer = trainer.get_model().decoder.layers[1]
    layer.fc1 = None  # only experts here
    with torch.no_grad():
        next(layer.moe.experts.parameters()).fill_(float("inf"))
    with pytest.raises(UserError, match=r"were not finite in the place of update 2 \(`--max-nonfinite 0`\): lower"):
        take(trainer, groups[1:])
    assert "NaN detected in output of decoder.layers.1.moe" in caplog.text


@pytest.mark.parametrize("memory_efficient", [False, True])
def test_an_overflow_of_half_precision_lowers_the_scale_and_is_not_counted(memory_efficient, corpus, tmp_path):
    options = HALF | dict(common__memory_efficient_fp16=memory_efficient, common__fp16_init_scale=8)
    trainer = trainer_here(corpus, tmp_path, *SMALL, "--max-nonfinite", 1, **options)
    groups = groups_of(trainer, 2)
    before = state_of(trainer)
    assert take(trainer, groups[:1], {0}, "infinite gradients of a finite loss") == [None]
    assert_equal(state_of(trainer), before)
    assert trainer.optimizer.scaler.loss_scale == 4 and trainer.get_num_updates() == 0
    assert take(trainer, groups[1:])[0]["loss"] > 0 and trainer.get_num_updates() == 1
    assert "nonfinite_updates" not in metrics.get_smoothed_values("train")


def test_a_scale_that_cannot_fall_further_ends_the_run(corpus, tmp_path):
    options = HALF | dict(common__fp16_init_scale=2, common__min_loss_scale=1.5)
    trainer = trainer_here(corpus, tmp_path, *SMALL, **options)
    with pytest.raises(UserError, match="Minimum loss scale reached"):
        take(trainer, groups_of(trainer, 1), {0}, "infinite gradients of a finite loss")


# ---- becoming sparse ----


def test_any_task_is_told_of_sparsification_and_its_average_becomes_sparse_too(corpus, tmp_path):
    trainer = trainer_here(corpus, tmp_path, *SMALL, "--dense-updates", 2, "--store-ema", "--ema-decay", 0.5)
    told = []
    trainer.task.sparsified = lambda update, num_experts, model: told.append((update, num_experts, model))
    groups = groups_of(trainer, 4)
    take(trainer, groups[:2])
    assert not told and trainer.get_model().is_dense and trainer.ema.get_model().is_dense
    take(trainer, groups[2:])
    assert told == [(2, 2, trainer.get_model())] and not trainer.get_model().is_dense
    experts = [
        {key for key in m.state_dict() if ".moe." in key} for m in (trainer.get_model(), trainer.ema.get_model())
    ]
    assert experts[0] and experts[0] == experts[1]


def test_an_average_begins_with_a_seed_model_that_executes_nothing(corpus, tmp_path):
    average = ("--store-ema", "--ema-decay", 0.5, "--ema-fp32")
    first = trainer_here(corpus, tmp_path, *SMALL, *average)
    take(first, groups_of(first, 2))
    first.consolidate_optimizer()
    seed = first.save_checkpoint(str(tmp_path / "seed.pt"), {})
    trainer = trainer_here(corpus, tmp_path, *SMALL, *average, "--ema-seed-model", seed)
    right, found = first.ema.get_model().state_dict(), trainer.ema.get_model().state_dict()
    assert_equal(found, right)
    assert_equal(trainer.ema.fp32_params, right)
    assert not all(map(torch.equal, right.values(), trainer.get_model().state_dict().values()))
    torch.save({"model": {}, "extra_state": {"ema": Touch(tmp_path / "executed")}}, seed)
    with pytest.raises(UserError, match="holds other Python objects"):
        assert trainer_here(corpus, tmp_path, *SMALL, *average, "--ema-seed-model", seed).ema
    assert not (tmp_path / "executed").exists()


class Touch:
    """Unpickling this makes a folder."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


# ---- prices ----


def prices_of(model):
    return {name: buffer for name, buffer in model.named_buffers() if ".prices." in name}


def test_prices_begin_at_sparsification_and_move_with_every_update(corpus, tmp_path):
    trainer = trainer_here(corpus, tmp_path, *SMALL, "--dense-updates", 2, "--price-memory", 0.5, "--store-ema")
    groups = groups_of(trainer, 4)
    take(trainer, groups[:2])
    assert not prices_of(trainer.get_model())
    take(trainer, groups[2:])
    weights = [value.item() for name, value in prices_of(trainer.get_model()).items() if name.endswith("weight")]
    assert weights == [0.75] * 4
    assert all(value.any() for value in prices_of(trainer.ema.get_model()).values())


def test_activations_that_are_computed_twice_count_once(corpus, tmp_path):
    runs = []
    for options in ((), ("--checkpoint-activations",)):
        trainer = trainer_here(corpus, tmp_path, *SMALL, "--update-freq", 2, *options)
        take(trainer, groups_of(trainer, 3))
        runs.append(
            {name.replace("_fsdp_wrapped_module.", ""): v for name, v in prices_of(trainer.get_model()).items()}
        )
    assert len(runs[0]) == 8 and runs[0].keys() == runs[1].keys()
    for name, value in runs[0].items():
        torch.testing.assert_close(runs[1][name], value, rtol=1e-5, atol=1e-6)


# ---- dummy batches ----


def test_expert_layers_are_idle_for_dummy_batches_alone(corpus, tmp_path):
    trainer = trainer_here(corpus, tmp_path, *SMALL)
    (real,), _ = groups_of(trainer, 2)
    layers = [slot.moe for slot in trainer._slots]
    assert layers
    for sample, idle in ((real, False), (None, True), (None, True), (real, False), ({}, True), (real, False)):
        assert trainer._prepare_sample(sample)[1] == idle
        assert {layer.idle for layer in layers} == {idle}


# ---- what cannot work ----


WRONG = {
    "encoder layers at random": (dict(model__encoder_layerdrop=0.1), "`--encoder-layerdrop` must be 0 with experts"),
    "another back end": (
        dict(distributed_training__ddp_backend="slowmo"),
        "`--ddp-backend` must be one of pytorch_ddp",
    ),
    "blocks of updates": (dict(optimization__use_bmuf=True), "`--use-bmuf` must be off"),
    "automatic precision": (dict(common__amp=True), "`--amp` must be off"),
    "translations in validation": (dict(task__eval_bleu=True), "`--eval-bleu` must be off with experts"),
    "parts of a model": (dict(common__model_parallel_size=2), "`--model-parallel-size` must be 1"),
    "a pipeline": (dict(distributed_training__pipeline_model_parallel=True), "`--pipeline-model-parallel` must be off"),
    "sparsification of a spread optimizer": (
        dict(model__dense_updates=2, distributed_training__zero_sharding="os"),
        "`--zero-sharding` must be none with `--dense-updates`",
    ),
}


@pytest.mark.parametrize(("changes", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_what_cannot_work_is_refused(changes, sentence, corpus, tmp_path):
    model = trainer_here(
        corpus, tmp_path, *SMALL, "--dense-updates", changes.get("model__dense_updates", 0)
    ).get_model()
    cfg = OmegaConf.create(
        {
            "model": {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "dense_updates": 0},
            "common": {"amp": False, "tpu": False, "model_parallel_size": 1},
            "optimization": {"use_bmuf": False},
            "task": {"eval_bleu": False},
            "distributed_training": {
                "ddp_backend": "pytorch_ddp", "zero_sharding": "none", "pipeline_model_parallel": False,
                "distributed_world_size": 4,
            },
        }
    )  # fmt: skip
    refuse_what_cannot_work(cfg, model)
    for name, value in changes.items():
        OmegaConf.update(cfg, name.replace("__", "."), value)
    for wrapped in (model, SimpleNamespace(module=model)):  # fully sharded models come wrapped
        if wrapped is model or "model__dense_updates" in changes:
            with pytest.raises(UserError, match=sentence):
                refuse_what_cannot_work(cfg, wrapped)


@pytest.mark.parametrize(("option", "value"), [("--max-nonfinite", -1), ("--distributed-timeout", 0)])
def test_numbers_out_of_range_are_named(option, value, corpus, tmp_path):
    with pytest.raises(UserError, match=f"`{option}` must be at least"):
        trainer_here(corpus, tmp_path, *SMALL, option, value)


@pytest.mark.parametrize("dense_updates", [0, 2])
def test_a_share_to_draw_anew_of_no_copies_is_said(dense_updates, corpus, tmp_path, caplog):
    trainer_here(corpus, tmp_path, *SMALL, "--expert-reinit-ratio", 0.5, "--dense-updates", dense_updates)
    said = [message for message in caplog.messages if "--expert-reinit-ratio 0.5 changes nothing" in message]
    assert len(said) == (dense_updates == 0)


@pytest.mark.parametrize("gates", ["base", "base,switch"])
def test_a_balancing_weight_without_a_switch_gate_is_said(gates, corpus, tmp_path, caplog):
    ours = ("--criterion", "moe_label_smoothed_cross_entropy", "--load-balancing-weight", 0.01, "--expert-gates", gates)
    trainer_here(corpus, tmp_path, *SMALL, *ours)
    said = [message for message in caplog.messages if "--load-balancing-weight 0.01 changes nothing" in message]
    assert len(said) == (gates == "base")
    caplog.clear()
    trainer_here(corpus, tmp_path, *SMALL, *ours[:2], "--expert-gates", gates)
    assert "changes nothing" not in caplog.text
