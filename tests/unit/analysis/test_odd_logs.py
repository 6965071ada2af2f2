"""A run log with whatever in it: a page and pictures, or one sentence."""

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_mtmoe.analysis.charts import look
from fairseq_mtmoe.analysis.charts import runs as charts
from fairseq_mtmoe.analysis.questions import expert_layers
from fairseq_mtmoe.analysis.report.gathering import Gatherer
from fairseq_mtmoe.analysis.report.page import page_of
from fairseq_mtmoe.analysis.rows import read_run
from fairseq_mtmoe.analysis.run_log import FILE_NAME, RunLog, read
from fairseq_mtmoe.errors import UserError
from tests.helpers.damage import damaged, value_or_sentence
from tests.helpers.refused import refused
from tests.helpers.run_logs import events_of_a_run

EVENTS = [
    *events_of_a_run(pairs=2, updates=40, validations=2, train_events=2),
    {"event": "expert_comm", "update": 20, "updates": 20, "layers": {"a": {"seconds": 1.0, "bytes": 5e6}}},
    {"event": "sparsified", "update": 10, "num_experts": 4},
    {"event": "gates", "update": 20, "subset": "valid", "layers": {"a": {"blend": -0.1, "moved": 0.0}}},
    {"event": "sources", "update": 20, "subset": "valid", "target": "x", "sources": ["y"], "layers": {"a": [1.0]}},
    {"event": "selection", "update": 20, "updates": 20, "trained": {"x": 5}, "relative_entropy": {"x": 0.5},
     "share_of_data": 0.1},
    {"event": "valid", "update": 40, "subset": "valid", "tasks": {"cola": {"loss": 0.5, "matthews": -2.0}},
     "groups": {"all": {"mean": -2.0}}, "all": {"ppl": 6.0}},
]  # fmt: skip
LINES = [json.dumps(event).encode() for event in EVENTS]
LOG = b"\n".join(LINES) + b"\n"
SAID = ("commit", "command", "hardware", "started", "data", "versions", "seed", "tiers")  # nothing is made of it
FIELDS = sorted({(event["event"], field) for event in EVENTS for field in event if field not in ("event", *SAID)})
DRAWN = (None, {})
WRONG = [
    *DRAWN, "x", [], "\ud800", True, -1, 0.5, 10**400, [[1]], {"x": "y"}, {"x": -1}, {"x": {"ppl": []}}, {"ppl": "x"},
    {"x": [[1, -1]]}, {"x": {"seconds": None}}, {"x": [[0, 0]]}, {"en-aa": {"ppl": 0, "loss": -1e30}},
]  # fmt: skip
# Each example writes its own log.
SETTINGS = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


def write(folder, content):
    (folder / FILE_NAME).write_bytes(content)
    return folder


def shown(folder, content):
    return value_or_sentence(lambda: page_of(Gatherer([write(folder, content)]).gather()).encode())


def draw(run, folder):
    """All charts that a run has, down to the last glyph."""
    found = [charts.sampling([run])] if run.of("sampling") else []
    found += [charts.experts([run])] if expert_layers(run) else []
    found += [charts.perplexity([run])] if run.of("tier", "all", metric="ppl") else []
    found += [charts.metrics([run])] if run.of("task") else []
    found += [charts.selection([run])] if run.of("selection", metric="share") else []
    found += [charts.sources([run])] if run.of("sources") else []
    found += [charts.movement([run])] if run.of("gates") else []
    for chart in found:
        look.save(chart, folder / "chart.svg")


@pytest.mark.parametrize(("kind", "field"), FIELDS)
def test_a_field_with_another_value_is_a_sentence_or_is_shown(tmp_path, kind, field):
    for value in WRONG:
        events = [{**event, field: value} if event["event"] == kind else event for event in EVENTS]
        page = shown(tmp_path, "\n".join(map(json.dumps, events)).encode())
        if page is not None and value in DRAWN:
            draw(read_run(tmp_path), tmp_path)
    without = [{name: of for name, of in event.items() if name != field} for event in EVENTS]
    shown(tmp_path, "\n".join(map(json.dumps, without)).encode())


@settings(max_examples=60, **SETTINGS)
@given(content=damaged(LOG, LINES[2], LINES[-5]))
def test_a_damaged_log_is_a_value_or_a_sentence(tmp_path, content):
    shown(tmp_path, content)


@settings(max_examples=30, **SETTINGS)
@given(chosen=st.lists(st.sampled_from(LINES), max_size=12))
def test_events_in_any_order_and_number_are_shown(tmp_path, chosen):
    """What a sequence of runs in one folder may leave."""
    shown(tmp_path, b"\n".join(chosen))


def test_the_sentence_says_where_and_what(tmp_path):
    wrong = {**EVENTS[-1], "update": "many"}
    write(tmp_path, LOG + json.dumps(wrong).encode())
    with refused(FILE_NAME, "update") as error:
        read(tmp_path)
    assert str(error.value).startswith(f"Line {len(LINES) + 1} of the run log ") and "'many'" in str(error.value)
    del wrong["update"]
    write(tmp_path, json.dumps(wrong).encode())
    with refused(FILE_NAME, "update"):
        read(tmp_path)


def test_numbers_that_are_not_finite_are_missing_and_other_kinds_are_left_alone(tmp_path):
    other = b'{"event": "other", "update": "never", "epoch": [1]}\n{"event": "new", "a": [NaN]}\n'
    valid = [b'{"event": "valid", "update": 10, "minutes": Infinity, "all": {"ppl": NaN}}',
             b'{"event": "valid", "update": 20, "minutes": 1, "all": {"ppl": 6}}']  # fmt: skip
    run = read_run(write(tmp_path, other + b"\n".join(valid)))
    (row,) = run.of("all")
    assert str(row.value.tolist()) == "[nan, 6.0]" and str(row.moments.minutes.tolist()) == "[nan, 1.0]"
    for over in ("updates", "minutes"):
        look.save(charts.perplexity([run], over), tmp_path / "chart.svg")


@pytest.mark.parametrize("layers", [{}, {"encoder.layers.1": [[0, 0], [0, 0]]}])
def test_experts_that_had_no_token_are_no_part_of_a_run(tmp_path, layers):
    event = {"event": "experts", "update": 5, "task_names": ["en-ab", "en-ac"], "layers": layers}
    assert read_run(write(tmp_path, json.dumps(event).encode())).rows == []


def test_several_runs_in_one_folder_are_one_sentence(tmp_path):
    experts = [{"event": "experts", "update": size, "layers": {"enc.1": [[1] * size]}} for size in (2, 3)]
    sources = [{**event, "sources": ["x", "y"]} for event in EVENTS if event["event"] == "sources"]
    for events in (experts, sources):
        write(tmp_path, "\n".join(map(json.dumps, events)).encode())
        with pytest.raises(UserError, match="it is of several runs"):
            read_run(tmp_path)


def test_names_are_text_and_many_of_them_are_too_many(tmp_path):
    draw(
        read_run(write(tmp_path, LOG.replace(b"en-aa", rb"$\\frac{$\u0000\n").replace(b"layers.1", rb"$_{"))), tmp_path
    )
    sampling = {"event": "sampling", "epoch": 1, "probabilities": {f"en-{number}": 1e-4 for number in range(10_000)}}
    run = read_run(write(tmp_path, json.dumps(sampling).encode()))
    with refused("--labels"):
        look.save(charts.sampling([run]), tmp_path / "chart.png")


def test_what_is_no_file_is_one_sentence(tmp_path):
    os.mkfifo(tmp_path / FILE_NAME)
    for use in (lambda: read(tmp_path), lambda: RunLog(tmp_path / FILE_NAME).write("run")):
        with refused(FILE_NAME):
            use()
    (tmp_path / "circle").symlink_to("circle")
    with refused("circle"):
        read_run(tmp_path / "circle")
