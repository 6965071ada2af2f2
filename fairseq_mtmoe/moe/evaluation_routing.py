"""The routing of BASE gates in translations and predictions.

It is never balanced, which only a validation can be.
By prices an output does not depend on the batch's other sentences.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from fairseq_mtmoe.moe.gates import BaseGate, base_gates


def route_by_prices_(model: nn.Module) -> list[BaseGate]:
    """Let gates that balance in evaluation route by prices instead; return them."""
    balanced = [gate for gate in base_gates(model) if gate.evaluation == "balanced"]
    for gate in balanced:
        gate.evaluation = "prices"
    return balanced


@contextmanager
def routed_by_prices(model: nn.Module) -> Iterator[None]:
    """Call `route_by_prices_` for the time of the context."""
    changed = route_by_prices_(model)
    try:
        yield
    finally:
        for gate in changed:
            gate.evaluation = "balanced"
