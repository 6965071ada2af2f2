"""What a model can be given."""

from __future__ import annotations

import inspect
from typing import Any


def takes(model: Any, name: str) -> bool:
    """Whether a model, inside whatever wraps it for several processes, has an input of this name."""
    return name in inspect.signature(unwrapped(model).forward).parameters


def unwrapped(model: Any) -> Any:
    """A model without what wraps it for several processes."""
    while hasattr(model, "module"):
        model = model.module
    return model
