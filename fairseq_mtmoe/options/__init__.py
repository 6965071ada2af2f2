"""Option dataclasses that several models share."""

from typing import Any


def value_of(cfg: Any, options: type, name: str) -> Any:
    """An option of a model's configuration; its default in one that was saved before there was this option.

    Args:
        cfg: the configuration, as fairseq has it.
        options: the dataclass that has the option.
        name: the option's.
    """
    return getattr(cfg, name, getattr(options, name))
