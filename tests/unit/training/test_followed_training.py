"""What a training leaves for those who follow it: in the run log and in TensorBoard's files.

One training for all tests.
"""

import struct
from collections import defaultdict

import pytest
from fairseq.logging import progress_bar
from tensorboardX.proto.event_pb2 import Event

from fairseq_mtmoe.report.run_log import read
from tests.helpers.training import train_here

UPDATES, INTERVAL = 12, 2
OPTIONS = ("--log-interval", INTERVAL, "--virtual-epoch-size", 300, "--heating-coefficient", 2, "--heating-epochs", 3)
PAIRS = ("en-aa", "en-bb", "en-cc")


@pytest.fixture(scope="module")
def followed(digits, tmp_path_factory):
    """A run's folder; `boards` in it has TensorBoard's files."""
    folder = tmp_path_factory.mktemp("followed") / "run"
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(progress_bar, "_tensorboard_writers", {})
        train_here(digits, folder, *OPTIONS, "--max-update", UPDATES, "--validate-interval-updates", 6,
                   "--validate-interval", 100, "--tensorboard-logdir", folder / "boards")  # fmt: skip
        progress_bar._close_writers()  # as when the process ends
    return folder


def events_of(folder):
    found = defaultdict(list)
    for event in read(folder):
        found[event["event"]].append(event)
    return found


@pytest.fixture(scope="module")
def events(followed):
    return events_of(followed)


def scalars(folder):
    """By name and update, what TensorBoard would draw: records of a length, its checksum, an event, its checksum."""
    found = defaultdict(dict)
    for path in folder.glob("events.out.tfevents.*"):
        data, offset = path.read_bytes(), 0
        while offset < len(data):
            (length,) = struct.unpack_from("<Q", data, offset)
            event = Event.FromString(data[offset + 12 : offset + 12 + length])
            offset += 16 + length
            for value in event.summary.value:
                if value.WhichOneof("value") == "simple_value":
                    found[value.tag][event.step] = value.simple_value
    return found


def test_the_run_log_says_what_was_run(followed, digits, events):
    (run,) = events["run"]
    assert run["options"]["max_update"] == UPDATES and run["options"]["arch"] == "base_moe_tiny"
    assert run["data"] == str(digits) and run["seed"] == 1 and {"fairseq", "torch"} <= run["versions"].keys()
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


def test_tensorboard_gets_the_same_figures(followed, events):
    inner, whole, valid = (scalars(followed / "boards" / tag) for tag in ("train_inner", "train", "valid"))
    for event in events["train"]:
        for name in ("loss", "nll_loss", "lr", "gnorm", "padding"):
            assert inner[name][event["update"]] == pytest.approx(event[name], rel=1e-5), name
    for event in events["valid"]:
        update = event["update"]
        for pair in PAIRS:
            assert valid[f"{pair}_ppl"][update] == pytest.approx(event["pairs"][pair]["ppl"], rel=0.01)
        for tier in event["tiers"]:
            assert valid[f"{tier}_loss"][update] == pytest.approx(event["tiers"][tier]["loss"], rel=0.01)
    # An epoch's sampling is told when it ends, at the number of updates that it ended with.
    drawn = [temperature for _, temperature in sorted(whole["sampling_temperature"].items())]
    assert drawn == pytest.approx([event["temperature"] for event in events["sampling"]][: len(drawn)], abs=1e-4)
    assert drawn and all(f"{pair}_probability" in whole for pair in PAIRS)


def test_a_run_that_goes_on_goes_on_counting_tokens(followed, digits, events):
    last = events["train"][-1]
    train_here(digits, followed, *OPTIONS, "--max-update", UPDATES + 2, "--no-save", "--disable-validation")
    train = events_of(followed)["train"]
    assert [event["update"] for event in train[-2:]] == [UPDATES, UPDATES + 2]
    assert train[-1]["tokens"] == pytest.approx(last["tokens"] + 2 * train[-1]["wpb"], abs=2)
    assert train[-1]["minutes"] > last["minutes"]
