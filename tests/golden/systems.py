"""The losses of five updates of every system of the battery, as 0.2.0 computed them.

`python -m tests.golden.systems` writes `systems.json` anew, after a change that is meant to change them.
"""

import json
from pathlib import Path

import torch

from tests.systems.system import System, all_systems, train

LOSSES = Path(__file__).parent / "systems.json"
UPDATES = 5
SEED = 2  # of the first six, the one with which no token lies between two experts on any processor tried


def losses_of(system: System) -> list[float]:
    """Train in float64, whose rounding Adam's first steps don't make visible; return each loss, then evaluation's."""
    torch.manual_seed(7)
    model = system.build(SEED).double()
    losses = [train(model, system.loss, system.batch(), 1) for _ in range(UPDATES)]
    with torch.no_grad():
        losses.append(system.loss(model.eval(), system.batch()).item())
    return losses


if __name__ == "__main__":
    losses = {system.name: losses_of(system) for system in all_systems()}
    LOSSES.write_text(json.dumps(losses, indent=1) + "\n")
