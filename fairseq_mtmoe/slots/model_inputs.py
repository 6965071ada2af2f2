"""What a model can be given."""

from __future__ import annotations

import inspect
from typing import Any


def takes(model: Any, name: str) -> bool:
    """Whether a model, inside whatever wraps it for several processes, has an input of this name."""
    while hasattr(model, "module"):
        model = model.module
    return name in inspect.signature(model.forward).parameters
