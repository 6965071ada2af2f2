"""Time that counts as training, and what goes into the run log."""

import pytest

from fairseq_mtmoe.analysis.run_log import read
from fairseq_mtmoe.tasks import _journal
from fairseq_mtmoe.tasks._journal import Journal, Stopwatch


def test_only_running_time_counts(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(_journal.time, "monotonic", lambda: now[0])
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
    journal = Journal(str(tmp_path))
    journal.begin(seed=1)
    journal.begin(seed=1)
    journal.sampling(1, None, {"en-de": 1.0})
    events = read(tmp_path)
    assert [event["event"] for event in events] == ["run", "sampling"]
    assert events[1] == {"event": "sampling", "epoch": 1, "temperature": None, "probabilities": {"en-de": 1.0}}


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_first_process_writes(rank, tmp_path, monkeypatch):
    monkeypatch.setattr(_journal.torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(_journal.torch.distributed, "get_rank", lambda: rank)
    Journal(str(tmp_path)).begin(seed=1)
    assert (tmp_path / "mtmoe.jsonl").exists() == (rank == 0)
