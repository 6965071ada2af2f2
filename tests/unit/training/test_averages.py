"""Moving averages of the weights (`--store-ema`): what they average, and what they begin with."""

import pytest
import torch

from tests.helpers.trainers import groups_of, take, trainer_here

AVERAGE = ("--store-ema", "--ema-decay", 0.9)
POSITION = {"train_iterator": {"epoch": 1, "iterations_in_epoch": 1, "shuffle": True}}


def saved(trainer, path):
    trainer.consolidate_optimizer()
    return trainer.save_checkpoint(str(path), POSITION)


@pytest.mark.parametrize("options", [(), ("--ema-fp32",)], ids=["", "fp32"])
def test_an_average_of_a_model_with_sources_keeps_them_and_its_backbone_bit_for_bit(options, corpus, tmp_path):
    """As a resumed run checks; the rest of it moves."""

    def borrowing(*more):
        pemt = ("--arch", "pemt_translation_tiny", "--criterion", "pemt", "--adapter-rank", 2, "--max-tokens", 60)
        trainer = trainer_here(corpus, tmp_path, *pemt, "--lang-pairs", "en-aa", "--langs", "en,aa,bb,cc", *more)
        trainer.get_model().load_state_dict(dense)
        return trainer

    dense = trainer_here(corpus, tmp_path, "--arch", "base_dense_tiny", "--langs", "en,aa,bb,cc").get_model()
    dense = {name: value.clone() for name, value in dense.state_dict().items()}
    source = borrowing("--pemt-stage", "source", "--description", "0 0")
    take(source, groups_of(source, 1))
    given = ("--pemt-sources", source.get_model().export_source(str(tmp_path)), "--description", "0", *AVERAGE)
    trainer, resumed = (borrowing(*given, *options) for _ in range(2))
    take(trainer, groups_of(trainer, 4))
    own, averaged = trainer.get_model().state_dict(), trainer.ema.get_model().state_dict()
    trained = {name for name, value in trainer.get_model().named_parameters() if value.requires_grad}
    equal = {name for name, value in own.items() if torch.equal(value, averaged[name])}
    assert equal - {name for name in trained if ".gate." in name} == own.keys() - trained  # one source needs no gate
    assert "encoder.prompt.sources" in equal
    resumed.load_checkpoint(saved(trainer, tmp_path / "checkpoint_last.pt"))
    torch.testing.assert_close(resumed.ema.get_model().state_dict(), averaged, rtol=0, atol=0)
