"""What a training leaves in the run log for those who follow it.

One training for all tests.
"""

from collections import defaultdict

import pytest

from fairseq_mtmoe.report.run_log import read
from tests.helpers.training import train_here

UPDATES, INTERVAL = 12, 2
OPTIONS = ("--log-interval", INTERVAL, "--virtual-epoch-size", 300, "--heating-coefficient", 2, "--heating-epochs", 3)
PAIRS = ("en-aa", "en-bb", "en-cc")


@pytest.fixture(scope="module")
def followed(many_digits, tmp_path_factory):
    """A run's folder."""
    folder = tmp_path_factory.mktemp("followed") / "run"
    validations = ("--validate-interval-updates", 6, "--validate-interval", 100)
    train_here(many_digits, folder, *OPTIONS, "--max-update", UPDATES, *validations)
    return folder


def events_of(folder):
    found = defaultdict(list)
    for event in read(folder):
        found[event["event"]].append(event)
    return found


@pytest.fixture(scope="module")
def events(followed):
    return events_of(followed)


def test_the_run_log_says_what_was_run(followed, many_digits, events):
    (run,) = events["run"]
    assert run["options"]["max_update"] == UPDATES and run["options"]["arch"] == "base_moe_tiny"
    assert run["data"] == str(many_digits) and run["seed"] == 1 and {"fairseq", "torch"} <= run["versions"].keys()
    assert run["hardware"].startswith("1 process, CPU ") and run["started"].endswith("+00:00")


def test_the_run_log_has_figures_every_log_interval(events):
    train = events["train"]
    assert [event["update"] for event in train] == list(range(INTERVAL, UPDATES + 1, INTERVAL))
    for event in train:
        assert {"loss", "nll_loss", "lr", "gnorm", "wps", "ups", "padding", "minutes", "tokens"} <= event.keys()
        assert 0 <= event["padding"] < 0.5 and event["gnorm"] > 0
    tokens, minutes = [event["tokens"] for event in train], [event["minutes"] for event in train]
    assert tokens == sorted(set(tokens)) and minutes == sorted(minutes)
    # fairseq rounds tokens per update to a tenth.
    assert tokens[-1] == pytest.approx(sum(event["wpb"] * INTERVAL for event in train), abs=UPDATES)
    valid = {event["update"]: event for event in events["valid"]}
    assert list(valid) == [6, 12] and valid[12]["tokens"] == tokens[-1] and valid[6]["tokens"] == tokens[2]


def test_a_run_that_goes_on_goes_on_counting_tokens(followed, many_digits, events):
    last = events["train"][-1]
    train_here(many_digits, followed, *OPTIONS, "--max-update", UPDATES + 2, "--no-save", "--disable-validation")
    train = events_of(followed)["train"]
    assert [event["update"] for event in train[-2:]] == [UPDATES, UPDATES + 2]
    assert train[-1]["tokens"] == pytest.approx(last["tokens"] + 2 * train[-1]["wpb"], abs=2)
    assert train[-1]["minutes"] > last["minutes"]
