"""Wrong input is a `UserError`, of which the command line prints the sentence alone (`training/failures.py`).

Invariants of our own code are asserted instead, and keep their traceback.
"""

import re
import sys
from collections.abc import Collection
from difflib import SequenceMatcher
from pathlib import Path
from typing import NoReturn

MAX_SHOWN = 300  # characters of a wrong value that a sentence shows: a file can hold a value of any length


class UserError(ValueError):
    """Wrong input. The message is one sentence: what is wrong, where, and what to do.

    names: the options, files and fields in backticks, what is wrong first. They tell errors apart.
    """

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(re.findall(r"`([^`]*)`", str(self)))


def first_line(error: object) -> str:
    """What an error of torch or the system says, without the traces that follow: for the end of a sentence."""
    return str(error).strip().partition("\n")[0]


def raise_invalid(name: str, rule: str, value: object) -> NoReturn:
    """Raise the `UserError` that says which rule the input `name` breaks, with the beginning of its value."""
    try:
        shown = repr(value)
    except (ValueError, RecursionError):  # Python spells no whole number of over 4,300 digits
        shown = f"{'a number' if isinstance(value, int) else f'a {type(value).__name__}'} too long to be shown"
    shown = shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}…"
    raise UserError(f"`{name}` must be {rule}, but is {shown} instead.")


def nearest(name: str, known: Collection[str]) -> str:
    """That of the names which is written most like another: what may have been meant."""
    return max(known, key=lambda other: _likeness(name, other))


def _likeness(name: str, other: str) -> tuple[float, float]:
    """First of what stands before an underscore: codes such as `swh_Latn` have a script or a country behind it."""
    heads = name.split("_")[0], other.split("_")[0]
    return SequenceMatcher(None, *heads).ratio(), SequenceMatcher(None, name, other).ratio()


def unknown_language(where: str, lang: str, known: Collection[str]) -> UserError:
    """The error that says that a model does not have a language, and which of its own is called most alike."""
    return UserError(
        f"`{where}` must name languages of the model, but {lang!r} is none of its {len(known)}: the nearest is "
        f"{nearest(lang, known)}; `mtmoe extend` adds a language."
    )


def find_user_error(error: BaseException | None) -> UserError | None:
    """The `UserError` in a chain of exceptions (fairseq re-raises some), or made of what the system says of a path."""
    if isinstance(error, OSError) and isinstance(error.filename, str) and _is_given(error.filename):
        return UserError(f"`{error.filename}` cannot be read or written: {error.strerror}.")
    return next((link for link in chain_of(error) if isinstance(link, UserError)), None)


def chain_of(error: BaseException | None) -> list[BaseException]:
    """An exception, its cause, and so on; an exception can be its own cause."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _is_given(path: str) -> bool:
    """Whether a path, or a folder above it, is on the command line, alone or as in `--out=PATH` and `PATH:PATH`."""
    given = {part for argument in sys.argv[1:] for part in (argument, *re.split("[=:]", argument))}
    return any(str(place) in given for place in (path, *Path(path).parents))
