"""Options that are others while something runs: what fairseq does by an option, a caller of it may do itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from omegaconf import open_dict


@contextmanager
def with_option(options: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, one of fairseq's options has this value."""
    with open_dict(options):
        before, options[name] = options[name], value
        try:
            yield
        finally:
            options[name] = before
