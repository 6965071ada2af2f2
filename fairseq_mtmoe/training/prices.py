"""The running prices of BASE layers move with every update that a training makes, and with nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import distributed as dist

from fairseq_mtmoe.moe import BaseGate, MoELayer, RunningPrices, forget_prices, remember_prices


class PriceUpdates:
    """Moves them once an update is made.

    Args:
        layers: gives the expert layers, which a model that starts dense does not have yet.
    """

    def __init__(self, layers: Callable[[], list[MoELayer]]) -> None:
        self._layers = layers
        self._is_stepping = False

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around a training step, which makes an update or leaves it out."""
        forget_prices(self._prices)  # of an update that was left out
        self._is_stepping = True
        try:
            yield
        finally:
            self._is_stepping = False

    def made(self, group: dist.ProcessGroup | None) -> None:
        """The step under way has changed the weights; does nothing outside a step. See `remember_prices`."""
        if self._is_stepping:
            remember_prices(self._prices, group)

    @property
    def _prices(self) -> list[RunningPrices]:
        return [layer.gate.prices for layer in self._layers() if isinstance(layer.gate, BaseGate)]
