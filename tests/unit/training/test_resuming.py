"""What a run is told to go on from: there, and of this model, criterion and optimizer; else one sentence."""

import os
import shutil
from contextlib import contextmanager

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.file_io import PathManager
from omegaconf import OmegaConf, open_dict

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.errors import find_user_error
from fairseq_mtmoe.sparsify.upcycle import upcycle
from fairseq_mtmoe.training import resuming, stopping
from fairseq_mtmoe.training.resuming import adapt_epoch_position, drawn_in_epoch, with_epoch_position
from tests.golden.old_runs import OLD, RUNS
from tests.helpers.benchmark import make_benchmark, make_encoder, task_arguments
from tests.helpers.commands import training_arguments
from tests.helpers.refused import refused
from tests.helpers.text_to_text import make_t5, text_arguments
from tests.helpers.trainers import groups_of, state_of, trainer_here
from tests.helpers.training import run_here

SPARSE, DENSE = (str(OLD / name / "checkpoint_last.pt") for name in ("sparse", "dense"))
HALF = dict(common__fp16=True, common__fp16_no_flatten_grads=True)


def go_on(tmp_path, name, *options, data=OLD / "data", prepare=None, **changes):
    """The trainer of a run of 0.1.0 with other options, after it has loaded what they name."""
    trainer = trainer_here(data, tmp_path / "run", *RUNS[name], "--max-update", 100, *options, **changes)
    if prepare is not None:
        prepare(trainer)
    checkpoint_utils.load_checkpoint(trainer.cfg.checkpoint, trainer)
    return trainer


def save(trainer, path):
    """Write a checkpoint of the epoch's beginning to go on from."""
    epoch = trainer.get_train_iterator(1, load_dataset="train" not in trainer.task.datasets)
    epoch.next_epoch_itr()
    trainer.consolidate_optimizer()
    trainer.save_checkpoint(str(path), {"train_iterator": epoch.state_dict(), "val_loss": None})
    return path


@contextmanager
def user_error(*names):
    """`refused`, also where fairseq raises the sentence again as another exception."""
    with refused(*names) as caught:
        try:
            yield caught
        except Exception as error:
            raise find_user_error(error) or error from None


def sentence(tmp_path, *arguments, **keywords):
    """The sentence that a user sees instead."""
    with user_error() as caught:
        go_on(tmp_path, *arguments, **keywords)
    return str(caught.value)


def test_fine_tuning_begins_with_the_first_epoch_whenever_the_other_run_drew_its_batches(tmp_path, caplog):
    drawn, state = str(tmp_path / "drawn.pt"), file_io.load(SPARSE)
    state["extra_state"]["train_iterator"][resuming.DRAWN] = 7
    file_io.save(state, drawn)
    trainer = trainer_here(OLD / "data", tmp_path / "run", *RUNS["sparse"], "--finetune-from-model", drawn)
    with caplog.at_level("INFO"):
        assert checkpoint_utils.load_checkpoint(trainer.cfg.checkpoint, trainer)[1].next_epoch_idx == 1
    assert f"begins with the weights of {drawn}" in caplog.messages and "goes on" not in caplog.text


# ---- the same run ----


def digit_arguments(data, folder, pairs):
    return training_arguments(data, folder, "--lang-pairs", pairs, "--langs", "en,aa,bb,cc", "--max-update", 2)


def tagged(data, folder, tasks, encoder="encoder.pt"):
    return task_arguments(data, folder, "--init-encoder", data / encoder, "--glue-tasks", tasks, "--max-update", 2)


def texts(data, folder, task, model="t5.pt"):
    return text_arguments(data, folder, "--init-model", data / model, "--target-task", task, "--max-update", 2)


OTHER_RUNS = {
    "a pair in another's place": (digit_arguments, ["en-aa,en-bb"], ["en-aa,en-cc"], "--lang-pairs"),
    "an order": (tagged, ["rte,cola"], ["cola,rte"], "--glue-tasks"),
    "a task in text": (texts, ["rte"], ["cola"], "--source-task or --target-task"),
    "an encoder": (tagged, ["rte"], ["rte", "other.pt"], "encoder.pt"),
    "a T5": (texts, ["rte"], ["rte", "other_t5.pt"], "t5.pt"),
}


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmark")
    make_benchmark(folder, {"train": 20, "dev": 8})
    make_encoder(folder / "encoder.pt")
    state = file_io.load(str(folder / "encoder.pt"))
    next(iter(state["model"].values())).add_(1)
    file_io.save(state, str(folder / "other.pt"))
    make_t5(folder / "t5.pt")
    make_t5(folder / "other_t5.pt", seed=2)
    return folder


@pytest.mark.parametrize(("arguments", "first", "second", "name"), OTHER_RUNS.values(), ids=OTHER_RUNS)
def test_a_run_of_other_tasks_or_another_backbone_does_not_go_on(
    arguments, first, second, name, digits, benchmark, tmp_path
):
    data = digits if arguments is digit_arguments else benchmark
    run_here(arguments(data, tmp_path / "run", *first))
    last = tmp_path / "run" / "checkpoint_last.pt"
    before = last.read_bytes()
    with user_error() as caught:
        run_here((*arguments(data, tmp_path / "run", *second), "--max-update", 4))
    assert any(shown.endswith(name) for shown in caught.value.names), caught.value
    assert f"--finetune-from-model {last}" in caught.value.names and last.read_bytes() == before
    begun = run_here((*arguments(data, tmp_path / "new", *second), "--finetune-from-model", last))
    assert len(begun["losses"]) == 2


def test_a_run_goes_on_with_more_pairs_and_with_fewer(digits, tmp_path):
    for updates, pairs in ((2, "en-aa"), (4, "en-aa,en-bb"), (6, "en-bb")):
        options = (*digit_arguments(digits, tmp_path, pairs), "--max-update", updates)
        assert len(run_here(options)["losses"]) == 2


# ---- a checkpoint that is there ----


@pytest.mark.parametrize("option", ["--restore-file", "--continue-once", "--finetune-from-model"])
def test_a_file_that_is_asked_for_must_be_there(tmp_path, option, monkeypatch):
    missing = tmp_path / "missing.pt"
    with user_error("missing.pt", option):
        go_on(tmp_path, "sparse", option, missing)
    os.mkfifo(missing)
    with user_error("missing.pt", option):
        go_on(tmp_path, "sparse", option, missing)
    monkeypatch.setattr(PathManager, "path_requires_pathmanager", lambda name: name.startswith("s3://"))
    with user_error(option):
        go_on(tmp_path, "sparse", option, "s3://missing.pt")


def test_the_last_checkpoint_of_the_run_comes_before_the_one_to_begin_with(tmp_path):
    assert go_on(tmp_path, "sparse").get_num_updates() == 0
    last = tmp_path / "run" / "checkpoint_last.pt"
    last.parent.mkdir(exist_ok=True)
    os.symlink(tmp_path / "nowhere", last)
    with user_error("run/checkpoint_last.pt", "--save-dir"):
        go_on(tmp_path, "sparse", "--continue-once", SPARSE)
    last.unlink()
    assert go_on(tmp_path, "sparse", "--continue-once", SPARSE).get_num_updates() == 8
    os.symlink(SPARSE, last)
    assert go_on(tmp_path, "sparse", "--continue-once", tmp_path / "missing.pt").get_num_updates() == 8


def test_a_validation_is_made_up_for_by_a_run_that_goes_on_and_by_no_other(tmp_path, monkeypatch):
    made_up = []
    monkeypatch.setattr(stopping, "run_pending", lambda place, trainer: made_up.append(place))
    trainer = go_on(tmp_path, "sparse", "--restore-file", SPARSE)
    trainer.pending_validation = {"epoch": 1, "end_of_epoch": True}
    path = save(trainer, tmp_path / "owes.pt")
    again = go_on(tmp_path, "sparse", "--restore-file", path)
    (place,) = made_up
    assert (place.epoch, place.end_of_epoch(), place.state_dict()["epoch"]) == (1, True, 1)
    again.lr_step(2)
    go_on(tmp_path, "sparse", "--finetune-from-model", path)
    go_on(tmp_path, "sparse", "--restore-file", path, "--reset-dataloader")
    assert made_up == [place]


# ---- another model ----

WIDTHS = (
    "`--encoder-embed-dim` must be 8, `--decoder-embed-dim` 8, `--layernorm-embedding` off and "
    "`--decoder-attention-heads` 2 to load `{path}`, but they are 12, 12, on and 1 instead; base_moe, base_dense "
)
MODELS = (  # the run, its options, how the sentence begins
    ("sparse", "--encoder-embed-dim 12 --decoder-attention-heads 1 --layernorm-embedding", WIDTHS),
    ("sparse", "--encoder-attention-heads 4", "`--encoder-attention-heads` must be 2 to load"),  # no shape shows it
    ("sparse", "--expert-interval 2", "`--expert-interval` must be 1 to load `{path}`, but is 2"),
    ("sparse", "--num-experts 8", "`--num-experts` must be 4 as in the checkpoint's encoder.layers.0"),
    ("sparse", "--expert-gates base", "`--expert-gates` must be base,task to load"),
    ("sparse", "--expert-combine paper", "`--expert-combine` must be preserving to load"),
    ("sparse", "--shared-expert-dim 8", "`--shared-expert-dim` must be 0 to load"),
    ("sparse", "--arch base_dense_tiny", "`--arch` must be one with experts"),
    ("sparse", "--task-ids pair", "The tasks that the model tells apart must be aa,bb,cc,en to load"),
    ("dense", "--decoder-layers 3", "`--decoder-layers` must be 2 to load"),
    ("dense", "--lang-pairs en-aa,en-bb --langs en,aa,bb,dd,ee", "`--langs` must be aa,bb,cc,en to load"),
)


@pytest.mark.parametrize(("run", "options", "beginning"), MODELS, ids=[options for _, options, _ in MODELS])
def test_another_model_is_named_with_its_options(run, options, beginning, tmp_path):
    path = SPARSE if run == "sparse" else DENSE
    run = "dense" if "base_dense" in options else run
    shown = sentence(tmp_path, run, "--restore-file", path, *options.split())
    assert shown.startswith(beginning.format(path=path))


def test_the_number_of_positions_is_a_size(tmp_path):
    options = ("--encoder-learned-pos", "--decoder-learned-pos", "--max-target-positions", 30)
    path = save(go_on(tmp_path, "dense", *options), tmp_path / "saved.pt")
    with user_error("--max-target-positions"):
        go_on(tmp_path, "dense", "--restore-file", path, *options, "--max-target-positions", 20)


def test_another_dictionary_is_said_with_both_sizes(tmp_path):
    data = tmp_path / "data"
    shutil.copytree(OLD / "data", data)
    for lang in ("en", "aa", "bb", "cc"):
        dictionary = Dictionary.load(str(data / f"dict.{lang}.txt"))
        dictionary.add_symbol("more")
        dictionary.save(str(data / f"dict.{lang}.txt"))
    shown = sentence(tmp_path, "sparse", "--restore-file", SPARSE, data=data)
    assert "18 entries (with tokens for 4 languages), but has one of 19" in shown


# ---- another criterion or optimizer ----


def test_the_same_loss_goes_on_with_the_same_moments(tmp_path):
    """Ours is fairseq's: a run may change between the two, also one of 0.1.0, whose files name ours otherwise."""
    found = {}
    for path, name in ((SPARSE, "sparse"), (DENSE, "dense")):
        saved = file_io.load(path)["optimizer_history"][-1]["criterion_name"]
        assert saved.startswith("MoE") == (name == "sparse")
        for criterion in ("label_smoothed_cross_entropy", "moe_label_smoothed_cross_entropy"):
            trainer = go_on(tmp_path, name, "--restore-file", path, "--criterion", criterion)
            assert trainer.get_num_updates() == 8
            found[name, criterion] = state_of(trainer)
        moments = found[name, "label_smoothed_cross_entropy"]
        assert moments["0.exp_avg"].abs().sum() > 0
        assert all(torch.equal(value, moments[key]) for key, value in found[name, criterion].items())
    path = save(trainer, tmp_path / "saved.pt")
    assert file_io.load(str(path))["optimizer_history"][-1]["criterion_name"] == "LabelSmoothedCrossEntropyCriterion"


def take_another_loss(trainer):
    options = OmegaConf.create({"_name": "cross_entropy", "sentence_avg": False})
    trainer._criterion = trainer.task.build_criterion(options)


def take_another_optimizer(trainer):
    with open_dict(trainer.cfg):
        trainer.cfg.optimizer = {"_name": "nag", "momentum": 0.9, "weight_decay": 0.0, "lr": [0.1]}


OTHERS = {
    "loss": (dict(prepare=take_another_loss), "--criterion", "but is cross_entropy instead"),
    "optimizer": (dict(prepare=take_another_optimizer), "--optimizer", "must be adam or fused_adam to"),
    "precision": (HALF, "--optimizer", "but is one in half precision"),
}


@pytest.mark.parametrize(("changes", "option", "words"), OTHERS.values(), ids=OTHERS)
def test_another_criterion_or_optimizer_is_named(tmp_path, changes, option, words):
    with user_error(option, "--reset-optimizer") as caught:
        go_on(tmp_path, "dense", "--restore-file", DENSE, **changes)
    assert words in str(caught.value)
    trainer = go_on(tmp_path, "dense", "--restore-file", DENSE, "--reset-optimizer", **changes)
    assert trainer.get_num_updates() == 0


def test_embeddings_that_are_shared_or_not(tmp_path):
    """Two that were trained apart cannot become one; one that becomes two has no moments for the second."""
    plain = ("--arch", "base_dense", "--encoder-attention-heads", 2, "--decoder-attention-heads", 2)
    with_one = go_on(tmp_path, "dense", *plain, "--restore-file", DENSE, "--share-all-embeddings")
    assert with_one.get_num_updates() == 8
    with user_error("dense/checkpoint_last.pt", "--share-all-embeddings"):
        go_on(tmp_path, "dense", *plain, "--restore-file", DENSE)
    apart = go_on(tmp_path, "dense", *plain, "--restore-file", DENSE, "--reset-optimizer")
    path = save(apart, tmp_path / "apart.pt")
    with user_error("--share-all-embeddings"):
        go_on(tmp_path, "dense", *plain, "--restore-file", path, "--share-all-embeddings")


@pytest.mark.parametrize("optimizer", ["fused_adam", "adam"])
def test_moments_of_another_shape_are_named(tmp_path, optimizer):
    """`fused_adam` would write behind them; fairseq's would end in torch's traceback."""
    state, path = file_io.load(DENSE), str(tmp_path / "wrong.pt")
    state["last_optimizer_state"]["state"][0]["exp_avg"] = torch.zeros(3)
    file_io.save(state, path)
    with user_error("exp_avg", "encoder.embed_tokens.weight", "--reset-optimizer"):
        go_on(tmp_path, "dense", "--restore-file", path, "--optimizer", optimizer)


# ---- a stock model, upcycled ----


def test_a_stock_model_goes_on_as_a_sparse_one_with_its_moments(tmp_path):
    """fairseq's own task, model, criterion and Adam; then ours in the place of each."""
    stock = ("--task", "translation_multi_simple_epoch", "--lang-pairs", "en-aa,en-bb,en-cc", "--encoder-langtok",
             "tgt", "--decoder-langtok", "--arch", "transformer", "--encoder-attention-heads", 2,
             "--decoder-attention-heads", 2, "--share-all-embeddings")  # fmt: skip
    dense = trainer_here(OLD / "data", tmp_path / "stock", *RUNS["dense"], *stock)
    dense.train_step(groups_of(dense, 1)[0])
    path = save(dense, tmp_path / "dense.pt")
    file_io.save(upcycle("base_moe", file_io.load(str(path)), {"num_experts": 2}), str(tmp_path / "sparse.pt"))
    options = ("--arch", "base_moe", "--expert-interval", 2, "--num-experts", 2, "--share-all-embeddings",
               "--encoder-attention-heads", 2, "--decoder-attention-heads", 2)  # fmt: skip
    trainer = go_on(tmp_path, "sparse", *options, "--expert-gates", "base", "--dense-updates", 0,
                    "--continue-once", tmp_path / "sparse.pt")  # fmt: skip
    assert trainer.get_num_updates() == 1
    assert state_of(trainer)["0.exp_avg"].abs().sum() > 0


# ---- the position in an epoch ----


def position(iterations, **others):
    return {"train_iterator": {"epoch": 2, "iterations_in_epoch": iterations, **others}, "val_loss": 1.0}


@pytest.mark.parametrize(("before", "now", "place"), [(2, 4, 3), (2, 2, 6), (1, 4, 1), (3, 1, 18)])
def test_the_place_is_that_of_as_many_batches_or_the_earlier_one(before, now, place, caplog):
    found = adapt_epoch_position(with_epoch_position(position(6), before, 1), now)
    assert found["train_iterator"]["iterations_in_epoch"] == place and found["val_loss"] == 1.0
    assert drawn_in_epoch(found) == 1
    assert ("2 batches of this epoch are seen twice" in caplog.text) == (place == 1)


def test_an_exact_place_and_one_of_before_stay():
    exact = position(6, batches_in_epoch=12)
    assert adapt_epoch_position(with_epoch_position(exact, 2, 1), 4) == exact
    assert adapt_epoch_position(position(6), 4) == position(6) and drawn_in_epoch(position(6)) is None
    assert adapt_epoch_position(None, 4) is drawn_in_epoch(None) is None
    assert with_epoch_position({}, 4, 1) == {}  # fairseq's crash.pt
