"""fairseq's training command, resumed with other sampling options: the run goes on as if they had been the same."""

import shutil

import numpy as np
import pytest

from fairseq_mtmoe.analysis.charts.runs import sampling_axis
from fairseq_mtmoe.analysis.report.warnings import warnings_of
from fairseq_mtmoe.analysis.rows import read_run
from fairseq_mtmoe.analysis.run_log import read
from fairseq_mtmoe.checkpoints import file_io
from tests.helpers.digits import make_digit_corpus
from tests.helpers.refused import refused
from tests.helpers.training import train_here

HEATED = ("--heating-coefficient", 3, "--virtual-epoch-size", 150, "--max-tokens", 400, "--disable-validation")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return make_digit_corpus(tmp_path_factory.mktemp("small"), train=200, valid=9, test=9)


def temperatures(folder):
    return [event["temperature"] for event in read(folder) if event["event"] == "sampling"]


def same(first, second):
    return all(np.array_equal(first["parameters"][name], second["parameters"][name]) for name in first["parameters"])


def test_a_finished_run_goes_on_without_cooling_down(small, tmp_path):
    """`--heating-epochs` is the `--max-epoch` that the run began with, and not the one that it goes on with."""
    train_here(small, tmp_path / "longer", *HEATED, "--max-epoch", 2)
    shutil.copytree(tmp_path / "longer", tmp_path / "of 0.1.0")
    last = str(tmp_path / "of 0.1.0" / "checkpoint_last.pt")
    state = file_io.load(last)
    del state["extra_state"]["train_iterator"]["sampling"]
    file_io.save(state, last)
    longer = train_here(small, tmp_path / "longer", *HEATED, "--max-epoch", 4)
    whole = train_here(small, tmp_path / "whole", *HEATED, "--max-epoch", 4, "--heating-epochs", 2)
    assert temperatures(tmp_path / "longer") == temperatures(tmp_path / "whole")
    assert temperatures(tmp_path / "longer") == pytest.approx([1.5, 1.5 * np.sqrt(2.5), 3.0, 3.0])
    assert same(longer, whole)
    train_here(small, tmp_path / "of 0.1.0", *HEATED, "--max-epoch", 3)
    assert temperatures(tmp_path / "of 0.1.0") == temperatures(tmp_path / "whole")[:3]


def test_heating_by_update_resumes_in_the_middle_of_an_epoch(small, tmp_path):
    """`--heating-updates` is remembered: the run that goes on is not given it, nor a `--max-epoch`."""
    by_update = (*HEATED, "--heating-updates", 9)
    train_here(small, tmp_path / "parts", *by_update, "--max-update", 7)
    parts = train_here(small, tmp_path / "parts", *HEATED, "--max-update", 12)
    whole = train_here(small, tmp_path / "whole", *by_update, "--max-update", 12)
    events = [event for event in read(tmp_path / "whole") if event["event"] == "sampling"]
    begins = [event["updates_before"] for event in events]
    assert begins[0] == 0 and 7 not in [event["updates_before"] for event in events if event["part"] == 0]
    expected = [1.5 * np.sqrt(1 + 3 * min(update, 9) / 9) for update in begins]
    assert [event["temperature"] for event in events] == pytest.approx(expected)
    assert temperatures(tmp_path / "parts") == temperatures(tmp_path / "whole")
    assert same(parts, whole)


def test_one_long_epoch_heats_and_resumes_within(small, tmp_path):
    long = (*HEATED[:2], "--max-tokens", 120, "--disable-validation", "--heating-updates", 20)
    train_here(small, tmp_path / "parts", *long, "--max-update", 7)
    parts = train_here(small, tmp_path / "parts", *long, "--max-update", 24)
    whole = train_here(small, tmp_path / "whole", *long, "--max-update", 24)
    events = [event for event in read(tmp_path / "whole") if event["event"] == "sampling"]
    assert {event["epoch"] for event in events} == {1} and [event["part"] for event in events] == [*range(len(events))]
    updates = [(event["updates_before"], event["probabilities"]["en-cc"]) for event in events]
    assert temperatures(tmp_path / "whole") == pytest.approx([1.5 * np.sqrt(1 + 3 * at / 20) for at, _ in updates])
    assert updates[-1][0] == 20 and updates[-1][1] > 1.5 * updates[0][1]
    assert temperatures(tmp_path / "parts") == temperatures(tmp_path / "whole") and same(parts, whole)
    over, places = sampling_axis(read_run(tmp_path / "whole").of("sampling"))
    assert (over, places.tolist()) == ("update", [at for at, _ in updates])


@pytest.mark.parametrize("limit", [("--max-update", 3), ("--max-epoch", 1)])
def test_heating_by_epochs_in_a_run_of_one_epoch_is_warned_of(limit, small, tmp_path, caplog):
    train_here(small, tmp_path, "--heating-coefficient", 3, "--heating-epochs", 5, "--max-tokens", 400, *limit)
    assert "the temperature stays at 1.5, whatever --heating-coefficient is" in caplog.text
    assert "still_temperature" in [warning.kind for warning in warnings_of(read_run(tmp_path))]


def test_a_new_run_that_does_not_know_how_long_to_heat_ends_before_it_trains(small, tmp_path):
    with refused("--heating-epochs", "--heating-updates", "--max-epoch", first=False):
        train_here(small, tmp_path / "new", *HEATED, "--max-update", 3)
    assert not [path for path in (tmp_path / "new").iterdir() if not path.name.startswith(".")]
