"""Options that all ranks must share, and those that a run log has: what is not the default."""

import json
from argparse import Namespace

import pytest
from omegaconf import OmegaConf

from fairseq_mtmoe.analysis.run_log import what_is_wrong
from fairseq_mtmoe.training.option_check import changed_options, expect_same, shared_options
from tests.helpers.commands import training_arguments
from tests.helpers.refused import refused
from tests.helpers.training import configured


def test_options_that_are_not_the_defaults(tmp_path):
    changed = changed_options(configured(training_arguments("data", tmp_path, "--max-update", 30, "--fp16")))
    expected = {
        "arch": "base_moe_tiny", "task": "translation_heated", "criterion": "label_smoothed_cross_entropy",
        "optimizer": "adam", "lr": [0.005], "max_update": 30, "fp16": True, "max_tokens": 1000, "clip_norm": 1.0,
        "label_smoothing": 0.1, "num_experts": 4, "encoder_langtok": "tgt", "save_dir": str(tmp_path), "cpu": True,
        "encoder_embed_dim": 64, "warmup_updates": 100, "data": "data",
    }  # fmt: skip
    assert expected.items() <= changed.items()
    assert not changed.keys() & {"seed", "max_epoch", "patience", "weight_decay", "beam", "expert_gates"}
    assert json.loads(json.dumps(changed)) == changed
    assert what_is_wrong({"event": "run", "options": changed}) is None


# ---- what ranks share ----


def configuration(folder, **changes):
    cfg = {
        "common": {"seed": 1, "log_format": "simple"},
        "distributed_training": {"distributed_world_size": 2, "distributed_rank": 0, "device_id": 0},
        "model": {"_name": "base_moe", "num_experts": 4, "encoder": {"layers": 6}},
        "task": {"_name": "translation", "data": "here", "seed": "${common.seed}", "lang_pairs": "/a/pairs.txt"},
        "dataset": {"num_workers": 1, "max_tokens": 100},
        "checkpoint": {"save_dir": str(folder), "restore_file": "checkpoint_last.pt", "reset_meters": False},
        "generation": {"beam": 5},
    }
    cfg = OmegaConf.create(cfg)
    for name, value in changes.items():
        OmegaConf.update(cfg, name.replace("__", "."), value)
    return cfg


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"model__num_experts": 8}, "--num-experts"),
        ({"model___name": "base_dense"}, "--arch"),
        ({"model__encoder__layers": 5}, "--encoder.layers"),
        ({"common__seed": 2}, "--seed"),
        ({"task__lang_pairs": "en-de"}, "--lang-pairs"),
    ],
    ids=str,
)
def test_what_must_be_the_same(change, name, tmp_path):
    one, other = shared_options(configuration(tmp_path)), shared_options(configuration(tmp_path, **change))
    assert set(one) == set(other)
    with refused(name):
        expect_same(one, other, rank=1)


def test_what_each_process_has_for_itself(tmp_path):
    own = {"distributed_training__distributed_rank": 1, "dataset__num_workers": 0, "common__log_format": "json"}
    elsewhere = {"task__data": "elsewhere", "task__lang_pairs": "/b/pairs.txt"}
    expect_same(
        shared_options(configuration(tmp_path)), shared_options(configuration(tmp_path, **own, **elsewhere)), rank=1
    )


@pytest.mark.parametrize("given", [{"--lr": 1}, {"--lr": 1, "--dense-updates": 5, "--seed": 1}])
def test_an_option_that_one_rank_does_not_have_differs(given):
    with refused("--dense-updates" if len(given) == 1 else "--seed"):
        expect_same({"--lr": 1, "--dense-updates": 5}, given, rank=1)


def test_options_of_an_architecture_as_they_came(tmp_path):
    cfg = OmegaConf.create({"model": None}, flags={"allow_objects": True})
    cfg.model = Namespace(arch="transformer", encoder_layers=6, distributed_rank=1, save_dir="x", lr=[0.1])
    assert shared_options(cfg) == {"--arch": "transformer", "--encoder-layers": 6, "--lr": "[0.1]"}


def test_a_folder_that_is_not_shared_is_seen_by_its_checkpoint(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    empty = shared_options(configuration(there))
    assert shared_options(configuration(here)) == empty
    (here / "checkpoint_last.pt").touch()
    assert shared_options(configuration(here))["--save-dir"] == "a folder with checkpoint_last.pt"
    assert empty["--save-dir"] == "a folder without checkpoint_last.pt"
