"""How much of each source task a target task borrows, layer by layer: PEMT, figure 4, from a run log."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairseq_mtmoe.errors import UserError


@dataclass(frozen=True)
class SourceWeights:
    """The weights at a run's last validation.

    Attributes:
        update: of the validation.
        target: the task that borrows.
        sources: the tasks that it borrows from.
        layers: of each layer, by its dotted path, the sources' mean weights; NaN where no sentence passed.
    """

    update: int = 0
    target: str = ""
    sources: Sequence[str] = ()
    layers: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def mean(self) -> list[float]:
        """Each source's mean weight, over the layers that know theirs."""
        known = [weights for weights in self.layers.values() if not any(map(math.isnan, weights))]
        return [sum(column) / len(known) for column in zip(*known, strict=True)] if known else []


def source_weights(events: Sequence[Mapping[str, Any]]) -> SourceWeights:
    """Those of the last event of a run that says some, `events` being its `sources`.

    Raises:
        UserError: a layer has more weights, or fewer, than there are sources.
    """
    if not events:
        return SourceWeights()
    last = events[-1]
    sources = list(last.get("sources", ()))
    layers = {
        path: [math.nan if weight is None else float(weight) for weight in weights]
        for path, weights in last.get("layers", {}).items()
    }
    for path, weights in layers.items():
        if len(weights) != len(sources):
            raise UserError(
                f"The run log must have a weight for each of the {len(sources)} sources in {path}, but has "
                f"{len(weights)}: it is of several runs, and each needs a folder of its own."
            )
    return SourceWeights(int(last["update"]), last.get("target", ""), sources, layers)
