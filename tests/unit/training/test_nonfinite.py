"""Weights and losses that are not finite: what is validated, saved, restored and recommended."""

import json

import pytest
import torch
from fairseq.logging import metrics

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.fallback import newest_good_in
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.training.nonfinite import NonfiniteUpdates, are_finite
from tests.helpers.digits import make_digit_corpus
from tests.helpers.trainers import groups_of, spoil, trainer_here
from tests.helpers.training import train_here

SMALL = ("--max-tokens", 120, "--num-experts", 2, "--warmup-updates", 0, "--clip-norm", 0)
EACH = ("--save-interval-updates", 1, "--keep-interval-updates", 2)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_digit_corpus(tmp_path_factory.mktemp("digits"), train=200, valid=4, test=4)


def validated(folder):
    """The updates whose validations are in the run log."""
    records = map(json.loads, (folder / "mtmoe.jsonl").read_text().splitlines())
    return [record["update"] for record in records if record["event"] == "valid"]


def test_batches_that_are_left_out_are_neither_validated_nor_saved(corpus, tmp_path):
    """The first update makes weights so large that no loss is finite after it."""
    with pytest.raises(UserError, match=r"3 times in a row in the place of update 2 .* go on from `.*checkpoint_last"):
        train_here(corpus, tmp_path, *SMALL, *EACH, "--lr", 1e37, "--max-nonfinite", 3)
    assert validated(tmp_path) == [1]
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
    sentence = r"checkpoint_last.pt` must hold weights that are finite.*one beside it is `.*checkpoint_best\.pt`"
    with pytest.raises(UserError, match=sentence):
        train_here(corpus, tmp_path, *SMALL, *EACH, "--max-update", 3)
    assert newest_good_in(tmp_path).name == "checkpoint_best.pt"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_element_counts(dtype):
    weights = [torch.full((3000,), 60000.0, dtype=dtype), torch.zeros(0, dtype=dtype), torch.ones(2, 3, dtype=dtype)]
    assert are_finite(weights, in_all_processes=False)
    for weight, place in ((weights[0], 2999), (weights[2], 4)):
        for value in (float("nan"), float("inf"), -float("inf")):
            before = weight.view(-1)[place].clone()
            weight.view(-1)[place] = value
            assert not are_finite(weights, in_all_processes=False)
            weight.view(-1)[place] = before


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
    with pytest.raises(UserError, match="3 times in a row in the place of update 2"):
        resumed.train_step([sample])
    anew = trainer_here(corpus, tmp_path, *options)
    anew.load_checkpoint(str(tmp_path / "checkpoint_last.pt"), reset_meters=True)
    assert anew._nonfinite.state_dict() == {"total": 0, "in_a_row": 0}
    assert metrics.get_active_aggregators() == [metrics.get_meters("default")]


def test_counts_of_before_0_1_1_begin_at_0():
    counts = NonfiniteUpdates(10, "")
    counts.load_state_dict({})
    assert counts.state_dict() == {"total": 0, "in_a_row": 0}
