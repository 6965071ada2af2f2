"""Users' YAML files.

PyYAML's safe loader runs no code. But it accepts duplicate names, and values that JSON does not
have.
"""

import json
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.core.files import read_text

MAX_CHARACTERS = 2_000_000  # of a file: PyYAML needs 10 s for them


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """PyYAML's safe loader without duplicate names; dates are text, as in YAML 1.2."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names = set()
        for key, _ in node.value:
            if key.value in names and key.value != "<<":
                raise yaml.YAMLError(
                    f"line {node.start_mark.line + 1} begins a value with `{key.value}` twice"
                )
            if isinstance(key, yaml.ScalarNode):
                names.add(key.value)
        content: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return content


_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_yaml_str)


def read_mapping(path: Path, what: str, form: str) -> dict[str, Any]:
    """Return a YAML file's names and values (UserError).

    what, form: noun phrases for errors, such as `a recipe` and its names.
    """
    text = read_text(path, what)
    if len(text) > MAX_CHARACTERS:
        raise_invalid(str(path), f"{what} of at most {MAX_CHARACTERS:,} characters", len(text))
    try:
        content = yaml.load(text, _Loader)
        json.dumps(content)  # refuses sets, bytes, and values that contain themselves
    except (yaml.YAMLError, ValueError, TypeError, LookupError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"`{path}` must be {what} in YAML, but cannot be read: {reason}."
        ) from error
    if not isinstance(content, dict):
        raise_invalid(str(path), f"{what}: {form}", type(content).__name__)
    return content
