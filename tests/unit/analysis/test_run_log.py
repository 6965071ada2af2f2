"""The run log survives interruptions."""

import json

import numpy as np
import pytest
import torch

from fairseq_mtmoe.analysis.run_log import FILE_NAME, RunLog, read
from fairseq_mtmoe.errors import UserError


def updates(events, kind):
    return [event["update"] for event in events if event["event"] == kind]


def test_events_come_back_in_order(tmp_path):
    log = RunLog(tmp_path / "run" / FILE_NAME)
    events = [{"event": "run", "arch": "base_moe", "name": "Übung"}, {"event": "valid", "update": 10, "all": {}}]
    for event in events:
        log.write(**event)
    assert read(log.path) == read(tmp_path / "run") == events


def test_numbers_of_numpy_and_torch_are_plain_and_json_stays_valid(tmp_path):
    log = RunLog(tmp_path / FILE_NAME)
    infinite, nothing = float("inf"), [float("nan")]
    log.write("x", a=np.float32(0.5), b=torch.tensor(3), c=np.arange(2), d=infinite, e=nothing, f=(True, None))
    expected = {"event": "x", "a": 0.5, "b": 3, "c": [0, 1], "d": None, "e": [None], "f": [True, None]}
    assert json.loads(log.path.read_text(), parse_constant=pytest.fail) == expected


def test_a_resumed_run_takes_back_what_it_repeats(tmp_path):
    log = RunLog(tmp_path / FILE_NAME)
    for update in (10, 20, 30):
        log.write("valid", update=update, subset="valid", run="first")
    log.write("experts", update=30, run="first")
    # Resumed from a checkpoint at update 10, and stopped before 30: 30 never happened in the run that went on.
    log.write("valid", update=20, subset="valid", run="second")
    log.write("valid", update=20, subset="test", run="second")
    log.write("valid", update=25, subset="valid", run="second")
    events = read(log.path)
    valid = [(e["update"], e["run"]) for e in events if e["event"] == "valid" and e["subset"] == "valid"]
    assert valid == [(10, "first"), (20, "second"), (25, "second")]
    assert updates(events, "experts") == [30]  # another kind of event is untouched


def test_epochs_and_the_run_itself_count_too(tmp_path):
    log = RunLog(tmp_path / FILE_NAME)
    log.write("run", seed=1)
    log.write("sampling", epoch=1, temperature=1.0)
    log.write("sampling", epoch=2, temperature=1.5)
    log.write("run", seed=2)
    log.write("sampling", epoch=2, temperature=1.6)
    assert [e["seed"] for e in read(log.path) if e["event"] == "run"] == [2]
    assert [e["temperature"] for e in read(log.path) if e["event"] == "sampling"] == [1.0, 1.6]


@pytest.mark.parametrize("rest", ['{"event":"va', '{"event":"valid","pair":"d\xc3'])
def test_a_truncated_line_is_skipped_and_the_next_one_is_whole(tmp_path, rest):
    log = RunLog(tmp_path / FILE_NAME)
    log.write("valid", update=1)
    with open(log.path, "ab") as file:
        file.write(rest.encode("latin-1"))
    assert updates(read(log.path), "valid") == [1]
    log.write("valid", update=2)
    assert updates(read(log.path), "valid") == [1, 2]


def test_no_log_no_events_and_no_place_for_a_log_are_one_sentence(tmp_path):
    with pytest.raises(UserError, match="There is no run log"):
        read(tmp_path)
    (tmp_path / FILE_NAME).write_text("hello\n[1]\n")
    with pytest.raises(UserError, match="holds no events"):
        read(tmp_path)
    with pytest.raises(UserError, match="cannot be written"):
        RunLog(tmp_path / FILE_NAME / FILE_NAME).write("run")
