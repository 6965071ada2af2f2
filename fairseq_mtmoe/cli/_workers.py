"""Processes that translate batches: each loads the models, and has its share of the threads."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from typing import TYPE_CHECKING

from fairseq_mtmoe.cli._shared import cores, quiet_fairseq
from fairseq_mtmoe.errors import UserError

if TYPE_CHECKING:
    from fairseq_mtmoe.evaluation.text_batches import Hypothesis, Row
    from fairseq_mtmoe.evaluation.text_translator import TextTranslator
    from fairseq_mtmoe.evaluation.translator import Decoding


@dataclass(frozen=True)
class Models:
    """What a process loads, and how it translates."""

    checkpoints: tuple[str, ...]
    decoding: Decoding
    data: str | None
    n_best: int

    def load(self) -> TextTranslator:
        from fairseq_mtmoe.evaluation.text_translator import TextTranslator

        return TextTranslator(self.checkpoints, self.decoding, self.data)


class Here:
    """This process, which has the models."""

    def __init__(self, models: Models, translator: TextTranslator) -> None:
        self._models, self._translator = models, translator

    def translate(self, batches: Mapping[int, Sequence[Row]]) -> Iterator[tuple[int, list[list[Hypothesis]]]]:
        """The hypotheses of each batch, by its number, as they come."""
        for number, rows in batches.items():
            yield number, self._translator.translate_batch(rows, self._models.decoding, self._models.n_best)

    def close(self) -> None:
        """Nothing runs."""


class Processes:
    """So many others. A new interpreter each: torch's threads do not survive a fork."""

    def __init__(self, models: Models, count: int) -> None:
        threads = max(1, cores() // count)
        self._executor = ProcessPoolExecutor(count, get_context("spawn"), _begin, (pickle.dumps(models), threads))

    def translate(self, batches: Mapping[int, Sequence[Row]]) -> Iterator[tuple[int, list[list[Hypothesis]]]]:
        """As `Here`.

        Raises:
            UserError: as in this process, or a process has died.
        """
        try:
            numbers = {self._executor.submit(_translate, list(rows)): number for number, rows in batches.items()}
            for future in as_completed(numbers):
                yield numbers[future], future.result()
        except BrokenProcessPool as error:
            raise UserError(
                "`--workers` must be so many processes as there is memory for, but one of them has died, for want of "
                "it most likely."
            ) from error

    def close(self) -> None:
        self._executor.shutdown(cancel_futures=True)


_models: Models | None = None  # of a process that is one of several
_loaded: list[TextTranslator] = []


def _begin(models: bytes, threads: int) -> None:
    """Called in a new process, whose errors nobody would hear of here: it loads the models with its first batch."""
    global _models
    with quiet_fairseq():
        import torch

        from fairseq_mtmoe import register

        register()
        _models = pickle.loads(models)
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends this one
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the first one is killed, which it would otherwise wait for forever."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _translate(rows: Sequence[Row]) -> list[list[Hypothesis]]:
    assert _models is not None
    with quiet_fairseq():
        if not _loaded:
            _loaded.append(_models.load())
        return _loaded[0].translate_batch(rows, _models.decoding, _models.n_best)
