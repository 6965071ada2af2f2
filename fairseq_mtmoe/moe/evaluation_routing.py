"""The routing of BASE gates in translations and predictions: by prices.

With prices, an output does not depend on the other sentences in the batch.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from fairseq_mtmoe.moe.gates import BaseGate, base_gates


def route_by_prices_(model: nn.Module) -> list[BaseGate]:
    """Let gates route by prices that would balance in evaluation; return these gates."""
    balanced = [gate for gate in base_gates(model) if gate.evaluation == "balanced"]
    for gate in balanced:
        gate.evaluation = "prices"
    return balanced


@contextmanager
def routed_by_prices(model: nn.Module) -> Iterator[None]:
    """Call `route_by_prices_`, and restore the gates after the context."""
    changed = route_by_prices_(model)
    try:
        yield
    finally:
        for gate in changed:
            gate.evaluation = "balanced"
