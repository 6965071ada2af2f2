"""What the sizes of any backbone are checked for, by their types; read from files, they may be anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from fairseq_mtmoe.errors import raise_invalid

MOST = 1 << 24  # of any size: a file that asks for more is damaged
MOST_BLOCKS = 1 << 10


def check_fields(sizes: Any, may_be_zero: Collection[str] = (), may_be_large: Collection[str] = ()) -> None:
    """Raise the `UserError` that names the first field of a dataclass which has not its type, or is out of all bounds.

    Args:
        sizes: whose fields are text, whole numbers, numbers from 0 to 1 and truth values.
        may_be_zero: whole numbers, such as the number of a token, that need not be above 0.
        may_be_large: numbers that need not be from 0 to 1, but above 0.
    """
    for field in dataclasses.fields(sizes):
        name, value = field.name, getattr(sizes, field.name)
        if field.type == "int":
            _check_size(name, value, 0 if name in may_be_zero else 1)
        elif field.type == "float":
            _check_number(name, value, name in may_be_large)
        elif str(field.type).startswith("bool"):
            if type(value) is not bool:
                raise_invalid(name, "true or false", value)
        elif not isinstance(value, str):
            raise_invalid(name, "text", value)


def _check_size(name: str, value: object, least: int) -> None:
    if type(value) is not int or not least <= value <= MOST:
        raise_invalid(name, f"a whole number from {least} to {MOST}", value)


def _check_number(name: str, value: object, may_be_large: bool) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if may_be_large and not (is_number and 0 < value < MOST):  # type: ignore[operator]
        raise_invalid(name, "a number above 0", value)
    if not may_be_large and not (is_number and 0 <= value <= 1):  # type: ignore[operator]
        raise_invalid(name, "a number from 0 to 1", value)
