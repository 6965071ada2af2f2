"""A run log with whatever in it: pictures, or one sentence."""

import json
import os

import pytest

from fairseq_mtmoe.analysis.charts import look
from fairseq_mtmoe.analysis.charts import runs as charts
from fairseq_mtmoe.analysis.questions import expert_layers
from fairseq_mtmoe.analysis.rows import read_run
from fairseq_mtmoe.analysis.run_log import FILE_NAME, RunLog, read
from fairseq_mtmoe.errors import UserError
from tests.helpers.damage import value_or_sentence

EVENTS = [
    {"event": "run", "sizes": {"en-de": 70, "en-lv": 30}, "task_ids": "target", "task_names": ["de", "lv"]},
    {"event": "sampling", "epoch": 1, "temperature": None, "probabilities": {"en-de": 0.7, "en-lv": 0.3}},
    {"event": "valid", "epoch": 1, "update": 10, "minutes": 0.5, "subset": "valid", "all": {"ppl": 12.0},
     "tiers": {"high": {"ppl": 9.0}, "low": {"ppl": 20.0}}, "tasks": {"cola": {"loss": 0.5, "matthews": -2.0}},
     "groups": {"all": {"mean": -2.0}}},
    {"event": "experts", "epoch": 1, "update": 10, "subset": "valid", "task_names": ["de", "lv"],
     "layers": {"enc.1": [[3, 1], [1, 3]]}},
    {"event": "sparsified", "update": 10, "num_experts": 2},
    {"event": "gates", "update": 10, "subset": "valid", "since": 0,
     "layers": {"enc.1": {"blend": -0.1, "moved": 2.0, "changed": None}}},
    {"event": "sources", "update": 10, "subset": "valid", "target": "lv", "sources": ["de", "lt"],
     "layers": {"enc.1": [0.25, 0.75]}},
    {"event": "sampling", "epoch": 2, "temperature": 1.5, "probabilities": {"en-de": 0.6, "en-lv": 0.4}},
    {"event": "valid", "epoch": 2, "update": 20, "minutes": 1.0, "subset": "valid", "all": {"ppl": 6.0}},
    {"event": "experts", "epoch": 2, "update": 20, "subset": "valid", "task_names": ["de", "lv"],
     "layers": {"enc.1": [[2, 2], [0, 3]]}},
]  # fmt: skip
LINES = [json.dumps(event).encode() for event in EVENTS]
LOG = b"\n".join(LINES) + b"\n"

FIELDS = [
    ("run", "sizes"), ("run", "task_ids"), ("sampling", "epoch"), ("sampling", "temperature"),
    ("sampling", "probabilities"), ("valid", "update"), ("valid", "minutes"), ("valid", "subset"), ("valid", "tiers"),
    ("valid", "all"), ("valid", "tasks"), ("valid", "groups"), ("experts", "update"), ("experts", "task_names"),
    ("experts", "layers"), ("sparsified", "update"), ("sources", "update"), ("sources", "sources"),
    ("sources", "layers"), ("gates", "update"), ("gates", "layers"),
]  # fmt: skip
WRONG = [
    "x", "\ud800", True, -1, 0.5, 10**400, [], [1], [[1]], {}, {"en-de": "x"}, {"en-de": -1}, {"en-de": 10**400},
    {"en-de": {}}, {"high": {"ppl": "x"}}, {"high": {"ppl": [1]}}, {"ppl": -3}, {"enc.1": [[1, "x"]]},
    {"enc.1": [[-1, 2], [3, 4]]}, {"enc.1": [1, 2]}, {"enc.1": {}}, {"\ud800": 1}, ["de", 3], None,
    {"rte": {"loss": 1, "accuracy": "x"}}, {"rte": {"accuracy": [1]}}, {"rte": {"accuracy": 10**400}},
]  # fmt: skip


def write(folder, content: bytes):
    (folder / FILE_NAME).write_bytes(content)
    return folder


def draw(run, folder):
    """All charts that a run has, down to the last glyph."""
    found = [charts.sampling([run])] if run.of("sampling") else []
    found += [charts.experts([run])] if expert_layers(run) else []
    found += [charts.perplexity([run])] if run.of("tier", "all", metric="ppl") else []
    found += [charts.metrics([run])] if run.of("task") else []
    found += [charts.sources([run])] if run.of("sources") else []
    found += [charts.movement([run])] if run.of("gates") else []
    for chart in found:
        look.save(chart, folder / "chart.svg")


@pytest.mark.parametrize(("kind", "field"), FIELDS)
def test_a_field_with_another_value_is_a_sentence_or_is_drawn(tmp_path, kind, field):
    refused = 0
    for value in WRONG:
        events = [{**event, field: value} if event["event"] == kind else event for event in EVENTS]
        run = value_or_sentence(lambda: read_run(write(tmp_path, "\n".join(map(json.dumps, events)).encode())))  # noqa: B023
        refused += run is None
        if run is not None and value in (None, "x", [], {}):
            draw(run, tmp_path)
    assert refused >= 12


def test_the_sentence_says_where_and_what(tmp_path):
    wrong = {**EVENTS[2], "update": "many"}
    write(tmp_path, b"\n".join([*LINES, json.dumps(wrong).encode()]))
    with pytest.raises(UserError) as error:
        read(tmp_path)
    assert str(error.value) == (
        f"Line 11 of the run log `{tmp_path / FILE_NAME}` must have a whole number from 0 as `update`, but has 'many'; "
        "remove the line to read the others."
    )
    del wrong["update"]
    write(tmp_path, json.dumps(wrong).encode())
    with pytest.raises(UserError, match=r"Line 1 .* must have a whole number from 0 as `update`, but has none; remove"):
        read(tmp_path)


def test_numbers_that_are_not_finite_are_missing_and_other_kinds_are_left_alone(tmp_path):
    other = b'{"event": "other", "update": "never", "epoch": [1]}\n{"event": "new", "a": [NaN]}\n'
    run = read_run(write(tmp_path, other + LOG.replace(b"12.0", b"NaN").replace(b"0.5", b"Infinity")))
    (row,) = run.of("all")
    assert str(row.value.tolist()) == "[nan, 6.0]" and str(row.moments.minutes.tolist()) == "[nan, 1.0]"
    for over in ("updates", "minutes"):
        look.save(charts.perplexity([run], over), tmp_path / "chart.svg")


def test_another_number_of_experts_at_a_later_update_is_one_sentence(tmp_path):
    write(tmp_path, LOG.replace(b"[[2, 2], [0, 3]]", b"[[2, 2, 1], [0, 3, 1]]"))
    with pytest.raises(UserError, match=r"same number of experts in enc\.1 at all updates, but has not: it is of"):
        read_run(tmp_path)


def test_names_are_text_and_many_of_them_are_too_many(tmp_path):
    draw(read_run(write(tmp_path, LOG.replace(b"en-de", rb"$\\frac{$\u0000\n").replace(b"enc.1", rb"$_{"))), tmp_path)
    many = {f"en-{number}": 1e-4 for number in range(10_000)}
    run = read_run(write(tmp_path, json.dumps({**EVENTS[1], "probabilities": many}).encode()))
    with pytest.raises(UserError, match="must be at most 20,000 pixels wide and high, but this one would be"):
        look.save(charts.sampling([run]), tmp_path / "chart.png")


def test_what_is_no_file_is_one_sentence(tmp_path):
    os.mkfifo(tmp_path / FILE_NAME)
    for use in (lambda: read(tmp_path), lambda: RunLog(tmp_path / FILE_NAME).write("run")):
        with pytest.raises(UserError, match=r"mtmoe\.jsonl` must be a run log, but is a pipe instead"):
            use()
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(UserError, match="circle` must be a run log, but is a link that leads in a circle"):
        read_run(tmp_path / "circle")
