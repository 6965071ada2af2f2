"""What a run is told to go on from: there, and of this model, criterion and optimizer; else one sentence."""

import os
import re

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.file_io import PathManager
from omegaconf import OmegaConf, open_dict

from fairseq_mtmoe import register
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.errors import find_user_error
from fairseq_mtmoe.sparsify.upcycle import upcycle
from fairseq_mtmoe.training import resuming, stopping
from fairseq_mtmoe.training.resuming import adapt_epoch_position, drawn_in_epoch, with_epoch_position
from tests.golden.old_runs import OLD, RUNS
from tests.helpers.benchmark import make_benchmark, make_encoder, task_arguments
from tests.helpers.commands import training_arguments
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


def sentence(tmp_path, *arguments, **keywords):
    """The sentence that a user sees instead."""
    with pytest.raises(Exception) as caught:
        go_on(tmp_path, *arguments, **keywords)
    error = find_user_error(caught.value)
    assert error is not None, caught.value
    assert "\n" not in str(error)
    return str(error)


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
    "a pair in another's place": (
        digit_arguments,
        ["en-aa,en-bb"],
        ["en-aa,en-cc"],
        "`--lang-pairs` must be en-aa,en-",
    ),
    "an order": (tagged, ["rte,cola"], ["cola,rte"], "`--glue-tasks` must be rte,cola, to go on from"),
    "a task in text": (texts, ["rte"], ["cola"], "`--source-task or --target-task` must be rte, to go on from"),
    "an encoder": (tagged, ["rte"], ["rte", "other.pt"], "encoder.pt`, as when the run of"),
    "a T5": (texts, ["rte"], ["rte", "other_t5.pt"], "t5.pt`, as when the run of"),
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


@pytest.mark.parametrize("what", OTHER_RUNS)
def test_a_run_of_other_tasks_or_another_backbone_does_not_go_on(what, digits, benchmark, tmp_path):
    arguments, first, second, words = OTHER_RUNS[what]
    data = digits if arguments is digit_arguments else benchmark
    run_here(arguments(data, tmp_path / "run", *first))
    last = tmp_path / "run" / "checkpoint_last.pt"
    before = last.read_bytes()
    with pytest.raises(Exception) as caught:
        run_here((*arguments(data, tmp_path / "run", *second), "--max-update", 4))
    said = str(find_user_error(caught.value))
    assert words in said and f"`--finetune-from-model {last}`" in said and "\n" not in said
    assert last.read_bytes() == before
    begun = run_here((*arguments(data, tmp_path / "new", *second), "--finetune-from-model", last))
    assert len(begun["losses"]) == 2


def test_a_run_goes_on_with_more_pairs_and_with_fewer(digits, tmp_path):
    for updates, pairs in ((2, "en-aa"), (4, "en-aa,en-bb"), (6, "en-bb")):
        options = (*digit_arguments(digits, tmp_path, pairs), "--max-update", updates)
        assert len(run_here(options)["losses"]) == 2


# ---- a checkpoint that is there ----


def test_a_run_that_names_none_begins_anew(tmp_path):
    register()
    assert go_on(tmp_path, "sparse").get_num_updates() == 0
    assert go_on(tmp_path, "sparse", "--restore-file", "checkpoint_last.pt").get_num_updates() == 0


@pytest.mark.parametrize("option", ["--restore-file", "--continue-once", "--finetune-from-model"])
def test_a_file_that_is_asked_for_must_be_there(tmp_path, option):
    missing = tmp_path / "missing.pt"
    assert sentence(tmp_path, "sparse", option, missing) == (
        f"`{missing}` must be a checkpoint to go on from (`{option}`), but there is none."
    )
    os.mkfifo(missing)
    assert sentence(tmp_path, "sparse", option, missing).endswith("but is a pipe instead.")


def test_the_last_checkpoint_of_the_run_comes_before_the_one_to_begin_with(tmp_path):
    (tmp_path / "run").mkdir()
    os.symlink(tmp_path / "nowhere", tmp_path / "run" / "checkpoint_last.pt")
    assert sentence(tmp_path, "sparse", "--continue-once", SPARSE) == (
        f"`{tmp_path}/run/checkpoint_last.pt` must be a checkpoint to go on from (`--save-dir`), but is a link that "
        "leads nowhere."
    )
    (tmp_path / "run" / "checkpoint_last.pt").unlink()
    assert go_on(tmp_path, "sparse", "--continue-once", SPARSE).get_num_updates() == 8
    os.symlink(SPARSE, tmp_path / "run" / "checkpoint_last.pt")
    assert go_on(tmp_path, "sparse", "--continue-once", tmp_path / "missing.pt").get_num_updates() == 8


def test_a_file_elsewhere_must_be_there_too(tmp_path, monkeypatch):
    monkeypatch.setattr(PathManager, "path_requires_pathmanager", lambda name: name.startswith("s3://"))
    shown = sentence(tmp_path, "sparse", "--restore-file", "s3://missing.pt")
    assert shown == "`--restore-file` must be a checkpoint to go on from, but is 's3://missing.pt' instead."


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


# ---- a model of other sizes ----

SIZES = {
    "one width": (
        ("--encoder-ffn-embed-dim", 12),
        "`--encoder-ffn-embed-dim` must be 16 and `--decoder-ffn-embed-dim` 16 to load `{path}`, but they are 12 and 12"
        " instead.",
    ),
    "blocks": (
        ("--decoder-layers", 3),
        "`--decoder-layers` must be 2 to load `{path}`, but is 3 instead.",
    ),
    "widths, heads and the place of the norms": (
        ("--encoder-embed-dim", 12, "--decoder-attention-heads", 1, "--layernorm-embedding"),
        "`--encoder-embed-dim` must be 8, `--decoder-embed-dim` 8, `--layernorm-embedding` off and "
        "`--decoder-attention-heads` 2 to load `{path}`, but they are 12, 12, on and 1 instead; base_moe, base_dense "
        "and transformer are an `--arch` that leaves it off.",
    ),
    "heads alone, which no shape shows": (
        ("--encoder-attention-heads", 4),
        "`--encoder-attention-heads` must be 2 to load `{path}`, but is 4 instead.",
    ),
}


@pytest.mark.parametrize(("options", "words"), SIZES.values(), ids=SIZES)
def test_other_sizes_are_named_with_their_options(tmp_path, options, words):
    name, path = ("dense", DENSE) if "--decoder-layers" in options else ("sparse", SPARSE)
    assert sentence(tmp_path, name, "--restore-file", path, *options) == words.format(path=path)


def test_the_number_of_positions_is_a_size(tmp_path):
    options = ("--encoder-learned-pos", "--decoder-learned-pos", "--max-target-positions", 30)
    path = save(go_on(tmp_path, "dense", *options), tmp_path / "saved.pt")
    shown = sentence(tmp_path, "dense", "--restore-file", path, *options, "--max-target-positions", 20)
    assert shown == f"`--max-target-positions` must be 30 to load `{path}`, but is 20 instead."


EXPERTS = {
    "their place": (("--expert-interval", 2), "`--expert-interval` must be 1 to load `{path}`, but is 2 instead."),
    "their number": (("--num-experts", 8), "`--num-experts` must be 4 as in the checkpoint's encoder.layers.0, but is"),
    "their gates": (("--expert-gates", "base"), "`--expert-gates` must be base,task to load `{path}`, but has"),
    "their output": (("--expert-combine", "paper"), "`--expert-combine` must be preserving to load `{path}`, but is"),
    "a shared one": (("--shared-expert-dim", 8), "`--shared-expert-dim` must be 0 to load `{path}`, but is 8 instead."),
    "that there are any": (("--arch", "base_dense_tiny"), "`--arch` must be one with experts, such as base_moe or"),
    "the tasks of their gates": (
        ("--task-ids", "pair"),
        "The tasks that the model tells apart must be aa,bb,cc,en to load `{path}`, but are en-aa,en-bb,en-cc "
        "instead: `--task-ids`, `--langs` and `--lang-pairs` decide them.",
    ),
}


@pytest.mark.parametrize(("options", "words"), EXPERTS.values(), ids=EXPERTS)
def test_other_experts_are_named(tmp_path, options, words):
    run = "dense" if "base_dense_tiny" in options else "sparse"  # dense for 4 updates, so without experts yet
    assert sentence(tmp_path, run, "--restore-file", SPARSE, *options).startswith(words.format(path=SPARSE))


# ---- another vocabulary, other languages ----


LANGUAGES = {
    "of the pairs": (("--lang-pairs", "en-aa,en-bb"), "aa,bb,en instead, without cc"),
    "given": (
        ("--lang-pairs", "en-aa,en-bb", "--langs", "en,aa,bb,dd,ee"),
        "en,aa,bb,dd,ee instead, without cc and with dd, ee",
    ),
}


@pytest.mark.parametrize(("options", "found"), LANGUAGES.values(), ids=LANGUAGES)
def test_languages_are_named_with_their_option(tmp_path, options, found):
    assert sentence(tmp_path, "dense", "--restore-file", DENSE, *options) == (
        f"`--langs` must be aa,bb,cc,en to load `{DENSE}`, but is {found}; where it is not given, the languages are "
        "those of `--lang-pairs`."
    )


def test_another_dictionary_is_said_with_both_sizes(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for name in os.listdir(OLD / "data"):
        os.symlink(OLD / "data" / name, data / name)
    for lang in ("en", "aa", "bb", "cc"):
        dictionary = Dictionary.load(str(data / f"dict.{lang}.txt"))
        dictionary.add_symbol("more")
        (data / f"dict.{lang}.txt").unlink()
        dictionary.save(str(data / f"dict.{lang}.txt"))
    assert sentence(tmp_path, "sparse", "--restore-file", SPARSE, data=data) == (
        f"DATA must have the dictionary that `{SPARSE}` was trained with, of 18 entries (with tokens for 4 languages), "
        "but has one of 19 (with tokens for 4 languages) instead."
    )


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


def test_what_we_save_is_of_fairseqs_criterion(tmp_path):
    path = save(go_on(tmp_path, "sparse", "--restore-file", SPARSE), tmp_path / "saved.pt")
    assert file_io.load(str(path))["optimizer_history"][-1]["criterion_name"] == "LabelSmoothedCrossEntropyCriterion"


def take_another_loss(trainer):
    options = OmegaConf.create({"_name": "cross_entropy", "sentence_avg": False})
    trainer._criterion = trainer.task.build_criterion(options)


def take_another_optimizer(trainer):
    with open_dict(trainer.cfg):
        trainer.cfg.optimizer = {"_name": "nag", "momentum": 0.9, "weight_decay": 0.0, "lr": [0.1]}


OTHERS = {
    "loss": (dict(prepare=take_another_loss), "criterion",
             "label_smoothed_cross_entropy or moe_label_smoothed_cross_entropy", "cross_entropy"),
    "optimizer": (dict(prepare=take_another_optimizer), "optimizer", "adam or fused_adam", "nag"),
    "precision": (HALF, "optimizer", "adam or fused_adam", "one in half precision (`--fp16` or `--bf16`)"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "option", "wanted", "found"), OTHERS.values(), ids=OTHERS)
def test_another_criterion_or_optimizer_is_named(tmp_path, changes, option, wanted, found):
    assert sentence(tmp_path, "dense", "--restore-file", DENSE, **changes) == (
        f"`--{option}` must be {wanted} to go on from `{DENSE}` with the moments of its optimizer, but is {found} "
        "instead; `--reset-optimizer` goes on without them."
    )
    trainer = go_on(tmp_path, "dense", "--restore-file", DENSE, "--reset-optimizer", **changes)
    assert trainer.get_num_updates() == 0


def test_embeddings_that_are_shared_or_not(tmp_path):
    """Two that were trained apart cannot become one; one that becomes two has no moments for the second."""
    plain = ("--arch", "base_dense", "--encoder-attention-heads", 2, "--decoder-attention-heads", 2)
    with_one = go_on(tmp_path, "dense", *plain, "--restore-file", DENSE, "--share-all-embeddings")
    assert with_one.get_num_updates() == 8
    shown = sentence(tmp_path, "dense", *plain, "--restore-file", DENSE)
    assert re.search("must hold the optimizer's moments of .* options such as `--share-all-embeddings`", shown)
    apart = go_on(tmp_path, "dense", *plain, "--restore-file", DENSE, "--reset-optimizer")
    path = save(apart, tmp_path / "apart.pt")
    shown = sentence(tmp_path, "dense", *plain, "--restore-file", path, "--share-all-embeddings")
    assert shown.startswith("`--share-all-embeddings` must be off to load") and "is on instead; base_moe" in shown


# ---- a state that does not fit ----


@pytest.mark.parametrize("optimizer", ["fused_adam", "adam"])
def test_moments_of_another_shape_are_named(tmp_path, optimizer):
    """`fused_adam` would write behind them; fairseq's would end in torch's traceback."""
    state, path = file_io.load(DENSE), str(tmp_path / "wrong.pt")
    state["last_optimizer_state"]["state"][0]["exp_avg"] = torch.zeros(3)
    file_io.save(state, path)
    shown = sentence(tmp_path, "dense", "--restore-file", path, "--optimizer", optimizer)
    name = "encoder.embed_tokens.weight"
    shape = tuple(state["model"][name].shape)
    assert shown == (
        f"`exp_avg` of `{name}` in the optimizer's state must be of the shape {shape}, but is (3,) "
        "instead; `--reset-optimizer` starts without that state."
    )


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
def test_the_place_is_that_of_as_many_batches_or_the_earlier_one(before, now, place):
    found = adapt_epoch_position(with_epoch_position(position(6), before, 1), now)
    assert found["train_iterator"]["iterations_in_epoch"] == place and found["val_loss"] == 1.0


def test_batches_that_are_seen_again_are_with_epoch_position(caplog):
    adapt_epoch_position(with_epoch_position(position(6), 1, 1), 4)
    assert "2 batches of this epoch are seen twice" in caplog.text


def test_an_exact_place_and_one_of_before_stay(caplog):
    exact = position(6, batches_in_epoch=12)
    assert adapt_epoch_position(with_epoch_position(exact, 2, 1), 4) == exact
    assert adapt_epoch_position(position(6), 4) == position(6)
    assert adapt_epoch_position(None, 4) is None
    assert with_epoch_position({}, 4, 1) == {}  # fairseq's crash.pt
    assert not caplog.text


def test_the_epoch_for_which_batches_were_drawn_is_kept():
    assert drawn_in_epoch(adapt_epoch_position(with_epoch_position(position(6), 2, 1), 4)) == 1
    assert drawn_in_epoch(with_epoch_position(position(6), 2, None)) is None
    assert drawn_in_epoch(position(6)) is None and drawn_in_epoch(None) is None
