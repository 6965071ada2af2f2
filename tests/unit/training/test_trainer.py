"""Our trainer in one process: updates that are left out, options that cannot work, and whose place it takes."""

import copy
import os
from types import SimpleNamespace

import pytest
import torch
from fairseq.logging import metrics
from fairseq.trainer import Trainer
from omegaconf import OmegaConf, open_dict

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.training.option_check import refuse_what_cannot_work
from fairseq_mtmoe.training.trainer import SparseTrainer
from tests.helpers.digits import make_digit_corpus
from tests.helpers.refused import refused
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


def prices_of(model):
    return {name: buffer for name, buffer in model.named_buffers() if ".prices." in name}


def assert_equal(found, right):
    assert set(found) == set(right)
    assert [name for name in right if not torch.equal(found[name], right[name])] == []


# ---- its place ----


def test_a_model_without_our_options_is_trained_as_fairseq_does(corpus, tmp_path):
    """Our trainer takes the place of fairseq's and of no other. Its steps are fairseq's to the last bit, and what is
    not finite stops the run as it does there."""
    runs, stock = [], type("Stock", (Trainer,), {})
    for kind in (stock, Trainer):
        dense = trainer_here(corpus, tmp_path, "--arch", "base_dense_tiny", "--max-tokens", 120)
        with open_dict(dense.cfg.model):
            for option in ("max_nonfinite", "distributed_timeout"):
                dense.cfg.model.pop(option)
        trainer = kind(dense.cfg, dense.task, dense.get_model(), dense.task.build_criterion(dense.cfg.criterion))
        assert type(trainer) is (stock if kind is stock else SparseTrainer)
        take(trainer, groups_of(trainer, 3))
        runs.append(state_of(trainer))
    assert_equal(*runs)
    # fairseq's search for the layer fails on models that return dictionaries, while it handles its own error.
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


def test_bad_updates_are_counted_and_too_many_in_a_row_end_the_run(corpus, tmp_path):
    trainer = trainer_here(corpus, tmp_path, *SMALL, "--max-nonfinite", 2)
    groups = groups_of(trainer, 5)
    take(trainer, groups[1:2])
    assert "nonfinite_updates" not in metrics.get_smoothed_values("train")
    take(trainer, groups, {0, 2, 4}, "a loss that is no number")
    assert metrics.get_smoothed_values("train")["nonfinite_updates"] == 3
    assert metrics.get_active_aggregators() == [metrics.get_meters("default")]
    with pytest.raises(UserError, match=r"2 times in a row in the place of update 4 .*start again; no checkpoint with"):
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
    average = ("--store-ema", "--ema-decay", 0.5, "--price-memory", 0.5)
    trainer = trainer_here(corpus, tmp_path, *SMALL, "--dense-updates", 2, *average)
    told = []
    trainer.task.sparsified = lambda update, num_experts, model: told.append((update, num_experts, model))
    groups, model, mean = groups_of(trainer, 4), trainer.get_model(), trainer.ema.get_model()
    take(trainer, groups[:2])
    assert not told and model.is_dense and mean.is_dense and not prices_of(model)
    take(trainer, groups[2:])
    assert told == [(2, 2, model)] and not model.is_dense
    experts = [{key for key in found.state_dict() if ".moe." in key} for found in (model, mean)]
    assert experts[0] and experts[0] == experts[1]
    assert [value.item() for name, value in prices_of(model).items() if name.endswith("weight")] == [0.75] * 4
    assert all(value.any() for value in prices_of(mean).values())


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
    with refused("seed.pt"):
        assert trainer_here(corpus, tmp_path, *SMALL, *average, "--ema-seed-model", seed).ema
    assert not (tmp_path / "executed").exists()


class Touch:
    """Unpickling this makes a folder."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_activations_that_are_computed_twice_count_once(corpus, tmp_path):
    runs = []
    for options in ((), ("--checkpoint-activations",)):
        trainer = trainer_here(corpus, tmp_path, *SMALL, "--update-freq", 2, *options)
        take(trainer, groups_of(trainer, 3))
        prices = prices_of(trainer.get_model())
        runs.append({name.replace("_fsdp_wrapped_module.", ""): value for name, value in prices.items()})
    assert len(runs[0]) == 8
    torch.testing.assert_close(runs[1], runs[0], rtol=1e-5, atol=1e-6)


def test_expert_layers_are_idle_for_dummy_batches_alone(corpus, tmp_path):
    trainer = trainer_here(corpus, tmp_path, *SMALL)
    (real,), _ = groups_of(trainer, 2)
    layers = [slot.moe for slot in trainer._slots]
    assert layers
    for sample, idle in ((real, False), (None, True), (None, True), (real, False), ({}, True), (real, False)):
        assert trainer._prepare_sample(sample)[1] == idle
        assert {layer.idle for layer in layers} == {idle}


# ---- what cannot work ----


WRONG = [
    (dict(model__encoder_layerdrop=0.1), "--encoder-layerdrop"),
    (dict(distributed_training__ddp_backend="slowmo"), "--ddp-backend"),
    (dict(optimization__use_bmuf=True), "--use-bmuf"),
    (dict(common__amp=True), "--amp"),
    (dict(task__eval_bleu=True), "--eval-bleu"),
    (dict(common__model_parallel_size=2), "--model-parallel-size"),
    (dict(distributed_training__pipeline_model_parallel=True), "--pipeline-model-parallel"),
    (dict(model__dense_updates=2, distributed_training__zero_sharding="os"), "--zero-sharding"),
]


@pytest.mark.parametrize(("changes", "option"), WRONG, ids=[option for _, option in WRONG])
def test_what_cannot_work_is_refused(changes, option, corpus, tmp_path):
    dense_updates = changes.get("model__dense_updates", 0)
    trainer = trainer_here(corpus, tmp_path, *SMALL, "--dense-updates", dense_updates)
    cfg, model = trainer.cfg, trainer.get_model()
    OmegaConf.update(cfg, "distributed_training.distributed_world_size", 4)
    refuse_what_cannot_work(cfg, model)
    with open_dict(cfg):
        cfg.task.pop("eval_chrf")  # as in fairseq's own tasks
        for name, value in changes.items():
            OmegaConf.update(cfg, name.replace("__", "."), value)
    for wrapped in (model, SimpleNamespace(module=model)) if dense_updates else (model,):  # as fully sharded ones come
        with refused(option):
            refuse_what_cannot_work(cfg, wrapped)


@pytest.mark.parametrize(("option", "value"), [("--max-nonfinite", -1), ("--distributed-timeout", 0)])
def test_numbers_out_of_range_are_named(option, value, corpus, tmp_path):
    with refused(option):
        trainer_here(corpus, tmp_path, *SMALL, option, value)


BALANCED = ("--criterion", "moe_label_smoothed_cross_entropy", "--load-balancing-weight", 0.01, "--expert-gates")


@pytest.mark.parametrize(
    ("options", "does_nothing"),
    [
        (("--expert-reinit-ratio", 0.5), True),
        (("--expert-reinit-ratio", 0.5, "--dense-updates", 2), False),
        ((*BALANCED, "base"), True),
        ((*BALANCED, "base,switch"), False),
    ],
)
def test_an_option_that_changes_nothing_is_said(options, does_nothing, corpus, tmp_path, caplog):
    trainer_here(corpus, tmp_path, *SMALL, *options)
    assert ("changes nothing" in caplog.text) == does_nothing
