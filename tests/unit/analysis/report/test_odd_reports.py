"""A run log with whatever in it: a page, or one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_mtmoe.analysis.report.gathering import Gatherer
from fairseq_mtmoe.analysis.report.page import page_of
from fairseq_mtmoe.analysis.run_log import FILE_NAME
from tests.helpers.damage import damaged, value_or_sentence
from tests.helpers.run_logs import events_of_a_run

EVENTS = [
    *events_of_a_run(pairs=2, updates=40, validations=2, train_events=2),
    {"event": "expert_comm", "update": 20, "updates": 20, "layers": {"a": {"seconds": 1.0, "bytes": 5e6}}},
    {"event": "sparsified", "update": 10, "num_experts": 4},
    {"event": "gates", "update": 20, "subset": "valid", "layers": {"a": {"blend": -0.1, "moved": 0.0}}},
    {"event": "sources", "update": 20, "subset": "valid", "target": "x", "sources": ["y"], "layers": {"a": [1.0]}},
    {"event": "selection", "update": 20, "updates": 20, "trained": {"x": 5}, "relative_entropy": {"x": 0.5},
     "share_of_data": 0.1},
]  # fmt: skip
LINES = [json.dumps(event).encode() for event in EVENTS]
FIELDS = sorted({(event["event"], field) for event in EVENTS for field in event if field != "event"})
WRONG: list[Any] = [
    None, "x", "\ud800", True, -1, 0.5, 10**400, [], [1], [[1]], {}, {"x": "y"}, {"x": None}, {"x": -1}, {"x": 10**400},
    {"x": {}}, {"x": {"ppl": []}}, {"ppl": "x"}, {"ppl": None}, {"ppl": None, "loss": "x"}, {"x": [[1, -1]]}, {"x": []},
    {"x": {"seconds": None}}, {"x": {"ppl": 0}}, {"x": [[0, 0]]}, {"en-aa": {"ppl": 0, "loss": -1e30}},
]  # fmt: skip
# Each example writes its own log.
SETTINGS = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


def gathered(folder: Path, content: bytes) -> Any:
    (folder / FILE_NAME).write_bytes(content)
    return value_or_sentence(lambda: page_of(Gatherer([folder]).gather()).encode())


@pytest.mark.parametrize(("kind", "field"), FIELDS)
def test_a_field_with_another_value_is_a_sentence_or_is_shown(tmp_path, kind, field):
    for value in WRONG:
        events = [{**event, field: value} if event["event"] == kind else event for event in EVENTS]
        gathered(tmp_path, "\n".join(map(json.dumps, events)).encode())
        without = [{name: of for name, of in event.items() if name != field} for event in events]
    gathered(tmp_path, "\n".join(map(json.dumps, without)).encode())


@settings(max_examples=100, **SETTINGS)
@given(content=damaged(b"\n".join(LINES) + b"\n", LINES[2], LINES[-5]))
def test_a_damaged_log_is_a_value_or_a_sentence(tmp_path, content):
    gathered(tmp_path, content)


@settings(max_examples=50, **SETTINGS)
@given(chosen=st.lists(st.sampled_from(LINES), max_size=12))
def test_events_in_any_order_and_number_are_shown(tmp_path, chosen):
    """What a sequence of runs in one folder may leave."""
    gathered(tmp_path, b"\n".join(chosen))
