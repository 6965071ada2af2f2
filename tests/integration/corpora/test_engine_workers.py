"""Every job is done, and a lost worker or cluster is one sentence, never a hang."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.corpora.engine import workers
from fairseq_mtmoe.corpora.engine.workers import Progress, Tools, Workers, cluster, local_workers
from tests.helpers.refused import refused


def calls(function, values):
    return [partial(function, value) for value in values]


def square(number):
    return number * number


def die(number):
    os.kill(os.getpid(), signal.SIGKILL)


def fail(number):
    raise UserError(f"{number} is wrong.")


@pytest.mark.parametrize("count", [1, 2])
def test_results_are_in_the_order_of_the_jobs_and_an_error_ends_the_run(count):
    with local_workers(count) as hands:
        tools = Tools(hands, Progress())
        jobs = list(zip(calls(square, range(12)), range(12), strict=True))
        assert tools.run("Squaring", jobs) == [number**2 for number in range(12)]
        with pytest.raises(UserError, match=r"^3 is wrong\.$"):
            tools.run("Failing", [(partial(fail, 3), 1)])
        if count == 2:
            with refused("--workers"):
                list(hands.results(calls(die, range(6))))


WAITS = """
import time
from functools import partial
from fairseq_mtmoe.corpora.engine.workers import local_workers
if __name__ == "__main__":
    with local_workers(2) as hands:
        number = "(__import__('time').sleep(0.2), __import__('os').getpid())[1]"
        print(*{result for _, result in hands.results([partial(eval, number)] * 4)}, flush=True)
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


def test_the_end_of_a_cluster_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "SECONDS_BETWEEN_LOOKS", 0.1)
    monkeypatch.setattr(workers, "SECONDS_TO_CONNECT", 1.0)  # also the time limit of a look
    with local_cluster(tmp_path, 2) as (local, hands):
        with pytest.raises(UserError, match=r"^3 is wrong\.$"):
            list(hands.results(calls(fail, [3])))
        results = hands.results(calls(square, range(100)))
        next(results)
        local.close()
        with refused("--scheduler"):
            list(results)
    with refused("--scheduler"), cluster("tcp://127.0.0.1:9"):  # where none is
        pass


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
                list(hands.results(calls(function, range(3))))


class LosingExecutor(ThreadPoolExecutor):
    """An executor whose first result is lost, as Dask's executor shows it."""

    calls = 0

    def submit(self, job):
        self.calls += 1
        lose = partial(exec, compile("kind, error = 1", "cfexecutor.py", "exec"))
        return super().submit(lose if self.calls == 1 else job)


def test_a_result_that_is_lost_is_made_again():
    with LosingExecutor(1) as executor:
        results = dict(Workers(executor).results(calls(square, range(3))))
    assert results == {0: 0, 1: 1, 2: 4} and executor.calls == 4
