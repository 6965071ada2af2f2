"""Time that counts as training, tokens of a run, and fairseq's figures on their way to the run log."""

import itertools

import pytest
import torch

from fairseq_mtmoe.tasks._multitask import run_log
from fairseq_mtmoe.tasks._multitask.run_log import LINES, Stopwatch, TrainingRecord, TrainingRunLog
from fairseq_mtmoe.tasks._multitask.task import Multitask


def test_only_running_time_counts(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(run_log.time, "monotonic", lambda: now[0])
    watch = Stopwatch()
    watch.seconds = 60
    assert watch.seconds == 60 and not watch.is_running
    watch.start()
    now[0] += 5
    assert watch.seconds == 65 and watch.is_running
    for _ in range(2):
        watch.stop()
        now[0] += 100
    assert watch.seconds == 65 and not watch.is_running


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_first_process_writes(rank, tmp_path, monkeypatch):
    monkeypatch.setattr(run_log.torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(run_log.torch.distributed, "get_rank", lambda: rank)
    log = TrainingRunLog(tmp_path / "mtmoe.jsonl")
    log.write("run", seed=1)
    assert (tmp_path / "mtmoe.jsonl").exists() == (rank == 0) and log.has_begun


def test_tokens_are_those_of_all_updates_and_unknown_after_an_old_checkpoint():
    record = TrainingRecord()
    record.add_tokens([{"ntokens": 5}, {"ntokens": 7.0}])
    record.add_tokens([{"ntokens": 3}, {"loss": 1.0}])
    assert record.tokens == 15
    record.tokens = None
    record.add_tokens([{"ntokens": 3}])
    assert record.tokens is None


def test_figures_are_kept_under_our_names():
    figures = {"loss": 3.5, "gnorm": torch.tensor(2.0), "nonfinite_updates": 4, "wall": 9.0, "ups": "fast"}
    assert TrainingRecord().add(50, figures) == {"loss": 3.5, "gnorm": 2.0, "skipped": 4.0}


def test_long_runs_have_fewer_lines_with_means_of_what_they_leave_out():
    record = TrainingRecord()
    of_all = {n: record.add(n, {"loss": float(n), "nonfinite_updates": n}) for n in range(1, 20 * LINES + 1)}
    lines = {update: found for update, found in of_all.items() if found is not None}
    updates = list(lines)
    assert updates[:LINES] == list(range(1, LINES + 1)) and len(lines) < 5 * LINES
    for before, update in itertools.pairwise([0, *updates]):
        assert lines[update] == {"loss": pytest.approx((before + 1 + update) / 2), "skipped": update}
        assert update - before <= max(1, update / LINES + 1)


@pytest.mark.parametrize("missing", ["validated_tasks", "groups", "uncertainties"])
def test_a_task_that_lacks_a_part_is_refused_when_it_is_made(missing):
    parts = {"validated_tasks": [], "groups": lambda self: [], "uncertainties": None}
    assert type("Whole", (Multitask,), parts)(cfg=None).validated_tasks == []
    del parts[missing]
    with pytest.raises(TypeError, match=missing):
        type("Unfinished", (Multitask,), parts)(cfg=None)
