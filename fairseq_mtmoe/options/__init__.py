"""Option dataclasses that several models share."""

from dataclasses import dataclass, field
from typing import Any, List, Optional


def option(default: Any, meaning: Optional[str], **more: Any) -> Any:
    """Return a dataclass field with a default and a `--help` text, and fairseq's `argparse_alias` and the like."""
    return field(default=default, metadata={"help": meaning, **more})


@dataclass
class TaskOptions:
    """Options of models that read task ids; the task fills them in."""

    task_names: Optional[str] = option(
        None, "comma-separated names of the tasks that the model distinguishes; the task fills it in"
    )


def names_of_tasks(cfg: Any) -> List[str]:
    """Return the model's task names, an empty list if the task gives no ids."""
    return cfg.task_names.split(",") if cfg.task_names else []


def value_of(cfg: Any, options: type, name: str) -> Any:
    """Return an option's value, or its default where an old `cfg` lacks it."""
    return getattr(cfg, name, getattr(options, name))
