"""Our trainer in one process: updates that are left out, options that cannot work, what ends with an epoch."""

import gc
import multiprocessing
import threading
from functools import partial

import pytest
import torch
from fairseq.data.iterators import BackgroundConsumer
from fairseq.logging import metrics
from fairseq.tasks.fairseq_task import FairseqTask
from fairseq.trainer import Trainer
from omegaconf import OmegaConf, open_dict

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.training import steps
from fairseq_mtmoe.training.option_check import refuse_what_cannot_work
from fairseq_mtmoe.training.trainer import SparseTrainer
from tests.helpers.refused import refused
from tests.helpers.trainers import NO_MEMORY, NO_NUMBER, WAYS, groups_of, state_of, take, trainer_here
from tests.helpers.training import train_here

SMALL = ("--max-tokens", 120, "--num-experts", 2)
HALF = dict(common__fp16=True, common__fp16_no_flatten_grads=True)


assert_equal = partial(torch.testing.assert_close, rtol=0, atol=0)


@pytest.fixture
def trainer_on(corpus, tmp_path):
    """A function that makes trainers of this run with further options and changes."""
    return partial(trainer_here, corpus, tmp_path, *SMALL)


def prices_of(model):
    return {name: buffer for name, buffer in model.named_buffers() if ".prices." in name}


def test_a_model_without_our_options_is_trained_as_fairseq_does(corpus, tmp_path):
    """In the place of fairseq's trainer and of no other; to the last bit, and what is not finite stops the run, too."""
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
        take(trainer, groups_of(trainer, 1), {0})
    assert isinstance(raised.value, FloatingPointError) or isinstance(raised.value.__context__, FloatingPointError)


@pytest.mark.parametrize(("way", "precision"), [*((way, {}) for way in WAYS), (NO_NUMBER, dict(common__bf16=True))])
def test_bad_updates_are_as_if_their_batches_were_not_there(way, precision, trainer_on):
    options = ("--update-freq", 2, "--store-ema", "--ema-decay", 0.5, "--dropout", 0.1)
    spoiled = trainer_on(*options, **precision)
    groups = groups_of(spoiled, 6)
    outputs = take(spoiled, groups, {1, 2, 4}, way)
    assert [output is None for output in outputs] == [False, True, True, False, True, False]
    without = trainer_on(*options, **precision)
    assert all(take(without, [groups[index] for index in (0, 3, 5)]))
    assert spoiled.get_num_updates() == without.get_num_updates() == 3
    assert_equal(state_of(spoiled), state_of(without))


def test_uncertainty_sampling_counts_what_updates_were_made_of(trainer_on):
    counted, seen = [], []
    for groups, spoiled in (((0, 1, 2, 3), {1, 3}), ((0, 2), ())):
        trainer = trainer_on("--sampling-method", "uncertainty", "--update-freq", 2)
        made = groups_of(trainer, 4)
        take(trainer, [made[index] for index in groups], spoiled, "infinite gradients of a finite loss")
        for found in (counted, seen):
            (state,) = trainer.task.get_checkpoint_dict().values()
            found.append(state["selection"])
            trainer.task.gather()  # which reports them, and counts anew
    assert counted[0]["updates"] == counted[1]["updates"] == 2 and counted[0]["sums"] == counted[1]["sums"]
    bits = [{name: each["bits"] for name, each in found["seen"].items()} for found in seen]
    assert_equal(*bits)
    assert all(each.any() for each in bits[1].values())


def test_bad_updates_are_counted_and_too_many_in_a_row_end_the_run(trainer_on):
    trainer = trainer_on("--max-nonfinite", 2)
    groups = groups_of(trainer, 5)
    take(trainer, groups[1:2])
    assert "nonfinite_updates" not in metrics.get_smoothed_values("train")
    take(trainer, groups, {0, 2, 4})
    assert metrics.get_smoothed_values("train")["nonfinite_updates"] == 3
    assert metrics.get_active_aggregators() == [metrics.get_meters("default")]
    with pytest.raises(UserError, match=r"2 times in a row at update 4 .*start again; no checkpoint with"):
        take(trainer, groups[:1], {0})
    for option, value in (("--dropout", "nan"), ("--max-nonfinite", -1)):
        with refused(option):
            trainer_on(option, value)


def test_a_run_whose_batches_are_all_too_large_ends_and_several_processes_leave_none_out(trainer_on, monkeypatch):
    """The others would add its gradients to theirs in another collective."""
    trainer = trainer_on()
    samples, *others = groups_of(trainer, 3)
    take(trainer, [samples] * 9, range(9), NO_MEMORY)
    take(trainer, others)
    take(trainer, [samples] * 9, range(9), NO_MEMORY)
    assert trainer.get_num_updates() == 2
    with refused("--max-tokens", "--batch-size"):
        take(trainer, [samples], {0}, NO_MEMORY)
    monkeypatch.setattr(steps, "several_processes", lambda: True)
    monkeypatch.setattr(steps.dist, "get_rank", lambda: 1)
    with refused("--max-tokens", "--update-freq", first=False) as caught:
        take(trainer, [samples], {0}, NO_MEMORY)
    assert str(caught.value).startswith("Process 1 ran out of memory at update 3")


def test_with_a_limit_of_0_the_first_ends_the_run_and_the_log_names_layers(trainer_on, caplog):
    trainer = trainer_on("--max-nonfinite", 0)
    groups = groups_of(trainer, 2)
    take(trainer, groups[:1])
    layer = trainer.get_model().decoder.layers[1]
    layer.fc1 = None  # only experts here
    with torch.no_grad():
        next(layer.moe.experts.parameters()).fill_(float("inf"))
    with pytest.raises(UserError, match=r"were not finite at update 2 \(`--max-nonfinite 0`\): lower"):
        take(trainer, groups[1:])
    assert "NaN detected in output of decoder.layers.1.moe" in caplog.text


@pytest.mark.parametrize("memory_efficient", [False, True])
def test_an_overflow_of_half_precision_lowers_the_scale_and_is_not_counted(memory_efficient, trainer_on):
    options = HALF | dict(common__memory_efficient_fp16=memory_efficient, common__fp16_init_scale=8)
    trainer = trainer_on("--max-nonfinite", 1, **options)
    groups = groups_of(trainer, 2)
    before = state_of(trainer)
    assert take(trainer, groups[:1], {0}, "infinite gradients of a finite loss") == [None]
    assert_equal(state_of(trainer), before)
    assert trainer.optimizer.scaler.loss_scale == 4 and trainer.get_num_updates() == 0
    assert take(trainer, groups[1:])[0]["loss"] > 0 and trainer.get_num_updates() == 1
    assert "nonfinite_updates" not in metrics.get_smoothed_values("train")
    trainer = trainer_on(**HALF, common__fp16_init_scale=2, common__min_loss_scale=1.5)
    with pytest.raises(UserError, match="Minimum loss scale reached"):
        take(trainer, groups[:1], {0}, "infinite gradients of a finite loss")


def test_any_task_is_told_of_sparsification_once_and_its_average_becomes_sparse_too(trainer_on):
    trainer = trainer_on("--dense-updates", 2, "--store-ema", "--ema-decay", 0.5, "--price-memory", 0.5)
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


def test_an_average_begins_with_a_seed_model(trainer_on, tmp_path):
    average = ("--store-ema", "--ema-decay", 0.5, "--ema-fp32")
    first = trainer_on(*average)
    take(first, groups_of(first, 2))
    first.consolidate_optimizer()
    seed = first.save_checkpoint(str(tmp_path / "seed.pt"), {})
    trainer = trainer_on(*average, "--ema-seed-model", seed)
    right, found = first.ema.get_model().state_dict(), trainer.ema.get_model().state_dict()
    assert_equal(found, right)
    assert_equal(trainer.ema.fp32_params, right)
    assert not all(map(torch.equal, right.values(), trainer.get_model().state_dict().values()))


def test_activations_that_are_computed_twice_count_once(trainer_on):
    runs = []
    for options in ((), ("--checkpoint-activations",)):
        trainer = trainer_on("--update-freq", 2, *options)
        take(trainer, groups_of(trainer, 3))
        prices = prices_of(trainer.get_model())
        runs.append({name.replace("_fsdp_wrapped_module.", ""): value for name, value in prices.items()})
    assert len(runs[0]) == 8
    torch.testing.assert_close(runs[1], runs[0], rtol=1e-5, atol=1e-6)


WRONG = [
    (dict(model__encoder_layerdrop=0.1), "--encoder-layerdrop"),
    (dict(distributed_training__ddp_backend="slowmo"), "--ddp-backend"),
    (dict(distributed_training__zero_sharding="os"), "--zero-sharding"),
    (dict(optimization__use_bmuf=True), "--use-bmuf"),
    (dict(common__amp=True), "--amp"),
    (dict(task__eval_bleu=True), "--eval-bleu"),
    (dict(checkpoint__checkpoint_suffix="_x", checkpoint__keep_best_checkpoints=2), "--checkpoint-suffix"),
    (dict(common__model_parallel_size=2), "--model-parallel-size"),
    (dict(distributed_training__pipeline_model_parallel=True), "--pipeline-model-parallel"),
    (dict(model__dense_updates=2, distributed_training__zero_sharding="os"), "--zero-sharding"),
    (dict(common__fp16=True, distributed_training__zero_sharding="os"), "--fp16-no-flatten-grads"),
]


@pytest.mark.parametrize(("changes", "option"), WRONG, ids=[option for _, option in WRONG])
def test_what_cannot_work_is_refused(changes, option, trainer_on):
    trainer = trainer_on("--dense-updates", changes.get("model__dense_updates", 0))
    cfg, model = trainer.cfg, trainer.get_model()
    OmegaConf.update(cfg, "distributed_training.distributed_world_size", 4)
    refuse_what_cannot_work(cfg, model)
    with open_dict(cfg):
        cfg.task.pop("eval_chrf")  # as in fairseq's own tasks
        for name, value in changes.items():
            OmegaConf.update(cfg, name.replace("__", "."), value)
    with refused(option):
        refuse_what_cannot_work(cfg, model)


def test_workers_end_with_their_epoch(corpus, tmp_path, monkeypatch):
    alive = {"train_step": [], "valid_step": []}

    def count(owner, name):
        step = getattr(owner, name)
        note = lambda: alive[name].append(len(multiprocessing.active_children()))  # noqa: E731
        monkeypatch.setattr(owner, name, lambda *args, **kwargs: note() or step(*args, **kwargs))

    count(SparseTrainer, "train_step")
    count(FairseqTask, "valid_step")
    gc.disable()
    try:
        options = ("--virtual-epoch-size", 60, "--max-tokens", 300, "--required-batch-size-multiple", 1, "--no-save")
        train_here(corpus, tmp_path, *options, "--num-workers", 1, "--data-buffer-size", 4, "--max-epoch", 5)
    finally:
        gc.enable()
    for counts in alive.values():  # a worker of the epoch, one of the validation, and one that is about to end
        assert len(counts) >= 4 and max(counts) <= 3 and counts[-1] <= counts[0] + 1


def test_a_run_that_ends_within_an_epoch_leaves_no_thread_that_loads(corpus, tmp_path):
    """An interpreter that ends beside one may crash in it."""
    options = ("--data-buffer-size", 2, "--max-update", 2, "--max-tokens", 120, "--no-save", "--disable-validation")
    before = set(threading.enumerate())  # other tests leave such threads in this process
    train_here(corpus, tmp_path / "run", *options)
    assert BackgroundConsumer not in {type(thread) for thread in set(threading.enumerate()) - before}
