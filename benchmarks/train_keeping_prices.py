"""`fairseq-train` that writes down what every update's batch said: the prices and loads of each BASE layer.

    python benchmarks/train_keeping_prices.py DATA --save-dir RUN … (options of fairseq-train)

writes `RUN/prices.jsonl`, one line per update, all lists in the order of the layers:
`{"update": 1, "prices": [[N numbers], …], "loads": [[least, most], …]}`; loads in shares of an even one. A run that
goes on repeats updates that were made after its last checkpoint: of lines with the same update, the last one counts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from fairseq_cli.train import cli_main
from torch import Tensor, nn

from fairseq_mtmoe import register
from fairseq_mtmoe.moe import BaseGate

PRICES = "prices.jsonl"


class UpdateLog:
    """Follows the BASE layers of a model from update to update."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loads: dict[nn.Module, Tensor] = {}

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Inside, tokens are counted: of all models' gates, for a model may get its gates at any time."""
        hook = nn.modules.module.register_module_forward_hook(self._count)
        try:
            yield
        finally:
            hook.remove()

    def _count(self, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(module, BaseGate) and module.training:
            load_N = torch.bincount(output.expert_T, minlength=module.num_experts)[: module.num_experts]
            self._loads[module] = self._loads.get(module, 0) + load_N

    def totals(self, model: nn.Module) -> dict[nn.Module, Tensor]:
        """Each gate's sum of prices now; a dense model has none."""
        return {gate: gate.prices.total.clone() for gate in model.modules() if isinstance(gate, BaseGate)}

    def write(self, update: int, model: nn.Module, before: dict[nn.Module, Tensor]) -> None:
        """One line for an update that was made, and moved the sums on from `before`."""
        gates = [gate for gate in model.modules() if isinstance(gate, BaseGate)]
        loads, self._loads = self._loads, {}
        if not gates:
            return
        line = {
            "update": update,
            "prices": [rounded(batch_prices(gate, before.get(gate))) for gate in gates],
            "loads": [rounded(torch.stack(loads[gate].aminmax()) / loads[gate].float().mean()) for gate in gates],
        }
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def batch_prices(gate: BaseGate, before_N: Tensor | None) -> Tensor:
    """The prices, (N,), by which the last update moved the gate's running mean from the sum before it."""
    prices = gate.prices
    before_N = torch.zeros_like(prices.total) if before_N is None else before_N
    return (prices.total - prices.memory * before_N) / (1 - prices.memory)


def rounded(values: Tensor) -> list[float]:
    """Six digits that count: what a sum in float32 has."""
    return [float(f"{value:.6g}") for value in values.tolist()]


def main() -> None:
    """Train with fairseq, under our trainer's eyes."""
    register()
    from fairseq_mtmoe.training.trainer import SparseTrainer

    log = UpdateLog(Path(sys.argv[sys.argv.index("--save-dir") + 1]) / PRICES)
    step = SparseTrainer.train_step

    def train_step(trainer: Any, samples: Any, raise_oom: bool = False) -> Any:
        before = log.totals(trainer.get_model())
        output = step(trainer, samples, raise_oom)
        if not trainer.left_out:
            log.write(trainer.get_num_updates(), trainer.get_model(), before)
        return output

    SparseTrainer.train_step = train_step  # type: ignore[method-assign]
    with log.counting():
        cli_main()


if __name__ == "__main__":
    main()
