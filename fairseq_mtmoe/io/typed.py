"""Check a file's values against annotations.

`fault` finds the first value that does not match. A whole number is also a number, and a list also a tuple of its
length. A dictionary of annotations, or a dataclass, stands for dictionaries: `Required` keys must exist, and other keys
may have any value. A tuple of annotations is their union.
"""

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Required, Union

MISSING: Any = "???"  # OmegaConf's default of a required field; its import would add 0.1 s to each `--help`

_MOST_SHOWN, _LARGEST_SHOWN = 80, 10**40
_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", dict: "a dictionary",
          list: "a list", type(None): "null", None: "null"}  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """A test of a value besides its type, with its words; metadata of `Annotated`."""

    words: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True)
class Fault:
    """The value at `path` must be `rule`, but is `found`."""

    path: str
    rule: str
    found: str

    def __str__(self) -> str:
        return f"must have {self.rule} as `{self.path}`, but has {self.found}"


# Text without lone surrogates, which JSON can spell but UTF-8 cannot.
Text = Annotated[str, Rule("text", lambda value: not any("\ud800" <= letter <= "\udfff" for letter in value))]
Name = Annotated[Text, Rule("a name", lambda value: value != "")]


def between(least: float, most: float) -> Rule:
    """Return the rule of a number within bounds."""
    return Rule(f"a number from {least:,} to {most:,}", lambda value: least <= value <= most)


def fault(value: Any, kind: Any, path: str = "") -> Fault | None:
    """Return the first value in `value` that breaks an annotation, or None.

    path: the value's name.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return None
    if origin is Required:
        return fault(value, arguments[0], path)
    if _is_union(kind):
        faults = [fault(value, one, path) for one in arguments or kind]
        inner = [one for one in faults if one is not None and one.path != path]
        return None if None in faults else inner[0] if len(inner) == 1 else Fault(path, words(kind), shown(value))
    if origin is Annotated:
        found = fault(value, arguments[0], path)
        if found is None and all(rule.holds(value) for rule in arguments[1:]):
            return None
        return found if found is not None and found.path != path else Fault(path, words(kind), shown(value))
    if not _is_of(value, kind, origin, arguments):
        return Fault(path, words(kind), shown(value))
    fields, required = _fields(kind)
    missing = min(required - value.keys(), default=None) if required else None
    if missing is not None:
        return Fault(f"{path}.{missing}".lstrip("."), words(fields[missing]), "none")
    for name, one, inner in _parts(value, fields, origin, arguments):
        if (found := fault(one, inner, f"{path}.{name}".lstrip("."))) is not None:
            return found
    return None


def _is_union(kind: Any) -> bool:
    return isinstance(kind, tuple) or typing.get_origin(kind) in (Union, types.UnionType)


def _is_of(value: Any, kind: Any, origin: Any, arguments: tuple[Any, ...]) -> bool:
    """Return whether a value is of a type, apart from its content."""
    if kind is None:
        return value is None
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in arguments)
    if origin is tuple:
        return isinstance(value, tuple | list) and (arguments[-1] is ... or len(value) == len(arguments))
    if kind in (int, float):
        is_number = isinstance(value, int) or (kind is float and isinstance(value, float))
        return is_number and not isinstance(value, bool)
    return isinstance(value, dict if isinstance(kind, dict) or _is_dataclass(kind) else origin or kind)


def _parts(value: Any, fields: dict[str, Any], origin: Any, arguments: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the values inside a value, with their names and annotations."""
    if fields:
        yield from ((name, value[name], inner) for name, inner in fields.items() if name in value)
    elif isinstance(value, dict) and arguments:
        yield from (("its keys", key, arguments[0]) for key in value)
        yield from ((key, one, arguments[1]) for key, one in value.items())
    elif isinstance(value, list | tuple | set) and arguments:
        is_any_long = origin is not tuple or arguments[-1] is ...
        inner = [arguments[0]] * len(value) if is_any_long else arguments
        yield from ((index, one, one_kind) for index, (one, one_kind) in enumerate(zip(value, inner, strict=True)))


def _fields(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the annotations of a dictionary or dataclass, and the required names."""
    if isinstance(kind, dict):
        return kind, frozenset(name for name, inner in kind.items() if getattr(inner, "__origin__", None) is Required)
    return _fields_of_class(kind) if _is_dataclass(kind) else ({}, frozenset())


def _is_dataclass(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind)


@functools.cache
def _fields_of_class(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    missing = dataclasses.MISSING
    fields = (one for one in dataclasses.fields(kind) if one.default is missing and one.default_factory is missing)
    return typing.get_type_hints(kind, include_extras=True), frozenset(one.name for one in fields)


def words(kind: Any) -> str:
    """Return an annotation in words, for a sentence."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Required:
        return words(arguments[0])
    if origin is Annotated:
        return str(arguments[-1].words)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}" if len(arguments) > 1 else repr(arguments[0])
    if _is_union(kind):
        return " or ".join(dict.fromkeys(map(words, arguments or kind)))
    if origin is tuple and arguments[-1] is not ...:
        return f"{len(arguments)} values"
    if isinstance(kind, dict) or _is_dataclass(kind):
        return "a dictionary"
    return _WORDS.get(origin or kind) or f"a {getattr(origin or kind, '__name__', str(kind)).lower()}"


def shown(value: Any) -> str:
    """Return a value for a sentence: a short one itself, others by their type."""
    if isinstance(value, int) and abs(value) >= _LARGEST_SHOWN:
        return "a number of more than 40 digits"
    if isinstance(value, str | int | float):
        text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
        return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
    if hasattr(value, "shape"):
        return f"a tensor of the shape {tuple(value.shape)}"
    return words(type(value)) if value or not isinstance(value, dict | list) else f"{value!r}"
