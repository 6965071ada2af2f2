"""Processes that meet: threads of one process, at a store in its memory."""

import socket
import threading
import time

import pytest
from torch import distributed as dist

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.training import failures
from fairseq_mtmoe.training.rendezvous import CPU, Rendezvous, choose_backend
from tests.helpers.refused import refused

SECONDS = 0.5


@pytest.fixture
def meet(monkeypatch):
    """What becomes of processes, each given as (rank, world size, options): a backend or a sentence; and the seconds.

    Each begins `late` seconds after the one before.
    """
    told = []
    monkeypatch.setattr(failures, "heard", lambda: told[0] if told else None)

    def meet(*processes, late=0.02):
        store, found = dist.HashStore(), [None] * len(processes)

        def take_part(index, rank, world_size, options):
            meeting = Rendezvous(rank, world_size, SECONDS)
            try:
                meeting.take_rank(store)
                try:
                    found[index] = meeting.agree(store, options, f"GPU {rank}", "nccl")
                except UserError as error:
                    told.append(error)  # as `distributed_main` does
                    raise
            except UserError as error:
                found[index] = str(error)

        threads = [threading.Thread(target=take_part, args=(index, *one)) for index, one in enumerate(processes)]
        begin = time.monotonic()
        for thread in threads:
            thread.start()
            time.sleep(late)  # in this order
        for thread in threads:
            thread.join()
        return found, time.monotonic() - begin

    return meet


def options(**changes):
    return {"--distributed-world-size": 2, "--num-experts": 4, "--lr": 0.1, **changes}


@pytest.mark.parametrize("changed", [None, 0, 2])
def test_the_option_that_differs_is_named_to_all_at_once(changed, meet):
    given = [options(**({"--num-experts": 8, "--lr": 0.2} if rank == changed else {})) for rank in range(3)]
    found, took = meet(*((rank, 3, given[rank]) for rank in (2, 0, 1)))
    first, value = (8, 4) if changed == 0 else (4, 8)
    sentence = "`--num-experts` must be the same in all processes, but is {} in process 0 and {} in process {}."
    right = "nccl" if changed is None else sentence.format(first, value, max(changed, 1))
    assert found == [right] * 3 and took < SECONDS


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2)])
def test_another_number_of_processes_is_said_before_they_are_waited_for(sizes, meet):
    found, took = meet(*((rank, size, {"--distributed-world-size": size}) for rank, size in enumerate(sizes)))
    assert took < SECONDS and len(set(found)) == 1
    assert "`--distributed-world-size` must be the same in all processes" in found[0]


@pytest.mark.parametrize("ranks", [(0, 1), (1, 0), (1, 2)])
def test_a_process_that_does_not_come_is_named_in_time(ranks, meet):
    found, took = meet(*((rank, 3, options()) for rank in ranks), late=0.1)
    assert SECONDS <= took < SECONDS + 1
    (missing,) = {0, 1, 2} - set(ranks)
    for sentence in found:
        assert f"waited for process {missing}, which did not come within 0.5 seconds" in sentence


def test_two_of_one_rank_are_told_apart_and_the_others_go_on(meet):
    found, _ = meet((1, 2, options()), (1, 2, options()), (0, 2, options()))
    assert found[0] == found[2] == "nccl"
    assert "`--distributed-rank` must be another one in each process, but two have 1" in found[1]


def test_nobody_at_the_address():
    with pytest.raises(UserError, match=r"Process 1 of 2 could not reach process 0 at tcp://127\.0\.0\.1:1 within 0.2"):
        Rendezvous(1, 2, 0.2).store_at("tcp://127.0.0.1:1")


def test_an_address_that_is_taken():
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::", 0))
        taken.listen()
        with refused("--distributed-rank"):
            Rendezvous(0, 2, 1).store_at(f"tcp://localhost:{taken.getsockname()[1]}")


def test_a_lost_store_is_no_silence():
    class Lost(dist.HashStore):
        def check(self, keys):
            raise RuntimeError("Connection reset by peer\nat line 7")

    with pytest.raises(UserError, match=r"could not reach process 0 .*\(Connection reset by peer\)$"):
        Rendezvous(1, 2, SECONDS).agree(Lost(), options(), CPU, "nccl")


@pytest.mark.parametrize(
    ("wanted", "places", "chosen"),
    [
        ("nccl", ["a", "b"], "nccl"),
        ("nccl", ["a", "b", "a"], "gloo"),
        ("nccl", ["a", CPU], "gloo"),
        ("mpi", ["a", "a"], "mpi"),
    ],
)
def test_nccl_needs_a_gpu_for_each_process(wanted, places, chosen):
    assert choose_backend(wanted, places) == chosen
