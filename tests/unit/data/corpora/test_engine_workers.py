"""Every job is done, whatever becomes of the processes that do them."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from fairseq_mtmoe.data.corpora.engine import store, workers
from fairseq_mtmoe.data.corpora.engine.workers import Processes, Workers, cluster
from fairseq_mtmoe.errors import UserError
from tests.helpers.refused import refused


def calls(function, values):
    return [partial(function, value) for value in values]


def square(number):
    return number * number


def wait_for_all(job):
    """The first job ends after seven others have: in order, that were never."""
    number, folder = job
    deadline = time.monotonic() + 60
    while number == 0 and len(list(folder.iterdir())) < 7 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert time.monotonic() < deadline
    (folder / str(number)).touch()
    return number


def die(number):
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_first(job):
    """Ends its process without a word the first time that it is asked for the job with a file."""
    number, file = job
    if file is not None and not file.exists():
        file.touch()
        die(number)
    return number


def fail(number):
    raise UserError(f"{number} is wrong.")


@pytest.fixture(scope="module")
def processes():
    with closing(Processes(2)) as both:
        yield both


def test_jobs_are_asked_for_as_needed_and_a_slow_one_keeps_nobody_waiting(processes, tmp_path):
    asked = []

    def jobs():
        for number in range(12):
            asked.append(number)
            yield partial(square, number)

    results = processes.map_blocks(jobs())
    first = next(results)
    assert len(asked) <= 2 * workers.AT_ONCE and sorted([first, *results]) == [square(number) for number in range(12)]
    assert list(Workers().map_blocks(calls(square, range(4)))) == [0, 1, 4, 9]
    with pytest.raises(UserError, match=r"^3 is wrong\.$"):
        list(processes.map_blocks(calls(fail, [3])))
    first, *others = processes.map_blocks(calls(wait_for_all, [(number, tmp_path) for number in range(8)]))
    assert first != 0 and sorted([first, *others]) == list(range(8))


def test_what_a_lost_process_did_is_done_again(processes, tmp_path):
    jobs = [(number, tmp_path / "died" if number == 2 else None) for number in range(6)]
    assert sorted(processes.map_blocks(calls(die_at_first, jobs))) == list(range(6)) and (tmp_path / "died").exists()
    assert list(processes.map_blocks(calls(square, [5]))) == [25]
    with refused("--workers"):  # as no process survives it
        list(processes.map_blocks(calls(die, [1])))
    assert list(processes.map_blocks(calls(square, [5]))) == [25]


WAITS = """
import time
from functools import partial
from fairseq_mtmoe.data.corpora.engine.workers import Processes
processes = Processes(2)
number = "(__import__('time').sleep(0.2), __import__('os').getpid())[1]"
print(*set(processes.map_blocks([partial(eval, number)] * 4)), flush=True)
time.sleep(600)
"""


def test_no_process_outlives_the_one_that_it_works_for():
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True) as parent:
        numbers = list(map(int, parent.stdout.readline().split()))
        assert numbers and all(map(is_running, numbers))
        parent.kill()
    deadline = time.monotonic() + 60
    while any(map(is_running, numbers)):
        assert time.monotonic() < deadline, "a worker is left"
        time.sleep(0.02)


def is_running(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def local_cluster(folder, n_workers):
    distributed = pytest.importorskip("distributed")
    settings = {"n_workers": n_workers, "threads_per_worker": 1, "dashboard_address": None}
    local = distributed.LocalCluster(**settings, local_directory=str(folder))
    with local, cluster(local.scheduler_address) as hands:
        yield local, hands


@pytest.mark.slow
@pytest.mark.rare
def test_a_cluster_does_again_what_a_lost_worker_did_and_its_end_is_one_sentence(tmp_path, monkeypatch):
    with local_cluster(tmp_path, 2) as (local, hands):
        jobs = [(number, tmp_path / "died" if number == 3 else None) for number in range(10)]
        assert sorted(hands.map_blocks(calls(die_at_first, jobs))) == list(range(10)) and (tmp_path / "died").exists()
        with pytest.raises(UserError, match=r"^3 is wrong\.$"):
            list(hands.map_blocks(calls(fail, [3])))
        monkeypatch.setattr(workers, "SECONDS_BETWEEN_LOOKS", 0.1)
        monkeypatch.setattr(workers, "SECONDS_TO_CONNECT", 1.0)  # also how long an end is waited for
        results = hands.map_blocks(calls(square, range(100)))
        assert next(results) < 100
        local.close()
        with refused("--scheduler"):
            list(results)


@pytest.mark.slow
def test_a_cluster_that_loses_all_workers_is_one_sentence(tmp_path, monkeypatch):
    async def stay_down():
        pass

    monkeypatch.setattr(workers, "SECONDS_WITHOUT_WORKERS", 1.0)
    monkeypatch.setattr(workers, "SECONDS_BETWEEN_LOOKS", 0.1)
    with local_cluster(tmp_path, 1) as (local, hands):
        for nanny in local.workers.values():
            nanny.instantiate = stay_down
        for function in (die, square):  # nor is there one at the start
            with refused("--scheduler", "dask worker ADDRESS --nthreads 1"):
                list(hands.map_blocks(calls(function, range(3))))


def test_a_scheduler_that_is_not_there_is_one_sentence(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(workers, "SECONDS_TO_CONNECT", 0.2)
    with refused("--scheduler"), cluster("tcp://127.0.0.1:9"):
        pass


def test_a_step_that_is_one_long_call_is_shown_now_and_then(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(workers, "SECONDS_BETWEEN_LINES", 0.02)
    with workers.shown(tmp_path / "log.txt") as shown:
        with shown.step("Making the vocabulary"):
            time.sleep(0.15)
        before = capsys.readouterr().err.splitlines()
        assert 3 <= len(before) <= 9 and set(before) == {"Making the vocabulary: 0 s"}
        time.sleep(0.1)
        assert not capsys.readouterr().err  # the step has ended
    assert (tmp_path / "log.txt").read_text().count("Making the vocabulary") == len(before) + 1


def test_no_link_is_followed_to_the_work_folder_or_its_log(tmp_path):
    (tmp_path / "home" / "precious").mkdir(parents=True)
    (tmp_path / ".data.work").symlink_to("home")
    with refused(".data.work"), store.WorkFolder(tmp_path / "data").held():
        pass
    (tmp_path / "log.txt").symlink_to("home/log")
    with refused("log.txt"), workers.shown(tmp_path / "log.txt"):
        pass
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["precious"]
