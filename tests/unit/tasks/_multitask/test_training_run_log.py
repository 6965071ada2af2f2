"""Time that counts as training, and what goes into the run log."""

from types import SimpleNamespace

import pytest
import torch

from fairseq_mtmoe.analysis.run_log import read
from fairseq_mtmoe.tasks._multitask import run_log
from fairseq_mtmoe.tasks._multitask.run_log import Stopwatch, TrainingRunLog, start_counting, stop_counting


def test_only_running_time_counts(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(run_log.time, "monotonic", lambda: now[0])
    watch = Stopwatch()
    assert watch.seconds == 0 and not watch.is_running
    watch.start()
    now[0] += 5
    watch.start()
    assert watch.seconds == 5 and watch.is_running
    watch.stop()
    now[0] += 100
    assert watch.seconds == 5 and not watch.is_running
    watch.stop()
    watch.seconds = 60
    watch.start()
    now[0] += 1
    assert watch.seconds == 61


def test_a_run_is_described_once(tmp_path):
    log = TrainingRunLog(str(tmp_path))
    log.begin(seed=1)
    log.begin(seed=1)
    assert [event["event"] for event in read(tmp_path)] == ["run"]


def test_counts_of_experts_are_those_of_all_processes(monkeypatch):
    class Layer:
        load = SimpleNamespace(enabled=False, counts=torch.zeros(2, 3), reset=lambda: None)
        parameters = staticmethod(lambda: iter([torch.zeros(1)]))

    monkeypatch.setattr(run_log, "expert_layers", lambda model: {"encoder.layers.1": Layer})
    monkeypatch.setattr(run_log.torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(run_log.torch.distributed, "all_reduce", lambda counts: counts.mul_(2))
    start_counting(None)
    assert Layer.load.enabled
    Layer.load.counts += torch.arange(6).view(2, 3)
    assert stop_counting(None) == {"encoder.layers.1": [[0, 2, 4], [6, 8, 10]]}
    assert not Layer.load.enabled and Layer.load.counts.sum() == 15


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_first_process_writes(rank, tmp_path, monkeypatch):
    monkeypatch.setattr(run_log.torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(run_log.torch.distributed, "get_rank", lambda: rank)
    TrainingRunLog(str(tmp_path)).begin(seed=1)
    assert (tmp_path / "mtmoe.jsonl").exists() == (rank == 0)
