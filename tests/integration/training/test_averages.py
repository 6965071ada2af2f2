"""Moving averages of the weights (`--store-ema`): what they average, and what they begin with."""

from functools import partial

import pytest
import torch
from fairseq import checkpoint_utils

from tests.helpers.trainers import groups_of, take, trainer_here

AVERAGE = ("--store-ema", "--ema-decay", 0.9)
PEMT = ("--arch", "pemt_translation_tiny", "--criterion", "pemt")
assert_equal = partial(torch.testing.assert_close, rtol=0, atol=0)
POSITION = {"train_iterator": {"epoch": 1, "iterations_in_epoch": 1, "shuffle": True}}


def saved(trainer, path):
    trainer.consolidate_optimizer()
    return trainer.save_checkpoint(str(path), POSITION)


def test_an_average_of_a_model_with_sources_keeps_them_and_its_backbone_bit_for_bit(corpus, tmp_path):
    """As a resumed run checks; the rest of it moves."""

    def borrowing(*more):
        options = ("--adapter-rank", 2, "--max-tokens", 60, "--lang-pairs", "en-aa", "--langs", "en,aa,bb,cc")
        trainer = trainer_here(corpus, tmp_path, *PEMT, *options, *more)
        trainer.get_model().load_state_dict(dense)
        return trainer

    dense = trainer_here(corpus, tmp_path, "--arch", "base_dense_tiny", "--langs", "en,aa,bb,cc").get_model()
    dense = {name: value.clone() for name, value in dense.state_dict().items()}
    source = borrowing("--pemt-stage", "source", "--description", "0 0")
    take(source, groups_of(source, 1))
    path = source.get_model().export_source(str(tmp_path))
    given = ("--pemt-sources", path, "--description", "0", *AVERAGE, "--ema-fp32")
    trainer, resumed = (borrowing(*given) for _ in range(2))
    take(trainer, groups_of(trainer, 4))
    own, averaged = trainer.get_model().state_dict(), trainer.ema.get_model().state_dict()
    trained = {name for name, value in trainer.get_model().named_parameters() if value.requires_grad}
    equal = {name for name, value in own.items() if torch.equal(value, averaged[name])}
    assert equal - {name for name in trained if ".gate." in name} == own.keys() - trained  # one source needs no gate
    assert "encoder.prompt.sources" in equal
    resumed.load_checkpoint(saved(trainer, tmp_path / "checkpoint_last.pt"))
    assert_equal(resumed.ema.get_model().state_dict(), averaged)


@pytest.mark.parametrize("how", ["--finetune-from-model", "--restore-file"])
def test_a_run_that_goes_on_from_a_checkpoint_without_an_average_begins_its_own_with_the_weights(how, corpus, tmp_path):
    options = ("--num-experts", 2, "--max-tokens", 60)
    without = trainer_here(corpus, tmp_path / "before", *options)
    take(without, groups_of(without, 1))
    checkpoint = saved(without, tmp_path / "without.pt")
    trainer = trainer_here(corpus, tmp_path, *options, how, checkpoint, *AVERAGE, "--ema-fp32")
    checkpoint_utils.load_checkpoint(trainer.cfg.checkpoint, trainer)
    weights = {name: value.clone() for name, value in without.get_model().state_dict().items()}
    assert_equal(trainer.ema.fp32_params, weights)
    take(trainer, groups_of(trainer, 1))
    name = "encoder.layers.0.self_attn.k_proj.weight"
    mean = 0.9 * weights[name] + 0.1 * trainer.get_model().state_dict()[name]
    torch.testing.assert_close(trainer.ema.get_model().state_dict()[name], mean)


# The model of the checkpoint and of the run, and a number in the checkpoint's average
LEFT_OUT = {
    "another model's": (("--arch", "base_dense_tiny"), (*PEMT, "--pemt-stage", "source", "--description", "0 0"), 1.0),
    "not finite": (("--num-experts", 2), ("--num-experts", 2), float("nan")),
}


@pytest.mark.parametrize(("before", "now", "number"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_an_average_that_does_not_fit_begins_anew_with_the_weights(before, now, number, corpus, tmp_path, caplog):
    options = ("--lang-pairs", "en-aa", "--langs", "en,aa,bb,cc", "--max-tokens", 60, *AVERAGE)
    first = trainer_here(corpus, tmp_path, *options, *before)
    take(first, groups_of(first, 2))
    next(first.ema.get_model().parameters()).data.view(-1)[3] = number
    trainer = trainer_here(corpus, tmp_path, *options, *now, "--finetune-from-model", saved(first, tmp_path / "a.pt"))
    checkpoint_utils.load_checkpoint(trainer.cfg.checkpoint, trainer)
    assert_equal(trainer.ema.get_model().state_dict(), trainer.get_model().state_dict())
    assert "no finite moving average" in caplog.text
