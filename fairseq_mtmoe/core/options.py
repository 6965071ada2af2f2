"""Option dataclasses that several models share."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, List, Optional

from fairseq_mtmoe.core.errors import flag, raise_invalid
from fairseq_mtmoe.core.typed import Rule


def option(default: Any, meaning: Optional[str], rule: Optional[Rule] = None, **more: Any) -> Any:
    """Return a dataclass field with a default, a `--help` text and a rule.

    `check_rules` applies the rule.

    more: fairseq's `argparse_alias` and the like.
    """
    return field(default=default, metadata={"help": meaning, "rule": rule, **more})


def check_rules(cfg: Any, options: type) -> None:
    """Check the options of a dataclass by their rules.

    Raises `UserError` for the first option that is wrong.

    None is no value.
    """
    for option_field in dataclasses.fields(options):
        rule = option_field.metadata.get("rule")
        if rule is None:
            continue
        value = value_of(cfg, options, option_field.name)
        if value is not None and not _holds(rule, value):
            raise_invalid(flag(option_field.name), rule.words, value)


def _holds(rule: Rule, value: Any) -> bool:
    """Return whether a rule holds; a value of another type breaks it."""
    try:
        return bool(rule.holds(value))
    except TypeError:
        return False


@dataclass
class TaskOptions:
    """Options of models that read task ids; the task fills them in."""

    task_names: Optional[str] = option(
        None,
        "comma-separated names of the tasks that the model distinguishes (default: set by --task)",
    )


def names_of_tasks(cfg: Any) -> List[str]:
    """Return the model's task names, an empty list if the task gives no ids."""
    return cfg.task_names.split(",") if cfg.task_names else []


def value_of(cfg: Any, options: type, name: str) -> Any:
    """Return an option's value, or its default where an old `cfg` lacks it."""
    return getattr(cfg, name, getattr(options, name))
