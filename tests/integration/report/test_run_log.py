"""The run log survives interruptions. Whatever is in it, there are a page and pictures, or one sentence."""

import json
import math

import numpy as np
import pytest
import torch
import vl_convert
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.report.charts import look
from fairseq_mtmoe.report.charts.pictures import pictures_of
from fairseq_mtmoe.report.rows import read_run
from fairseq_mtmoe.report.run_log import FILE_NAME, RunLog, read
from fairseq_mtmoe.report.setup import compared_settings, progress_of
from fairseq_mtmoe.report.warnings import warnings_of
from tests.helpers.damage import damaged, value_or_sentence
from tests.helpers.figure_logs import benchmark, translation
from tests.helpers.reported_runs import ADDED
from tests.helpers.run_logs import events_of_a_run
from tests.helpers.scheduled import rarely


@pytest.fixture
def log(tmp_path):
    return RunLog(tmp_path / "run" / FILE_NAME)


def updates(events, kind, field="update"):
    return [event[field] for event in events if event["event"] == kind]


def test_events_come_back_in_order_and_as_plain_values(log):
    log.write("valid", update=10, name="Übung", all={})
    log.write("x", a=np.float32(0.5), b=torch.tensor(3), c=np.arange(2), d=math.inf, e=[math.nan], f=(True, None))
    plain = {"event": "x", "a": 0.5, "b": 3, "c": [0, 1], "d": None, "e": [None], "f": [True, None]}
    expected = [{"event": "valid", "update": 10, "name": "Übung", "all": {}}, plain]
    assert read(log.path) == read(log.path.parent) == expected
    for line in log.path.read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)


def test_a_resumed_run_takes_back_what_it_repeats(log):
    for update in (10, 20, 30):
        log.write("valid", update=update, subset="valid", run="first")
    log.write("experts", update=30, run="first")
    # Resumed from a checkpoint at update 10, and stopped before 30: 30 never happened in the run that went on.
    for update, subset in ((20, "valid"), (20, "test"), (25, "valid")):
        log.write("valid", update=update, subset=subset, run="second")
    events = read(log.path)
    valid = [(e["update"], e["run"]) for e in events if e["event"] == "valid" and e["subset"] == "valid"]
    assert valid == [(10, "first"), (20, "second"), (25, "second")]
    assert updates(events, "experts") == [30]  # another kind of event is untouched
    for seed, temperatures in ((1, {1: 1.0, 2: 1.5}), (2, {2: 1.6})):
        log.write("run", seed=seed)
        for epoch, temperature in temperatures.items():
            log.write("sampling", epoch=epoch, temperature=temperature)
    events = read(log.path)
    assert (updates(events, "run", "seed"), updates(events, "sampling", "temperature")) == ([2], [1.0, 1.6])


@pytest.mark.parametrize("rest", ['{"event":"va', '{"event":"valid","pair":"d\xc3'])
def test_a_truncated_line_is_skipped_and_the_next_one_is_whole(log, rest):
    log.write("valid", update=1)
    with open(log.path, "ab") as file:
        file.write(rest.encode("latin-1"))
    assert updates(read(log.path), "valid") == [1]
    log.write("valid", update=2)
    assert updates(read(log.path), "valid") == [1, 2]


@pytest.mark.parametrize("events", [[b"hello\n[1]\n"], [{"event": "train"}], [{"event": "train", "update": "many"}]])
def test_a_log_that_is_missing_wrong_or_has_no_place_is_refused(tmp_path, events):
    with pytest.raises(UserError, match=FILE_NAME):
        read(write(tmp_path, *events))
    (tmp_path / FILE_NAME).unlink()
    with pytest.raises(UserError, match=FILE_NAME):
        read(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=FILE_NAME):
        RunLog(tmp_path / "file" / FILE_NAME).write("run")


def test_another_log_is_answered_with_what_to_give(tmp_path):
    (tmp_path / "train.log").write_text("2026-01-01 12:00:00 | INFO | fairseq_cli.train | begin training epoch 1\n")
    with pytest.raises(UserError, match=r"train.log` holds no events.*give RUN, the `--save-dir` of a run\.$"):
        read(tmp_path / "train.log")


# ---- what else may be in it ----

EVENTS = [
    *events_of_a_run(pairs=2, updates=40, validations=2, train_events=2),
    *{event["event"]: event for event in translation() if event["event"] in ADDED}.values(), benchmark()[-1],
]  # fmt: skip
LINES = [json.dumps(event).encode() for event in EVENTS]
LOG = b"\n".join(LINES) + b"\n"
SAID = ("commit", "command", "hardware", "started", "data", "versions", "seed", "tiers")  # nothing is made of it
FIELDS = sorted({(event["event"], field) for event in EVENTS for field in event if field not in ("event", *SAID)})
WRONG = [
    None, {}, "x", [], "\ud800", True, -1, 0.5, 10**400, [[1]], {"x": "y"}, {"x": -1}, {"x": {"ppl": []}}, {"ppl": "x"},
    {"x": [[1, -1]]}, {"x": {"seconds": None}}, {"x": [[0, 0]]}, {"en-aa": {"ppl": 0, "loss": -1e30}},
]  # fmt: skip
# Each example writes its own log.
SETTINGS = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


def write(folder, *events):
    lines = (event if isinstance(event, bytes) else json.dumps(event).encode() for event in events)
    (folder / FILE_NAME).write_bytes(b"\n".join(lines))
    return folder


def shown(folder, *events):
    """What a page says of a run without its charts, or one sentence."""

    def said():
        run = read_run(write(folder, *events))
        return warnings_of(run), progress_of(run), compared_settings([run, run])

    return value_or_sentence(said)


# One field of each kind of event: all draw the same charts.
OFTEN = {kind: (kind, field) for kind, field in FIELDS}.values()


@pytest.mark.parametrize(("kind", "field"), rarely(FIELDS, *(set(FIELDS) - set(OFTEN))))
def test_a_field_with_another_value_is_a_sentence_or_is_shown(tmp_path, kind, field):
    for value in WRONG:
        events = [{**event, field: value} if event["event"] == kind else event for event in EVENTS]
        said = shown(tmp_path, *events)
        if said is not None and value is None:
            pictures_of([read_run(tmp_path)], {})
    shown(tmp_path, *({name: of for name, of in event.items() if name != field} for event in EVENTS))


@settings(max_examples=60, **SETTINGS)
@given(content=damaged(LOG, LINES[2], LINES[-5]) | st.lists(st.sampled_from(LINES), max_size=12).map(b"\n".join))
def test_a_damaged_log_is_a_value_or_a_sentence(tmp_path, content):
    shown(tmp_path, content)


def test_numbers_that_are_not_finite_are_missing_and_other_kinds_are_left_alone(tmp_path):
    valid = [{"event": "valid", "update": 10, "minutes": math.inf, "all": {"ppl": math.nan}},
             {"event": "valid", "update": 20, "minutes": 1, "all": {"ppl": 6}}]  # fmt: skip
    other = [{"event": "other", "update": "never", "epoch": [1]}, {"event": "new", "a": [math.nan]}]
    run = read_run(write(tmp_path, *other, *valid))
    (row,) = run.of("all")
    assert str(row.value.tolist()) == "[nan, 6.0]" and str(row.minutes.tolist()) == "[nan, 1.0]"


def test_several_runs_in_one_folder_are_one_sentence(tmp_path):
    experts = [{"event": "experts", "update": size, "layers": {"enc.1": [[1] * size]}} for size in (2, 3)]
    sources = [{**event, "sources": ["x"]} for event in EVENTS if event["event"] == "sources"]
    for events in (experts, sources):
        with pytest.raises(UserError, match="of several runs"):
            read_run(write(tmp_path, *events))


def test_names_with_signs_of_markup_are_drawn(tmp_path):
    odd = LOG.replace(b"en-aa", rb"$\\frac{$\u0000\n").replace(b"layers.1", rb"$_{")
    for chart in pictures_of([read_run(write(tmp_path, odd))], {}).values():
        vl_convert.vegalite_to_svg(look.spec_of(chart))
