"""The position in an epoch of fairseq's own tasks, for another number of processes.

fairseq saves how many batches one process has seen. Tasks whose iterator counts those of all processes, such as
`translation_heated`, go on exactly; for all others the position is converted as well as it can be. Those also draw
their batches once, for the epoch in which a process starts: a run that goes on must draw for the same as before.
"""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)

SEEN = "iterations_in_epoch"
PROCESSES = "num_processes"
DRAWN = "drawn_in_epoch"
EXACT = "batches_in_epoch"  # in the state of an iterator that needs no conversion


def counted(extra_state: dict[str, Any], num_processes: int, drawn: int | None) -> dict[str, Any]:
    """What fairseq saves beside a model, with how many processes its position is of and when its batches were drawn."""
    position = extra_state.get("train_iterator")
    if position is None or EXACT in position:
        return extra_state
    return {**extra_state, "train_iterator": {**position, PROCESSES: num_processes, DRAWN: drawn}}


def drawn_in(extra_state: dict[str, Any] | None) -> int | None:
    """The epoch for which the batches of a position were drawn; None if any will do, or it is not known."""
    drawn: int | None = (extra_state or {}).get("train_iterator", {}).get(DRAWN)
    return drawn


def adapted(extra_state: dict[str, Any] | None, num_processes: int) -> dict[str, Any] | None:
    """What was saved, with the position in the epoch of so many processes; between two of them, the earlier one."""
    position = (extra_state or {}).get("train_iterator", {})
    before = position.get(PROCESSES, num_processes)
    if extra_state is None or EXACT in position or before == num_processes:
        return extra_state
    batches = position[SEEN] * before
    again = batches % num_processes
    if again:
        logger.warning(f"{again} batches of this epoch are seen twice: {batches} were, by {before} processes")
    return {**extra_state, "train_iterator": {**position, SEEN: batches // num_processes}}
