"""Check values against annotations by pydantic.

The first mistake is described in a sentence.

`fault` checks a file's plain values. Keys of a dictionary that its annotation does not name may
have any value. `structured` makes a dataclass of them. Nothing is converted.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Required, TypeVar, get_type_hints

from typing_extensions import TypedDict  # pydantic reads typing's from Python 3.12 on

from fairseq_mtmoe.core.errors import UserError, nearest

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Structure = TypeVar("Structure")

_MOST_SHOWN = 80
UNKNOWN = "absent, as no such name is known"
_LARGEST_SHOWN = 10**40


@dataclass(frozen=True)
class Rule:
    """A test of a value besides its type, with its words.

    It is metadata of `Annotated`, or of an option's field.
    """

    words: str
    holds: Callable[[Any], bool]

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, value: Any) -> Any:
        from pydantic_core import PydanticCustomError

        if not self.holds(value):
            raise PydanticCustomError("rule", "Input should be {words}", {"words": self.words})
        return value


@dataclass(frozen=True)
class Fault:
    """The value at `path` must be `rule`, but is `value`."""

    path: str
    rule: str
    value: str

    def __str__(self) -> str:
        return f"must have {self.rule} as `{self.path}`, but has {self.value}"


@dataclass(frozen=True)
class _Loose:
    """Metadata of `Annotated`: pydantic converts."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        return {**handler(source), "strict": False}


OR_LIST = _Loose()  # metadata of a tuple that may be a list
# Text without lone surrogates, which JSON can spell but UTF-8 cannot.
Text = Annotated[
    str, Rule("text", lambda value: not any("\ud800" <= letter <= "\udfff" for letter in value))
]
Name = Annotated[Text, Rule("a name", lambda value: value != "")]


def between(least: float, most: float) -> Rule:
    """Return the rule of a number within bounds."""
    return Rule(f"a number from {least:,} to {most:,}", lambda value: least <= value <= most)


def at_least(least: float) -> Rule:
    """Return the rule of a number with a lower bound."""
    return Rule(f"at least {least:,}", lambda value: value >= least)


def one_of(choices: Collection[str]) -> Rule:
    """Return the rule of a text among others."""
    return Rule(f"one of {', '.join(choices)}", lambda value: value in choices)


def mapping(fields: dict[str, Any]) -> Any:
    """Return the annotation of a dictionary with these keys.

    Keys are optional unless `Required`.
    """
    return TypedDict("mapping", fields, total=False)  # type: ignore[operator]


def fault(value: Any, kind: Any, path: str = "") -> Fault | None:
    """Return the first value in `value` that breaks an annotation, or None.

    path: the value's name.
    """
    from pydantic import ValidationError

    try:
        _adapter(kind).validate_python([value])
    except ValidationError as error:
        return _first_fault(error, [value], path)
    return None


def structured(kind: type[Structure], value: Any, where: str) -> Structure:
    """Return plain values as an instance of a dataclass.

    Raises `UserError`; `where` names the values' place.
    """
    from pydantic import ValidationError

    adapter = _adapter(kind)  # type: ignore[arg-type]
    try:
        made: list[Structure] = adapter.validate_json(json.dumps([value]))
    except ValidationError as error:
        wrong = _first_fault(error, [value], "")
        place = f"{where}: {wrong.path}" if wrong.path else where
        if wrong.rule == UNKNOWN and "." not in wrong.path:
            names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
            raise UserError(
                f"`{place}` is no known name; the most similar one is {nearest(wrong.path, names)}."
            ) from error
        raise UserError(f"`{place}` must be {wrong.rule}, but is {wrong.value} instead.") from error
    return made[0]


@cache
def mapping_of(kind: type) -> Any:
    """Return the annotation of a dictionary of a dataclass's fields."""
    hints = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            hints[field.name] = Required[hints[field.name]]
    return mapping(hints)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the validator of a list of such values.

    A `TypedDict` itself takes no configuration.
    """
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(list[kind], config=ConfigDict(strict=True, arbitrary_types_allowed=True))


def _first_fault(error: Any, value: Any, path: str) -> Fault:
    """Return the fault of pydantic's deepest mistakes.

    Other members of a union fail earlier.
    """
    mistakes = error.errors(include_url=False)
    # A misspelt name also leaves the right one missing.
    misspelt = [each for each in mistakes if each["type"] == "unexpected_keyword_argument"]
    mistakes = misspelt or mistakes
    paths = [_path_of(mistake, value) for mistake in mistakes]
    deepest = max(paths, key=len)
    chosen = [mistake for mistake, place in zip(mistakes, paths, strict=True) if place == deepest]
    rules = dict.fromkeys(_rule_of(mistake) for mistake in chosen)
    shown_value = "none" if chosen[0]["type"] == "missing" else shown(chosen[0]["input"])
    return Fault(".".join([path, *deepest]).lstrip("."), " or ".join(rules), shown_value)


def _path_of(mistake: dict[str, Any], value: Any) -> list[str]:
    """Return the keys and indices that lead to a mistake.

    They are without pydantic's names of types.
    """
    steps = mistake["loc"]
    if not steps:  # the text itself: half a character, or too many levels
        return []
    if steps[-1] == "[key]":
        steps = steps[:-2]
    path = []
    for step in steps:
        is_key = isinstance(value, dict) and step in value
        is_index = isinstance(value, list | tuple) and isinstance(step, int)
        if is_key or is_index:
            value = value[step]
            path.append(str(step))
    if mistake["type"] == "missing":
        path.append(str(steps[-1]))
    return path[1:]


def _rule_of(mistake: dict[str, Any]) -> str:
    """Return pydantic's message as a noun phrase."""
    rules = {
        "missing": "a value",
        "unexpected_keyword_argument": UNKNOWN,
        "json_invalid": "values of whole characters, in few levels",
    }
    message: str = mistake["msg"].removeprefix("Input should be ")
    return rules.get(mistake["type"], message)


def shown(value: Any) -> str:
    """Return a value for a sentence: a short one itself, others by their type."""
    if isinstance(value, int) and abs(value) >= _LARGEST_SHOWN:
        return "a number of more than 40 digits"
    if value is None or isinstance(value, str | int | float):
        text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
        return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
    if hasattr(value, "shape"):
        return f"a tensor of the shape {tuple(value.shape)}"
    return (
        f"a {type(value).__name__}" if value or not isinstance(value, dict | list) else repr(value)
    )
