"""What a system of `bench_layer.py` costs besides time: memory at its peak."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from layer_systems import System
from torch.profiler import ProfilerActivity, profile


def peak_memory(system: System) -> int:
    """Bytes that one step holds at its peak beyond its weights, their gradients and its input.

    The profiler reports what is allocated and freed. What in the end holds a weight's gradient is left out by its
    address; a copy of weights or a second gradient on the way is not.
    """
    system.prepare()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        system.step()
    gradients = {
        value.grad.untyped_storage().data_ptr() for value in system.module.parameters() if value.grad is not None
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        found.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    changes = [event["args"] | {"ts": event["ts"]} for event in events if event.get("name") == "[memory]"]
    changes = [change for change in changes if change["Device Type"] == 0]
    changes.sort(key=lambda change: change["ts"])
    return peak([(change["Addr"], change["Bytes"]) for change in changes], gradients)


def peak(changes: list[tuple[int, int]], kept: set[int]) -> int:
    """The most bytes that are allocated at a time, by (address, bytes; negative when freed), in order of time.

    Left out: the last allocation at each of the addresses `kept`, if it is never freed; frees of what came before.
    """
    last = {}
    for index, (address, size) in enumerate(changes):
        last[address] = index if size > 0 else None
    left_out = {last.get(address) for address in kept}
    held: dict[int, int] = {}
    max_rows = now = 0
    for index, (address, size) in enumerate(changes):
        if size > 0 and index not in left_out:
            held[address] = size
            now += size
        elif size < 0:
            now -= held.pop(address, 0)
        max_rows = max(max_rows, now)
    return max_rows
