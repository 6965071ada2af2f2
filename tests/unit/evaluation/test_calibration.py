"""Calibration gives a checkpoint the prices that its run would have kept, had its weights stood still."""

import shutil

import pytest
import torch

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.key_maps import prices_of, without_prices
from fairseq_mtmoe.evaluation.calibration import calibrate
from tests.golden.old_runs import OLD
from tests.helpers import untrained
from tests.helpers.refused import refused
from tests.helpers.states import assert_same
from tests.helpers.training import train_here

DATA = OLD / "data"
SMALL = (
    "--encoder-embed-dim", 8, "--encoder-ffn-embed-dim", 16, "--encoder-layers", 2, "--decoder-layers", 2,
    "--num-experts", 4, "--expert-gates", "base,task", "--max-tokens", 200, "--disable-validation",
)  # fmt: skip
FROZEN = ("--lr", 0, "--reset-lr-scheduler")
OURS = ("--criterion", "moe_label_smoothed_cross_entropy")
MULTILINGUAL = ("--task", "translation_multi_simple_epoch", "--lang-pairs", "en-aa,en-bb,en-cc", "--encoder-langtok",
                "tgt", "--expert-gates", "base", "--sampling-method", "temperature")  # fmt: skip
ONE_PAIR = ("--task", "translation", "--source-lang", "en", "--target-lang", "aa", "--expert-gates", "base")
UPDATES = 7
RUNS = {
    "heated, by prices": (*OURS, "--heating-coefficient", 3, "--dropout", 0.1, "--base-training", "prices"),
    "fairseq's loss, several batches": ("--dropout", 0.1, "--update-freq", 2),
    "fairseq's multilingual task": (*MULTILINGUAL, *OURS, "--dropout", 0.1),
    "one pair": (*ONE_PAIR, "--dropout", 0.1),
    "checkpointed": (*OURS, "--checkpoint-activations", "--dropout", 0.1),
}


def strip(path, target):
    """Write a checkpoint as versions before 0.1.2 did: without prices."""
    state = file_io.load(str(path))
    state["model"] = without_prices(state["model"])
    extra = state["extra_state"]
    for name in ("ema", "ema_fp32_params"):
        if name in extra:
            extra[name] = without_prices(extra[name])
    file_io.save(state, str(target))
    return target


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    """A checkpoint of before prices, with a moving average of its weights."""
    folder = tmp_path_factory.mktemp("averaged")
    options = (*SMALL, *OURS, "--store-ema", "--ema-decay", 0.5, "--ema-fp32", "--lr", 0.02, "--warmup-updates", 1)
    train_here(DATA, folder, *options, "--max-update", 12)
    return strip(folder / "checkpoint_last.pt", folder / "before.pt")


@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_prices_are_those_of_a_run_whose_weights_stand_still(tmp_path, options):
    """After one epoch of training a run goes on with a learning rate of 0, over the end of an epoch."""
    options = (*SMALL, *options)
    train_here(DATA, tmp_path, *options, "--max-epoch", 1)
    before = strip(tmp_path / "checkpoint_last.pt", tmp_path / "before.pt")
    made = file_io.load(str(before))["optimizer_history"][-1]["num_updates"]
    still = (*FROZEN, "--max-epoch", 9, "--max-update", made + UPDATES, "--restore-file", before)
    train_here(DATA, tmp_path / "still", *options, *still)
    kept = file_io.load(str(tmp_path / "still" / "checkpoint_last.pt"))["model"]
    found = calibrate(str(before), str(DATA), UPDATES, cpu=True).state["model"]
    assert list(found) == list(kept) and len(prices_of(kept)) >= 4
    for key, value in kept.items():
        assert torch.equal(found[key], value), key


def test_a_moving_average_gets_prices_of_its_own_weights(averaged, tmp_path):
    """Those that it gets as the model, whose prices in turn are the same without it; also in a float32 copy."""
    state = calibrate(str(averaged), str(DATA), 2, cpu=True).state
    average = state["extra_state"]["ema"]
    assert state["extra_state"]["ema_fp32_params"].keys() == average.keys() == state["model"].keys()
    assert_same(prices_of(average), prices_of(state["extra_state"]["ema_fp32_params"]))
    for weights, file in ((average, tmp_path / "average.pt"), (state["model"], tmp_path / "model.pt")):
        alone = file_io.load(str(averaged))
        del alone["extra_state"]["ema"], alone["extra_state"]["ema_fp32_params"]
        file_io.save({**alone, "model": without_prices(weights)}, str(file))
        assert_same(prices_of(calibrate(str(file), str(DATA), 2, cpu=True).state["model"]), prices_of(weights))
    key = next(iter(prices_of(average)))
    assert not torch.equal(average[key], state["model"][key])


def test_nothing_else_changes(averaged):
    before = file_io.load(str(averaged))
    after = calibrate(str(averaged), str(DATA), 1, cpu=True).state
    assert without_prices(after["model"]).keys() != after["model"].keys()
    for name in ("ema", "ema_fp32_params"):
        after["extra_state"][name] = without_prices(after["extra_state"][name])
    assert_same({**after, "model": without_prices(after["model"])}, before)


def test_new_prices_take_the_place_of_old_ones(averaged, tmp_path):
    first = calibrate(str(averaged), str(DATA), 2, cpu=True).state
    file_io.save(first, str(tmp_path / "first.pt"))
    assert_same(calibrate(str(tmp_path / "first.pt"), str(DATA), 2, cpu=True).state, first)
    assert not torch.equal(*(prices["encoder.layers.0.moe.gate.prices.total"] for prices in (
        first["model"], calibrate(str(tmp_path / "first.pt"), str(DATA), 3, cpu=True).state["model"])))  # fmt: skip


def test_what_is_told_of_it(averaged):
    told = []
    calibrated = calibrate(
        str(averaged), str(DATA), 3, cpu=True, advance=lambda done, total: told.append((done, total))
    )
    assert told == [(done, 6) for done in range(1, 7)]
    assert [layer.layer for layer in calibrated.layers] == ["encoder.layers.0", "decoder.layers.0"]
    for layer in calibrated.layers:
        prefix = f"{layer.layer}.moe.gate.prices"
        mean = calibrated.state["model"][f"{prefix}.total"] / calibrated.state["model"][f"{prefix}.weight"]
        assert (layer.lowest, layer.highest) == (mean.min().item(), mean.max().item())
        assert layer.lowest < 0 < layer.highest and 1 <= layer.load < layer.greedy_load <= 4


def test_batches_can_have_another_size(averaged):
    sizes = [
        calibrate(str(averaged), str(DATA), 2, max_tokens, cpu=True).state["model"] for max_tokens in (None, 60, 200)
    ]
    usual, small, same = (prices_of(model) for model in sizes)
    assert_same(usual, same)
    assert not torch.equal(*(prices["encoder.layers.0.moe.gate.prices.total"] for prices in (usual, small)))


def test_half_precision_keeps_prices_in_full(averaged, tmp_path):
    state = file_io.load(str(averaged))
    state["cfg"]["common"]["bf16"] = True
    state["model"] = {key: value.bfloat16() for key, value in state["model"].items()}
    del state["extra_state"]["ema"]
    file_io.save(state, str(tmp_path / "half.pt"))
    found = calibrate(str(tmp_path / "half.pt"), str(DATA), 2, cpu=True).state["model"]
    right = calibrate(str(averaged), str(DATA), 2, cpu=True).state["model"]
    assert {value.dtype for value in without_prices(found).values()} == {torch.bfloat16}
    for key, value in prices_of(found).items():
        torch.testing.assert_close(value, right[key], rtol=0.05, atol=0.01)
        assert key.endswith("weight") or not torch.equal(value, value.bfloat16().float())


def expect_refusal(path, data=DATA, *names, updates=1, first=True):
    with refused(*names or (path.name,), first=first):
        calibrate(str(path), str(data), updates, cpu=True)


def test_pairs_and_languages_that_the_run_read_from_files_are_known_without_them(tmp_path):
    pairs, langs = tmp_path / "pairs.txt", tmp_path / "langs.txt"
    pairs.write_text("en-cc,en-aa\n")
    langs.write_text("aa\ncc\nen\n")
    train_here(DATA, tmp_path, *SMALL, "--lang-pairs", pairs, "--lang-dict", langs, "--max-update", 1)
    saved = str(tmp_path / "checkpoint_last.pt")
    with_files = calibrate(saved, str(DATA), 1, cpu=True)
    pairs.unlink()
    langs.unlink()
    assert calibrate(saved, str(DATA), 1, cpu=True).layers == with_files.layers


def test_models_without_base_layers_are_refused(tmp_path):
    expect_refusal(OLD / "dense" / "checkpoint_last.pt")
    data = untrained.make_data(tmp_path / "data")
    untrained.save_model(data, tmp_path / "task.pt", *untrained.SPARSE)
    for name in ("task.pt", "nothing.pt"):
        expect_refusal(tmp_path / name, data)


def test_unknown_tasks_and_criterions_are_refused(averaged, tmp_path):
    state = file_io.load(str(averaged))
    file_io.save({**state, "cfg": None}, str(tmp_path / "none.pt"))
    state["cfg"]["criterion"]["_name"] = "ctc"
    file_io.save(state, str(tmp_path / "ctc.pt"))
    for name in ("none.pt", "ctc.pt"):
        expect_refusal(tmp_path / name)


def test_data_of_another_model_or_none_is_refused(averaged, tmp_path):
    expect_refusal(averaged, tmp_path / "nowhere", "data")
    other = shutil.copytree(DATA, tmp_path / "other")
    (other / "train.en-bb.bb.bin").unlink()
    expect_refusal(averaged, other, "train.en-bb.bb.bin")
    for path in other.glob("dict.*"):
        path.write_text(path.read_text() + "more 1\n")
    expect_refusal(averaged, other, averaged.name, first=False)


@pytest.mark.parametrize("task", [MULTILINGUAL, ONE_PAIR], ids=["multilingual", "one pair"])
def test_stock_tasks_data_is_looked_at_first(task, tmp_path):
    train_here(DATA, tmp_path, *SMALL, *task, "--max-update", 1)
    saved, other = tmp_path / "checkpoint_last.pt", shutil.copytree(DATA, tmp_path / "other")
    path = other / "train.en-aa.en.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:-4] + b"\xff\x7f" + whole[-2:])
    expect_refusal(saved, other, "train.en-aa.en.bin")
    for file in other.glob("train.en-aa.*"):
        file.unlink()
    expect_refusal(saved, other, "other", str(saved))
    (other / "dict.aa.txt").unlink()
    expect_refusal(saved, other, "dict.aa.txt")
    if task is MULTILINGUAL:
        state = file_io.load(str(saved))
        vars(state["cfg"]["task"]).update(langs=None, lang_dict="moved.txt")
        file_io.save(state, str(saved))
        expect_refusal(saved, DATA, "data", str(saved))


def test_sentences_that_are_all_too_long_are_refused(averaged):
    with refused():
        calibrate(str(averaged), str(DATA), 1, max_tokens=2, cpu=True)
