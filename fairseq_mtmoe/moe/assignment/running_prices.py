"""Running dual prices of balanced assignment, by which evaluation routes.

At the optimum of the assignment, each token takes the expert with the highest `score - price`
(duality). The running mean of the N prices routes a token as training did on average, independent
of its batch. (Loss-free balancing, Wang et al. 2024, adds a similar bias, updated by the loads.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

MEMORY = 0.95  # see benchmarks/results/prices.md


class RunningPrices(nn.Module):
    """The running mean of one expert layer's prices, in units of the scores.

    It is 0 before the first update. `total`, (N,), sums the prices of all updates, the newest
    times 1 - memory, the one before times memory of that, and so on. `weight`, (), sums these
    factors. Both are float32 in every model. Their means over several models (averaged
    checkpoints) are means over the models that have prices. `memory` is from 0 to below 1.
    """

    total: Tensor
    weight: Tensor

    def __init__(self, num_experts: int, memory: float = MEMORY) -> None:
        super().__init__()
        assert 0 <= memory < 1
        self.memory = float(memory)
        self.register_buffer("total", torch.zeros(num_experts))
        self.register_buffer("weight", torch.zeros(()))
        self.known = False  # whether there was an update
        self._pending: Tensor | None = None

    @property
    def mean(self) -> Tensor:
        """The prices, (N,): a token prefers the highest score minus price."""
        return self.total.float() / self.weight.float().clamp(min=torch.finfo(torch.float32).tiny)

    @property
    def start(self) -> Tensor | None:
        """The prices from which an assignment begins; None before the first update."""
        return self.mean if self.known else None

    def record(self, price_N: Tensor, num_tokens: Tensor) -> None:
        """Keep a batch's prices, (N,), and number of tokens, (), until the update.

        The prices have mean 0.
        """
        entry = torch.cat([price_N * num_tokens, num_tokens.to(price_N).view(1)])
        self._pending = entry if self._pending is None else self._pending + entry

    @property
    def recorded(self) -> Tensor:
        """Sums of recorded prices times tokens, and number of tokens, (N + 1,).

        They count this rank's tokens. The trainer sets the sums over all ranks.
        """
        return self.total.new_zeros(len(self.total) + 1) if self._pending is None else self._pending

    @recorded.setter
    def recorded(self, sum_of_all: Tensor) -> None:
        self._pending = sum_of_all.to(self.total)

    def forget(self) -> None:
        """Drop the recorded prices, because their update was skipped."""
        self._pending = None

    @torch.no_grad()
    def move(self) -> None:
        """Move the mean by the recorded prices, if they are finite and there are tokens."""
        if self._pending is None:
            return
        taken = self._pending
        self._pending = None
        # Wrappers of whole models cast buffers without calling `_apply`.
        self.total = self.total.float()
        self.weight = self.weight.float()
        count = taken[-1]
        price_N = taken[:-1] / count.clamp(min=1)
        moves = (count > 0) & price_N.isfinite().all()
        step = moves * (1 - self.memory)
        self.total.lerp_(price_N.where(moves, 0.0), step)
        self.weight.lerp_(torch.ones_like(step), step)
        self.known = True

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RunningPrices:
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in before.items():
            moved = self._buffers[name]
            if buffer is not None and moved is not None and moved.dtype != torch.float32:
                self._buffers[name] = buffer.to(moved.device)
        self._pending = None
        return self

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._pending = None
        is_finite = self.total.isfinite().all() & self.weight.isfinite()
        self.known = bool(is_finite & (self.weight > 0))
        # Damaged prices would route everything to one expert, and never recover.
        if not self.known:
            self.total.zero_()
            self.weight.zero_()


def running_prices(model: nn.Module) -> list[RunningPrices]:
    """Return the prices of all BASE layers of a model."""
    return [module for module in model.modules() if isinstance(module, RunningPrices)]


def remember_prices(prices: Iterable[RunningPrices]) -> None:
    """Move running means by the recorded prices after an update, weighted by tokens.

    Ranks that share the update have summed their `recorded`.
    """
    for layer in prices:
        layer.move()
