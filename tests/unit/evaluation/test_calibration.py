"""Calibration gives a checkpoint the prices that its run would have kept, and what has prices translates by them."""

import shutil

import pytest
import torch

from fairseq_mtmoe import register
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.key_maps import prices_of, without_prices
from fairseq_mtmoe.evaluation import calibration
from fairseq_mtmoe.evaluation.translator import Decoding, Translator
from fairseq_mtmoe.moe.gates import base_gates
from tests.golden.old_runs import OLD
from tests.helpers import untrained
from tests.helpers.rare import rarely
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
AVERAGES = ("ema", "ema_fp32_params")
TOTAL = "encoder.layers.0.moe.gate.prices.total"
RUNS = {
    "heated, by prices": (*OURS, "--heating-coefficient", 3, "--dropout", 0.1, "--base-training", "prices"),
    "fairseq's loss, several batches": ("--dropout", 0.1, "--update-freq", 2),
    "fairseq's multilingual task": (*MULTILINGUAL, *OURS, "--dropout", 0.1),
    "one pair": (*ONE_PAIR, "--dropout", 0.1),
    "checkpointed": (*OURS, "--checkpoint-activations", "--dropout", 0.1),
}


def calibrate(path, updates=2, data=DATA, **options):
    return calibration.calibrate(str(path), str(data), updates, cpu=True, **options)


def calibrated(path, updates=2, **options):
    return calibrate(path, updates, **options).state


def strip(path, target):
    """Write a checkpoint as versions before 0.1.2 did: without prices."""
    file_io.save(bare(file_io.load(str(path))), str(target))
    return target


def bare(state):
    averages = {name: without_prices(state["extra_state"][name]) for name in AVERAGES if name in state["extra_state"]}
    return {**state, "model": without_prices(state["model"]), "extra_state": {**state["extra_state"], **averages}}


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    """A checkpoint of before prices, with a moving average of its weights."""
    folder = tmp_path_factory.mktemp("averaged")
    options = (*SMALL, *OURS, "--store-ema", "--ema-decay", 0.5, "--ema-fp32", "--lr", 0.02, "--warmup-updates", 1)
    train_here(DATA, folder, *options, "--max-update", 12)
    return strip(folder / "checkpoint_last.pt", folder / "before.pt")


OFTEN = ("heated, by prices",)


@pytest.mark.parametrize("options", rarely(RUNS, *(RUNS.keys() - set(OFTEN)), given={k: (v,) for k, v in RUNS.items()}))
def test_prices_are_those_of_a_run_whose_weights_stand_still(tmp_path, options):
    """After one epoch of training a run goes on with a learning rate of 0, over the end of an epoch."""
    options = (*SMALL, *options)
    train_here(DATA, tmp_path, *options, "--max-epoch", 1)
    before = strip(tmp_path / "checkpoint_last.pt", tmp_path / "before.pt")
    made = file_io.load(str(before))["optimizer_history"][-1]["num_updates"]
    still = (*FROZEN, "--max-epoch", 9, "--max-update", made + UPDATES, "--restore-file", before)
    train_here(DATA, tmp_path / "still", *options, *still)
    kept = file_io.load(str(tmp_path / "still" / "checkpoint_last.pt"))["model"]
    assert_same(dict(calibrated(before, UPDATES)["model"]), dict(kept), "model")
    assert len(prices_of(kept)) >= 4


def test_a_moving_average_gets_prices_of_its_own_weights(averaged, tmp_path):
    """Those that it gets as the model, whose prices in turn are the same without it; also in a float32 copy."""
    state = calibrated(averaged)
    average, in_float32 = (state["extra_state"].pop(name) for name in AVERAGES)
    assert in_float32.keys() == average.keys() == state["model"].keys()
    assert_same(prices_of(average), prices_of(in_float32))
    for weights in (average, state["model"]):
        file_io.save({**state, "model": without_prices(weights)}, str(tmp_path / "alone.pt"))
        assert_same(prices_of(calibrated(tmp_path / "alone.pt")["model"]), prices_of(weights))
    assert not torch.equal(average[TOTAL], state["model"][TOTAL])


def test_nothing_else_changes(averaged):
    assert_same(bare(calibrated(averaged, 1)), file_io.load(str(averaged)))


def test_new_prices_take_the_place_of_old_ones(averaged, tmp_path):
    first = calibrated(averaged)
    file_io.save(first, str(tmp_path / "first.pt"))
    assert_same(calibrated(tmp_path / "first.pt"), first)
    assert not torch.equal(first["model"][TOTAL], calibrated(tmp_path / "first.pt", 3)["model"][TOTAL])


def test_what_is_told_of_it(averaged):
    told = []
    found = calibrate(averaged, 3, advance=lambda *counts: told.append(counts))
    assert told == [(done, 6) for done in range(1, 7)]
    assert [layer.layer for layer in found.layers] == ["encoder.layers.0", "decoder.layers.0"]
    for layer in found.layers:
        total, weight = (found.state["model"][f"{layer.layer}.moe.gate.prices.{name}"] for name in ("total", "weight"))
        mean = total / weight
        assert (layer.lowest, layer.highest) == (mean.min().item(), mean.max().item())
        assert layer.lowest < 0 < layer.highest and 1 <= layer.load < layer.greedy_load <= 4


def test_batches_can_have_another_size(averaged):
    usual, small, same = (prices_of(calibrated(averaged, max_tokens=most)["model"]) for most in (None, 60, 200))
    assert_same(usual, same)
    assert not torch.equal(usual[TOTAL], small[TOTAL])


def test_half_precision_keeps_prices_in_full(averaged, tmp_path):
    state = file_io.load(str(averaged))
    state["cfg"]["common"]["bf16"] = True
    state["model"] = {key: value.bfloat16() for key, value in state["model"].items()}
    del state["extra_state"]["ema"]
    file_io.save(state, str(tmp_path / "half.pt"))
    found, right = (calibrated(path)["model"] for path in (tmp_path / "half.pt", averaged))
    assert {value.dtype for value in without_prices(found).values()} == {torch.bfloat16}
    for key, value in prices_of(found).items():
        torch.testing.assert_close(value, right[key], rtol=0.05, atol=0.01)
        assert key.endswith("weight") or not torch.equal(value, value.bfloat16().float())


def expect_refusal(path, data=DATA, *names, first=True):
    with refused(*names or (path.name,), first=first):
        calibrate(path, 1, data)


def test_pairs_and_languages_that_the_run_read_from_files_are_known_without_them(tmp_path):
    pairs, langs = tmp_path / "pairs.txt", tmp_path / "langs.txt"
    pairs.write_text("en-cc,en-aa\n")
    langs.write_text("aa\ncc\nen\n")
    train_here(DATA, tmp_path, *SMALL, "--lang-pairs", pairs, "--lang-dict", langs, "--max-update", 1)
    with_files = calibrate(tmp_path / "checkpoint_last.pt", 1)
    pairs.unlink()
    langs.unlink()
    assert calibrate(tmp_path / "checkpoint_last.pt", 1).layers == with_files.layers


def test_models_without_base_layers_and_unknown_tasks_and_criterions_are_refused(averaged, tmp_path):
    data = untrained.make_data(tmp_path / "data")
    untrained.save_model(data, tmp_path / "task.pt", *untrained.SPARSE)
    for name in ("task.pt", "nothing.pt"):
        expect_refusal(tmp_path / name, data)
    state = file_io.load(str(averaged))
    file_io.save({**state, "cfg": None}, str(tmp_path / "none.pt"))
    state["cfg"]["criterion"]["_name"] = "ctc"
    file_io.save(state, str(tmp_path / "ctc.pt"))
    for name in ("none.pt", "ctc.pt"):
        expect_refusal(tmp_path / name)


def test_data_of_another_model_or_none_or_of_too_long_sentences_is_refused(averaged, tmp_path):
    with refused():
        calibrate(averaged, max_tokens=2)
    other = shutil.copytree(DATA, tmp_path / "other")
    (other / "train.en-bb.bb.bin").unlink()
    expect_refusal(averaged, other, "train.en-bb.bb.bin")
    for path in other.glob("dict.*"):
        path.write_text(path.read_text() + "more 1\n")
    expect_refusal(averaged, other, averaged.name, first=False)


@pytest.mark.parametrize("task", [pytest.param(MULTILINGUAL, marks=pytest.mark.rare), ONE_PAIR])
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


# ---- translating with prices and without ----

register()
SPARSE = OLD / "sparse" / "checkpoint_last.pt"


def translator_of(path, way=None):
    return Translator(str(DATA), [str(path)], Decoding(beam=2, max_len_b=8, cpu=True, base_evaluation=way))


def translated(path, way=None):
    return translator_of(path, way).translate("en-aa", "test").hypotheses


@pytest.fixture
def priced(tmp_path):
    """The checkpoint of 0.1.0 with prices at which every token goes elsewhere."""
    state = file_io.load(str(SPARSE))
    for gate in [key.removesuffix("weight") for key in state["model"] if key.endswith("layers.0.moe.gate.weight")]:
        state["model"] |= {f"{gate}prices.total": torch.tensor([25.0, -25, 15, -15]),
                           f"{gate}prices.weight": torch.tensor(0.5)}  # fmt: skip
    file_io.save(state, str(tmp_path / "priced.pt"))
    return tmp_path / "priced.pt"


def test_a_checkpoint_without_prices_is_evaluated_greedily_and_says_so(caplog):
    assert translated(SPARSE) == translated(SPARSE, "prices")
    (said, *_) = [message for message in caplog.messages if "has no prices" in message]
    assert f"`mtmoe calibrate {SPARSE} OUT DATA` adds them" in said


def test_base_layers_route_as_the_checkpoint_says_or_as_asked(priced, caplog):
    greedy = translated(SPARSE)
    caplog.clear()
    assert translated(priced) == translated(priced, "prices") != greedy
    assert translated(priced, "greedy") == greedy
    assert "has no prices" not in caplog.text


def test_a_run_that_validates_in_balance_translates_by_prices(priced):
    state = file_io.load(str(priced))
    state["cfg"]["model"]["base_evaluation"] = "balanced"
    file_io.save(state, str(priced))
    translator = translator_of(priced)
    translator.translate("en-aa", "test")
    assert {gate.routing.evaluation for gate in base_gates(translator.models[0])} == {"prices"}


def test_prices_of_another_number_of_experts_are_one_sentence(priced):
    state = file_io.load(str(priced))
    key = next(key for key in state["model"] if key.endswith("prices.total"))
    state["model"][key] = torch.zeros(3)
    file_io.save(state, str(priced))
    with refused("priced.pt", key, first=False):
        translated(priced)
