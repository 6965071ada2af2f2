"""`--log-format rich` among fairseq's formats; what it shows is in `training/screen.py`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import Enum
from typing import Any

from fairseq.logging import progress_bar

from fairseq_mtmoe.training.screen import NAME, RichProgressBar, is_rich


def with_choice(choices: type[Enum]) -> type[Enum]:
    """The same class with one more member: fairseq's configurations refer to it and were built before we came."""
    if NAME not in choices.__members__:
        member = object.__new__(choices)
        member._name_ = member._value_ = NAME
        choices._member_names_.append(NAME)
        choices._member_map_[NAME] = choices._value2member_map_[NAME] = member
    return choices


def with_rich(original: Callable[..., Any]) -> Callable[..., Any]:
    """fairseq's choice of a progress bar, with its wrappers (tensorboard and others) also around ours."""

    @functools.wraps(original)
    def make(iterator: Any, log_format: Any = None, log_interval: int = 100, **kwargs: Any) -> Any:
        if not is_rich(log_format):
            return original(iterator, log_format, log_interval, **kwargs)
        simple = progress_bar.SimpleProgressBar
        progress_bar.SimpleProgressBar = RichProgressBar
        try:
            return original(iterator, "simple", log_interval, **{**kwargs, "log_file": None})
        finally:
            progress_bar.SimpleProgressBar = simple

    return make
