"""`--sample-pieces`: other pieces in each epoch, the same after a stop."""

import pytest

from fairseq_mtmoe import register
from tests.helpers.training import train_here
from tests.helpers.translated_text import make_text_data

OPTIONS = ("--arch", "base_dense_tiny", "--batch-size", 4, "--required-batch-size-multiple", 1,
           "--valid-subset", "test", "--sample-pieces", 0.3)  # fmt: skip
UPDATES = 18
ONE = ("--max-update", 1, "--no-save")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    register()
    return make_text_data(tmp_path_factory.mktemp("sampled") / "data", size=200)


def run(data, folder, *options):
    return train_here(data, folder, *OPTIONS, "--max-update", UPDATES, "--log-interval", 1, *options)


def test_a_run_draws_the_same_after_a_stop_and_others_in_each_epoch(data, tmp_path):
    whole = run(data, tmp_path / "whole", "--no-save")
    run(data, tmp_path / "halves", "--max-update", 8)
    assert run(data, tmp_path / "halves")["losses"] == whole["losses"][8:]
    without = run(data, tmp_path / "without", "--sample-pieces", 0, *ONE)
    others = run(data, tmp_path / "source", "--sample-pieces-of", "source", *ONE)
    assert len({losses["losses"][0] for losses in (whole, without, others)}) == 3
    options = ("--no-save", "--lr", 0.0, "--sample-pieces")
    still = [run(data, tmp_path / f"still-{amount}", *options, amount) for amount in (0.3, 0)]
    per_epoch = [{round(sum(each["losses"][at : at + 6]), 4) for at in range(0, UPDATES, 6)} for each in still]
    assert len(per_epoch[0]) == 3 and len(per_epoch[1]) == 1
    assert still[0]["validations"] == still[1]["validations"]
