"""`--log-expert-comm`: what updates log of the exchange, and the run log."""

import logging
from types import SimpleNamespace

import pytest
from fairseq.logging import metrics

from fairseq_mtmoe.moe.parallel.collectives import CommRecord
from fairseq_mtmoe.training.metrics import ExpertCommLog


def slot(exchanges=True, sparse=True):
    layer = SimpleNamespace(comm=CommRecord(), experts=SimpleNamespace(placement=SimpleNamespace(is_sharded=exchanges)))
    return SimpleNamespace(moe=layer if sparse else None)


def exchange(block, num_bytes, seconds=0.1):
    """What a layer's record does in an exchange."""
    comm = block.moe.comm
    if comm.enabled:
        comm.num_bytes += num_bytes
        comm._seconds += seconds


class Task:
    def __init__(self):
        self.events = []

    def expert_comm(self, **fields):
        self.events.append(fields)

    def begins(self, *_):
        raise AssertionError

    sparsified = ended = trained = begins


def test_updates_are_logged_and_summed_up_by_layer(monkeypatch):
    clock = iter([10.0, 12.0, 20.0, 24.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    slots = {"encoder.layers.1": slot(), "decoder.layers.1": slot()}
    log, task = ExpertCommLog(slots, enabled=True), Task()
    with metrics.aggregate() as aggregate:
        for num_bytes, seconds in ((1_000_000, 0.5), (3_000_000, 1.0)):
            with log.update():
                for block in slots.values():
                    exchange(block, num_bytes, seconds)
    values = aggregate.get_smoothed_values()
    assert values["expert_comm_ms"] == 1500  # the mean of 2 · 500 and 2 · 1000
    assert values["expert_comm_mb"] == 4
    assert values["expert_comm_share"] == 0.5
    log.report(task, 7)
    layers = {path: {"seconds": 1.5, "bytes": 4_000_000} for path in slots}
    assert task.events == [{"update": 7, "updates": 2, "layers": layers}]
    log.report(task, 7)
    assert len(task.events) == 1  # nothing new


def test_validation_and_failed_updates_do_not_count():
    block = slot()
    log, task = ExpertCommLog({"layer": block}, enabled=True), Task()
    with log.update():
        exchange(block, 10)
    exchange(block, 1000)
    with pytest.raises(RuntimeError), log.update():
        exchange(block, 10)
        raise RuntimeError
    exchange(block, 1000)
    log.report(task, 2)
    assert task.events[0]["layers"]["layer"]["bytes"] == 10 and task.events[0]["updates"] == 1


@pytest.mark.parametrize(
    ("slots", "enabled", "lines"),
    [({}, True, 1), ({"layer": slot(exchanges=False)}, True, 1), ({"layer": slot()}, False, 0)],
    ids=["dense", "all experts here", "not asked for"],
)
def test_where_nothing_is_exchanged_one_line_says_so(slots, enabled, lines, caplog):
    caplog.set_level(logging.INFO)
    log = ExpertCommLog(slots, enabled)
    with metrics.aggregate() as aggregate:
        for _ in range(3):
            with log.update():
                pass
    assert not aggregate.get_smoothed_values()
    assert ["logs nothing" in message for message in caplog.messages] == [True] * lines


def test_experts_that_come_later_are_logged_then(caplog):
    caplog.set_level(logging.INFO)
    block = slot(sparse=False)
    log, task = ExpertCommLog({"layer": block}, enabled=True), Task()
    with log.update():
        pass
    block.moe = slot().moe
    with log.update():
        exchange(block, 10)
    log.report(task, 2)
    assert task.events[0]["updates"] == 1 and not caplog.records
