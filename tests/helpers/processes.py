"""Several processes in one test: a function runs in each, joined by gloo, and a watchdog ends them all in time."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import queue
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed as dist

SECONDS = 100  # ten times what a test takes on an idle machine

# A server that has imported everything once forks each process: starting takes a moment, and tests are many.
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["tests.helpers.forked"])


def run_processes(
    function: Callable[..., Any], world_size: int, *arguments: Any, seconds: float = SECONDS, joined: bool = True
) -> list[Any]:
    """What `function(rank, *arguments)` returned in each process; return tensors as numpy arrays or lists.

    The first process that fails fails the test, and so does silence after `seconds`; nothing is left running. Unless
    `joined` the function joins them itself.
    """
    results: Any = FORKED.Queue()
    with tempfile.TemporaryDirectory() as folder:
        address = f"file://{folder}/meeting" if joined else None
        processes = [
            FORKED.Process(target=_run, args=(function, rank, world_size, address, results, arguments), daemon=True)
            for rank in range(world_size)
        ]
        try:
            for process in processes:
                process.start()
            return _collect(results, processes, time.monotonic() + seconds)
        finally:
            for process in processes:
                process.kill()
                process.join()


def joined(states: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The state of a model that processes train together: the experts of all, one after the other."""
    return {
        name: np.concatenate([state[name] for state in states]) if ".moe.experts." in name else value
        for name, value in states[0].items()
    }


def _collect(results: Any, processes: list[Any], deadline: float) -> list[Any]:
    found: dict[int, Any] = {}
    while len(found) < len(processes):
        try:
            rank, value, error = results.get(timeout=0.2)
        except queue.Empty:
            dead = [rank for rank, process in enumerate(processes) if process.exitcode and rank not in found]
            if dead and results.empty():
                pytest.fail(f"process {dead[0]} died with {processes[dead[0]].exitcode}")
            if time.monotonic() > deadline:
                pytest.fail(f"hangs: only processes {sorted(found)} of {len(processes)} came to an end")
            continue
        if error:
            pytest.fail(f"process {rank} failed:\n{error}")
        found[rank] = value
    return [found[rank] for rank in range(len(processes))]


def _run(function: Any, rank: int, world_size: int, address: str | None, results: Any, arguments: Any) -> None:
    torch.set_num_threads(1)
    try:
        if address is not None:
            timeout = datetime.timedelta(seconds=SECONDS)
            dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size, timeout=timeout)
        results.put((rank, function(rank, *arguments), None))
        if address is not None:
            dist.barrier()
            dist.destroy_process_group()
    except Exception:
        results.put((rank, None, traceback.format_exc()))
        results.close()
        results.join_thread()
        os._exit(1)
