"""What was run, of several runs beside each other: where they differ, and what they have in common."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Setting = tuple[str, list[str]]
"""Its name, and its value in each run."""

_FIRST = ("data", "commit", "hardware", "started", "seed")
_SIZES = {"parameters": "parameters", "multiplications": "multiplications per token"}


@dataclass
class Setups:
    """Settings by name; a value that a run does not have, or that is a default, is empty.

    Attributes:
        runs: their names.
        differing: what is not the same in all runs, but for commands.
        common: what is.
        commands: by run, of those whose command is known.
    """

    runs: list[str]
    differing: list[Setting] = field(default_factory=list)
    common: list[tuple[str, str]] = field(default_factory=list)
    commands: list[tuple[str, str]] = field(default_factory=list)


def setups_of(setups: Mapping[str, Mapping[str, Any]]) -> Setups:
    """Compares the setups of runs, of one run too: then everything is in common.

    Args:
        setups: by the run's name, as `run_facts.fields.Setup`.
    """
    found, settings = Setups(list(setups)), [_settings(setup) for setup in setups.values()]
    folders = [setup.get("folder") for setup in setups.values()]
    for name in dict.fromkeys(name for one in settings for name in one):
        values = [one.get(name, "") for one in settings]
        if len({_meant(name, value, folder) for value, folder in zip(values, folders, strict=True)}) > 1:
            found.differing.append((name, values))
        elif values[0]:
            found.common.append((name, values[0]))
    found.commands = [(name, one["command"]) for name, one in setups.items() if one.get("command")]
    return found


def _settings(setup: Mapping[str, Any]) -> dict[str, str]:
    """Everything of a setup that has one value, what was asked for first, then options, then versions."""
    found = {name: setup.get(name) for name in _FIRST}
    found |= {title: _grouped(setup.get(name)) for name, title in _SIZES.items()}
    sizes = setup.get("sizes") or {}
    found["training sentences"] = f"{sum(sizes.values()):,} in {len(sizes)} sets" if sizes else None
    found |= {f"--{name.replace('_', '-')}": value for name, value in sorted((setup.get("options") or {}).items())}
    found |= {f"{name} (version)": value for name, value in sorted((setup.get("versions") or {}).items())}
    return {name: _text(value) for name, value in found.items()}


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _grouped(count: int | None) -> str | None:
    return None if count is None else f"{count:,}"


def _meant(name: str, value: str, folder: str | None) -> str:
    """A value in which spellings of one path are alike, as far as the folder is known in which it begins."""
    if not value or (name != "data" and os.sep not in value):
        return value
    return ":".join(os.path.normpath(os.path.join(folder or "", part)) for part in value.split(":"))
