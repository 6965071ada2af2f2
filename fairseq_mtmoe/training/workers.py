"""Ends the worker processes that loaded the batches of an epoch when it is over.

fairseq's iterator of an epoch refers to itself, and so keeps its workers until Python looks for cycles, which may be
many epochs later. Those of a validation stay until the next one.
"""

from __future__ import annotations

from typing import Any

_HELD_AS = ("_cur_epoch_itr", "_current_epoch_iterator")  # fairseq's two kinds of iterators


class PastEpochs:
    """The iterators that were handed out, whose epochs will be over."""

    def __init__(self) -> None:
        self._iterators: list[Any] = []

    def add(self, iterator: Any) -> Any:
        """Remember an iterator over epochs; returns it."""
        if not any(known is iterator for known in self._iterators):
            self._iterators.append(iterator)
        return iterator

    def end(self) -> None:
        """End the workers of all epochs that were begun so far; how many batches they had is still known."""
        for iterator in self._iterators:
            for name in _HELD_AS:
                counting: Any = getattr(iterator, name, None)
                if hasattr(counting, "_itr"):
                    counting._itr = iter(())
        self._iterators.clear()
