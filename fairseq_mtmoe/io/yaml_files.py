"""Users' YAML files: a dataclass for each part, a sentence for each mistake.

PyYAML's safe loader runs no code. But it accepts duplicate names, and values that JSON does not have.
"""

import json
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields as fields_of
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_type_hints

import yaml

from fairseq_mtmoe.errors import UserError, first_line, raise_invalid
from fairseq_mtmoe.io.files import read_text
from fairseq_mtmoe.io.typed import MISSING

Fields = TypeVar("Fields")

MAX_CHARACTERS = 2_000_000  # of a file: PyYAML needs 10 s for them
_PREFIX = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """PyYAML's safe loader without duplicate names; dates are text, as in YAML 1.2."""

    yaml_implicit_resolvers = {
        first: [resolver for resolver in resolvers if resolver[0] != f"{_PREFIX}timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if repeated:
            raise yaml.YAMLError(f"line {node.start_mark.line + 1} begins a value with `{repeated[0]}` twice")
        content: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return content


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
        raise UserError(f"`{path}` must be {what} in YAML, but cannot be read: {reason}.") from error
    if not isinstance(content, dict):
        raise_invalid(str(path), f"{what}: {form}", type(content).__name__)
    return content


def check_names(where: str, content: Any, known: Sequence[str]) -> None:
    """Refuse content that is no mapping, or has unknown names (UserError)."""
    if not isinstance(content, dict):
        raise_invalid(where, "names and their values", content)
    for name in content:
        if name not in known:
            raise_invalid(f"a name in {where}", f"one of {', '.join(known)}", name)


def structured(form: type[Fields], where: str, content: Any, other: Fields | None = None) -> Fields:
    """Return the dataclass `form` with the values of `content` (UserError).

    Args:
        form: a dataclass that OmegaConf reads; fields without a default are `MISSING`.
        where: the content's place, for errors.
        content: names and values.
        other: provides values that content lacks; by default the dataclass does.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

    content = {} if content is None else content
    _check_fields(form, where, content)
    try:
        before = OmegaConf.structured(form if other is None else _with_texts(other, _hidden))
        made = OmegaConf.to_object(OmegaConf.merge(before, _with_texts(content, _hidden)))
        return cast("Fields", _with_texts(made, _shown))
    except MissingMandatoryValue as error:
        fields = fields_of(form)  # type: ignore[arg-type]
        missing = [field.name for field in fields if field.default == MISSING and field.name not in content]
        raise UserError(f"`{where}` must have `{missing[0] if missing else error.key}`, but does not.") from error
    except OmegaConfBaseException as error:
        raise UserError(f"`{where}: {error.full_key}` is wrong: {_shown(first_line(error))}.") from error


def _check_fields(form: type[Any], where: str, content: Any) -> None:
    """Check names, and that lists of texts or numbers have no lists inside."""
    check_names(where, content, [field.name for field in fields_of(form)])
    hints = get_type_hints(form)
    for name, value in content.items():
        inner = [one for one in (hints[name], *get_args(hints[name])) if is_dataclass(one)]
        parts = value if isinstance(value, list) else [value]
        for part in parts:
            if inner and isinstance(part, dict):
                _check_fields(cast("type[Any]", inner[0]), f"{where}: {name}", part)
            elif not inner and isinstance(value, list) and isinstance(part, list | dict):
                raise_invalid(f"{where}: {name}", "a list of texts or numbers", part)


def _hidden(text: str) -> str:
    """Return a text that OmegaConf leaves alone: `${oc.env:HOME}` and `???`."""
    return text.replace("${", "$\0{") if text != MISSING else f"\0{MISSING}"


def _shown(text: str) -> str:
    """Undo `_hidden`."""
    return text.replace("$\0{", "${").replace(f"\0{MISSING}", MISSING)


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value with each text in it changed, except names."""
    if isinstance(value, dict):
        return {key: _with_texts(part, change) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_texts(part, change) for part in value]
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **_with_texts({field.name: getattr(value, field.name) for field in fields_of(value)}, change)
        )
    return change(value) if isinstance(value, str) else value
