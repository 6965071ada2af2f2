"""Settings of a task that travel in its checkpoints, so that generation and prediction need no option repeated."""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

logger = logging.getLogger(__name__)


def take_over(args: Namespace, state: Mapping[str, Any], names: Sequence[str]) -> bool:
    """Put a checkpoint's settings of these names in the place of the options; True if that changed any."""
    changed = _differing(args, state, names)
    for name, value in changed.items():
        logger.info(f"from the checkpoint: {name} = {value} instead of {getattr(args, name)}")
        setattr(args, name, value)
    return bool(changed)


def warn_of_changes(args: Namespace, state: Mapping[str, Any], names: Sequence[str]) -> None:
    """Say which settings a run has changed since the checkpoint that it goes on from."""
    for name, value in _differing(args, state, names).items():
        logger.warning(f"{name} was {value} when the checkpoint was trained, and is {getattr(args, name)} from now on")


def _differing(args: Namespace, state: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: state[name] for name in names if name in state and state[name] != getattr(args, name)}
