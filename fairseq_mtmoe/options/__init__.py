"""Option dataclasses that several models share."""

from dataclasses import dataclass, field
from typing import Any, List, Optional


def option(default: Any, meaning: str) -> Any:
    """A field of an option dataclass with the text of its `--help`."""
    return field(default=default, metadata={"help": meaning})


@dataclass
class TaskOptions:
    """Mixed into whatever reads task ids; a task that gives ids fills it in."""

    task_names: Optional[str] = option(
        None, "comma-separated names of the tasks that a model tells apart; a multilingual task fills it in"
    )


def names_of_tasks(cfg: Any) -> List[str]:
    """The tasks that a model tells apart; none where the task gives no ids."""
    return cfg.task_names.split(",") if cfg.task_names else []


def value_of(cfg: Any, options: type, name: str) -> Any:
    """An option of a model's configuration; its default, of the dataclass, in one that was saved before it existed."""
    return getattr(cfg, name, getattr(options, name))
