"""What a run is told to go on from: there, and of this model and optimizer; else one sentence. And how it samples."""

import os
import shutil

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager
from omegaconf import OmegaConf, open_dict

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.rewriting import average
from fairseq_mtmoe.core.errors import UserError, find_user_error
from fairseq_mtmoe.report.run_log import read
from fairseq_mtmoe.training import resuming
from fairseq_mtmoe.training.resuming import adapt_epoch_position, drawn_in_epoch, with_epoch_position
from tests.golden.runs import FROZEN, RUNS
from tests.helpers.benchmark import task_arguments
from tests.helpers.commands import training_arguments
from tests.helpers.refused import refused
from tests.helpers.scheduled import rarely
from tests.helpers.trainers import groups_of, state_of, take, trainer_here
from tests.helpers.training import run_here, train_here

SPARSE, DENSE = (str(FROZEN / name / "checkpoint_last.pt") for name in ("sparse", "dense"))


def go_on(tmp_path, name, *options, data=FROZEN / "data", prepare=None, **changes):
    """The trainer of a frozen run with other options, after it has loaded what they name."""
    trainer = trainer_here(data, tmp_path / "run", *RUNS[name], "--max-update", 100, *options, **changes)
    if prepare is not None:
        prepare(trainer)
    plainly(checkpoint_utils.load_checkpoint, trainer.cfg.checkpoint, trainer)
    return trainer


def plainly(function, *arguments):
    """Call it; a sentence that fairseq raises again as another exception is raised alone."""
    try:
        return function(*arguments)
    except Exception as error:
        raise find_user_error(error) or error from None


def save(trainer, path):
    """Write a checkpoint of the epoch's beginning to go on from."""
    epoch = trainer.get_train_iterator(1, load_dataset="train" not in trainer.task.datasets)
    epoch.next_epoch_itr()
    trainer.consolidate_optimizer()
    trainer.save_checkpoint(str(path), {"train_iterator": epoch.state_dict(), "val_loss": None})
    return path


def test_fine_tuning_begins_with_the_first_epoch_whenever_the_other_run_drew_its_batches(tmp_path, caplog):
    drawn, state = str(tmp_path / "drawn.pt"), file_io.load(SPARSE)
    state["extra_state"]["train_iterator"][resuming.DRAWN] = 7
    file_io.save(state, drawn)
    trainer = trainer_here(FROZEN / "data", tmp_path / "run", *RUNS["sparse"], "--finetune-from-model", drawn)
    with caplog.at_level("INFO"):
        assert checkpoint_utils.load_checkpoint(trainer.cfg.checkpoint, trainer)[1].next_epoch_idx == 1
    assert f"starts from the weights of {drawn}" in caplog.messages and "continues" not in caplog.text


def digit_arguments(data, folder, pairs):
    return training_arguments(data, folder, "--lang-pairs", pairs, "--langs", "en,aa,bb,cc", "--max-update", 2)


def tagged(data, folder, tasks, encoder="encoder.pt"):
    return task_arguments(data, folder, "--init-encoder", data / encoder, "--glue-tasks", tasks, "--max-update", 2)


OTHER_RUNS = {
    "a pair in another's place": (digit_arguments, ["en-aa,en-bb"], ["en-aa,en-cc"], "--lang-pairs"),
    "an order": (tagged, ["rte,cola"], ["cola,rte"], "--glue-tasks"),
    "an encoder": (tagged, ["rte"], ["rte", "other.pt"], "encoder.pt"),
}


@pytest.fixture
def encoders(benchmark, tmp_path):
    data = shutil.copytree(benchmark, tmp_path / "data")
    state = file_io.load(str(data / "encoder.pt"))
    next(iter(state["model"].values())).add_(1)
    file_io.save(state, str(data / "other.pt"))
    return data


@pytest.mark.parametrize(
    ("arguments", "first", "second", "name"),
    rarely(OTHER_RUNS, "an encoder", "an order", given=OTHER_RUNS),
)
def test_a_run_of_other_tasks_or_backbones_does_not_go_on(arguments, first, second, name, corpus, encoders, tmp_path):
    data = corpus if arguments is digit_arguments else encoders
    run_here(arguments(data, tmp_path / "run", *first))
    last = tmp_path / "run" / "checkpoint_last.pt"
    before = last.read_bytes()
    with refused() as caught:
        plainly(run_here, (*arguments(data, tmp_path / "run", *second), "--max-update", 4))
    assert any(shown.endswith(name) for shown in caught.value.names), caught.value
    assert f"--finetune-from-model {last}" in caught.value.names and last.read_bytes() == before
    begun = run_here((*arguments(data, tmp_path / "new", *second), "--finetune-from-model", last))
    assert len(begun["losses"]) == 2


def test_a_run_goes_on_with_more_pairs_and_with_fewer(corpus, tmp_path):
    for updates, pairs in ((2, "en-aa"), (4, "en-aa,en-bb"), (6, "en-bb")):
        options = (*digit_arguments(corpus, tmp_path, pairs), "--max-update", updates)
        assert len(run_here(options)["losses"]) == 2


@pytest.mark.parametrize(
    "option", rarely(["--restore-file", "--continue-once", "--finetune-from-model"], "--continue-once")
)
def test_a_file_that_is_asked_for_must_be_there(tmp_path, option, monkeypatch):
    monkeypatch.setattr(PathManager, "path_requires_pathmanager", lambda name: name.startswith("s3://"))
    os.mkfifo(tmp_path / "pipe.pt")
    for path in (tmp_path / "missing.pt", tmp_path / "pipe.pt", "s3://missing.pt"):
        with refused(os.path.basename(path), option):
            go_on(tmp_path, "sparse", option, path)


def test_the_last_checkpoint_of_the_run_comes_before_the_one_to_begin_with(tmp_path):
    assert go_on(tmp_path, "sparse").get_num_updates() == 0
    last = tmp_path / "run" / "checkpoint_last.pt"
    last.parent.mkdir(exist_ok=True)
    os.symlink(tmp_path / "nowhere", last)
    with refused("run/checkpoint_last.pt", "--save-dir"):
        go_on(tmp_path, "sparse", "--continue-once", SPARSE)
    last.unlink()
    assert go_on(tmp_path, "sparse", "--continue-once", SPARSE).get_num_updates() == 8
    os.symlink(SPARSE, last)
    assert go_on(tmp_path, "sparse", "--continue-once", tmp_path / "missing.pt").get_num_updates() == 8


WIDTHS = (
    "`--encoder-embed-dim` must be 8, but is 12, and `--decoder-embed-dim` must be 8, but is 12, and "
    "`--layernorm-embedding` must be off, but is on, and `--decoder-attention-heads` must be 2, but is 1, to load "
)
MODELS = (  # the run, its options, how the sentence begins
    ("sparse", "--encoder-embed-dim 12 --decoder-attention-heads 1 --layernorm-embedding", WIDTHS),
    ("sparse", "--encoder-attention-heads 4", "`--encoder-attention-heads` must be 2, but is 4"),  # no shape shows it
    ("sparse", "--num-experts 8", "`--num-experts` must be 4 as in the checkpoint's encoder.layers.0"),
    ("sparse", "--arch base_dense_tiny", "`--arch` must be one with experts"),
    ("sparse", "--task-ids pair", "The model's tasks must be aa,bb,cc,en to load"),
    ("dense", "--lang-pairs en-aa,en-bb --langs en,aa,bb,dd,ee", "DATA and `--langs` must give"),
)


@pytest.mark.parametrize(("run", "options", "beginning"), MODELS, ids=[options for _, options, _ in MODELS])
def test_another_model_is_named_with_its_options(run, options, beginning, tmp_path):
    path = SPARSE if run == "sparse" else DENSE
    run = "dense" if "base_dense" in options else run
    with refused() as caught:
        go_on(tmp_path, run, "--restore-file", path, *options.split())
    assert str(caught.value).startswith(beginning)


def test_another_dictionary_is_said_with_both_sizes(tmp_path):
    data = shutil.copytree(FROZEN / "data", tmp_path / "data")
    for path in data.glob("dict.*.txt"):
        path.write_text(f"{path.read_text()}more 1\n")
    with pytest.raises(UserError, match=r"the 18 symbols of .*, but give 19"):
        go_on(tmp_path, "sparse", "--restore-file", SPARSE, data=data)


def test_the_same_loss_goes_on_with_the_same_moments(tmp_path):
    """Ours is fairseq's: a run may change between the two."""
    found = {}
    for path, name in ((SPARSE, "sparse"), (DENSE, "dense")):
        for criterion in ("label_smoothed_cross_entropy", "moe_label_smoothed_cross_entropy"):
            trainer = go_on(tmp_path, name, "--restore-file", path, "--criterion", criterion)
            assert trainer.get_num_updates() == 8
            found[name, criterion] = state_of(trainer)
        moments = found[name, "label_smoothed_cross_entropy"]
        assert moments["0.exp_avg"].any()
        torch.testing.assert_close(found[name, criterion], moments, rtol=0, atol=0)


def take_another_loss(trainer):
    options = OmegaConf.create({"_name": "cross_entropy", "sentence_avg": False})
    trainer._criterion = trainer.task.build_criterion(options)


def take_another_optimizer(trainer):
    with open_dict(trainer.cfg):
        trainer.cfg.optimizer = {"_name": "nag", "momentum": 0.9, "weight_decay": 0.0, "lr": [0.1]}


HALF = dict(common__fp16=True, common__fp16_no_flatten_grads=True)
OTHERS = {
    "loss": (dict(prepare=take_another_loss), "--criterion", "but has CrossEntropyCriterion instead"),
    "optimizer": (dict(prepare=take_another_optimizer), "--optimizer", "must have the class FairseqAdam to"),
    "precision": (HALF, "--optimizer", "but has FP16Optimizer"),
}


@pytest.mark.parametrize(("changes", "option", "words"), OTHERS.values(), ids=OTHERS)
def test_another_criterion_or_optimizer_is_named(tmp_path, changes, option, words):
    with refused(option, "--reset-optimizer") as caught:
        go_on(tmp_path, "dense", "--restore-file", DENSE, **changes)
    assert words in str(caught.value)
    trainer = go_on(tmp_path, "dense", "--restore-file", DENSE, "--reset-optimizer", **changes)
    assert trainer.get_num_updates() == 0


def test_another_optimizer_in_half_precision_is_named(tmp_path, monkeypatch):
    """fairseq compares the wrapper's name alone."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    half = dict(common__bf16=True)
    begun = trainer_here(FROZEN / "data", tmp_path / "run", *RUNS["dense"], "--max-update", 100, **half)
    take(begun, groups_of(begun, 1))
    path = save(begun, tmp_path / "half.pt")
    assert go_on(tmp_path, "dense", "--restore-file", path, **half).get_num_updates() == 1
    with refused("--optimizer", "--reset-optimizer"):
        go_on(tmp_path, "dense", "--restore-file", path, prepare=take_another_optimizer, **half)


def test_a_schedule_whose_state_says_nothing_to_another_is_named(tmp_path):
    state, fixed = torch.load(DENSE), tmp_path / "fixed.pt"
    state["optimizer_history"][-1]["lr_scheduler_state"] = {"lr": 0.01}  # as of `--lr-scheduler fixed`
    torch.save(state, fixed)
    with refused("--lr-scheduler", "--reset-lr-scheduler"):
        go_on(tmp_path, "dense", "--restore-file", fixed)
    assert go_on(tmp_path, "dense", "--restore-file", fixed, "--reset-lr-scheduler").get_num_updates() == 8


def test_embeddings_that_are_shared_or_not(tmp_path):
    """Two that were trained apart cannot become one; one that becomes two has no moments for the second."""
    plain = ("--arch", "base_dense", "--encoder-attention-heads", 2, "--decoder-attention-heads", 2)
    with_one = go_on(tmp_path, "dense", *plain, "--restore-file", DENSE, "--share-all-embeddings")
    assert with_one.get_num_updates() == 8
    with refused("dense/checkpoint_last.pt", "--share-all-embeddings"):
        go_on(tmp_path, "dense", *plain, "--restore-file", DENSE)
    apart = go_on(tmp_path, "dense", *plain, "--restore-file", DENSE, "--reset-optimizer")
    path = save(apart, tmp_path / "apart.pt")
    with refused("--share-all-embeddings"):
        go_on(tmp_path, "dense", *plain, "--restore-file", path, "--share-all-embeddings")


def test_moments_of_another_shape_are_named(tmp_path):
    """fairseq's Adam would end in torch's traceback."""
    state, path = file_io.load(DENSE), str(tmp_path / "wrong.pt")
    state["last_optimizer_state"]["state"][0]["exp_avg"] = torch.zeros(3)
    file_io.save(state, path)
    with refused("exp_avg", "encoder.embed_tokens.weight", "--reset-optimizer"):
        go_on(tmp_path, "dense", "--restore-file", path)


def position(iterations, **others):
    return {"train_iterator": {"epoch": 2, "iterations_in_epoch": iterations, **others}, "val_loss": 1.0}


@pytest.mark.parametrize(("before", "now", "iterations"), [(2, 4, 3), (2, 2, 6), (1, 4, 1), (3, 1, 18)])
def test_the_position_is_that_of_as_many_batches_or_the_earlier_one(before, now, iterations, caplog):
    found = adapt_epoch_position(with_epoch_position(position(6), before, 1), now)
    assert found["train_iterator"]["iterations_in_epoch"] == iterations and found["val_loss"] == 1.0
    assert drawn_in_epoch(found) == 1
    assert ("2 batches of this epoch are seen twice" in caplog.text) == (iterations == 1)


def test_an_exact_position_stays_and_fairseqs_own_iterator_reads_it(caplog):
    exact = with_epoch_position(position(6, batches_in_epoch=13, sampling=None), 2, 1)
    found = adapt_epoch_position(exact, 4)
    assert found["train_iterator"] == {**exact["train_iterator"], "iterations_in_epoch": 3} and not caplog.text
    ours = position(6, batches_in_epoch=12, sampling={"seed": 1})
    assert adapt_epoch_position(with_epoch_position(ours, 2, 1), 4) == ours
    assert adapt_epoch_position(None, 4) is drawn_in_epoch(None) is None
    assert with_epoch_position({}, 4, 1) == {}  # fairseq's crash.pt


HEATED = ("--heating-coefficient", 3, "--virtual-epoch-size", 150, "--max-tokens", 400, "--disable-validation")


def sampling(folder):
    return [event for event in read(folder) if event["event"] == "sampling"]


def temperatures(folder):
    return [event["temperature"] for event in sampling(folder)]


def test_a_finished_run_goes_on_without_cooling_down(corpus, tmp_path):
    """`--heating-epochs` is the `--max-epoch` that the run began with, and not the one that it goes on with."""
    train_here(corpus, tmp_path / "longer", *HEATED, "--max-epoch", 2)
    longer = train_here(corpus, tmp_path / "longer", *HEATED, "--max-epoch", 4)
    whole = train_here(corpus, tmp_path / "whole", *HEATED, "--max-epoch", 4, "--heating-epochs", 2)
    assert temperatures(tmp_path / "longer") == temperatures(tmp_path / "whole")
    assert temperatures(tmp_path / "longer") == pytest.approx([1.5, 1.5 * np.sqrt(2.5), 3.0, 3.0])
    np.testing.assert_equal(longer["parameters"], whole["parameters"])


LONG = (*HEATED[:2], "--max-tokens", 120, "--disable-validation")  # one epoch, in parts


@pytest.mark.parametrize(("options", "heating", "end"), [(HEATED, 9, 12), (LONG, 12, 14)], ids=["epochs", "one epoch"])
def test_heating_by_update_resumes_in_the_middle_of_an_epoch(options, heating, end, corpus, tmp_path):
    """`--heating-updates` is remembered: the run that goes on is not given it, nor a `--max-epoch`."""
    by_update = (*options, "--heating-updates", heating)
    train_here(corpus, tmp_path / "parts", *by_update, "--max-update", 7)
    parts = train_here(corpus, tmp_path / "parts", *options, "--max-update", end)
    whole = train_here(corpus, tmp_path / "whole", *by_update, "--max-update", end)
    events = sampling(tmp_path / "whole")
    begins = [event["updates_before"] for event in events]
    assert begins[0] == 0 and 7 not in [event["updates_before"] for event in events if event["part"] == 0]
    expected = [1.5 * np.sqrt(1 + 3 * min(update, heating) / heating) for update in begins]
    assert temperatures(tmp_path / "parts") == temperatures(tmp_path / "whole") == pytest.approx(expected)
    np.testing.assert_equal(parts["parameters"], whole["parameters"])
    if options == LONG:
        assert [(event["epoch"], event["part"]) for event in events] == [(1, part) for part in range(len(events))]
        shares = [event["probabilities"]["en-cc"] for event in events]
        assert begins[-1] == heating and shares[-1] > 1.5 * shares[0]


SCHEDULES = {
    "polynomial_decay": {},
    "reduce_lr_on_plateau": {
        "_name": "reduce_lr_on_plateau", "lr": [0.01], "warmup_updates": 2, "warmup_init_lr": 0.0, "lr_patience": 3,
        "lr_shrink": 0.1, "lr_threshold": 1e-4, "maximize_best_checkpoint_metric": False,
    },
}  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_updates_and_learning_rate_go_on_without_moments(schedule, tmp_path, caplog):
    def take_schedule(trainer):
        with open_dict(trainer.cfg):
            trainer.cfg.lr_scheduler = schedule or trainer.cfg.lr_scheduler

    def start(*options):
        return go_on(tmp_path, "sparse", *options, prepare=take_schedule)

    first = start("--restore-file", SPARSE, "--reset-lr-scheduler")
    if "lr_patience" in schedule:
        first.optimizer.set_lr(0.003)
        first.lr_scheduler.lr_scheduler.num_bad_epochs = 2
    path = save(first, tmp_path / "saved.pt")
    mean = tmp_path / "mean.pt"
    file_io.save(average([path]), str(mean))  # without moments, as with `--no-save-optimizer-state`
    with caplog.at_level("INFO"):
        whole, later = (start("--restore-file", file) for file in (path, mean))
    assert later.get_num_updates() == 8 and later.get_lr() == whole.get_lr() == first.get_lr() > 0
    assert later.lr_scheduler.state_dict() == whole.lr_scheduler.state_dict()
    assert resuming.plateau_state(later) == resuming.plateau_state(whole) == resuming.plateau_state(first)
    assert not later.optimizer.state_dict()["state"] and whole.optimizer.state_dict()["state"]
    assert caplog.messages.count(resuming.NO_MOMENTS) == 1
    for begin in (("--reset-optimizer", "--restore-file"), ("--finetune-from-model",)):
        assert start(*begin, mean).get_num_updates() == 0
