"""Errors for users. Wrong input raises a `UserError`.

The command line prints its sentence without a traceback.

See `training/failures.py`. Invariants of our own code are asserted, and keep their traceback.
"""

import re
import sys
import unicodedata
from collections.abc import Collection
from difflib import SequenceMatcher
from pathlib import Path
from typing import NoReturn

MAX_SHOWN = 300  # characters of a wrong value in a message; values in files may have any length
SIMILAR = 0.6  # least likeness of a name that a sentence suggests
MANY = 5  # names that a sentence lists if it cannot list all
MAX_SENTENCE = 1300  # characters of a sentence
MAX_END = 300  # characters of a sentence's end if it is cut
_JOINERS = {"\u200c", "\u200d"}  # part of the spelling of Persian and many Indian languages
# Categories of characters that are hidden or act on a terminal.
_SPELLED = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


class UserError(ValueError):
    """Wrong input. The message is one sentence: what is wrong, where, and what to do.

    It quotes files, so it is safe to print: without control characters, and cut in the middle if it
    is long.

    names: the options, files and fields in backticks, the wrong one first.
    """

    def __init__(self, sentence: str) -> None:
        sentence = visible(sentence)
        if len(sentence) > MAX_SENTENCE:
            sentence = f"{sentence[: MAX_SENTENCE - MAX_END]}…{sentence[-MAX_END + 1 :]}"
        super().__init__(sentence)

    @property
    def names(self) -> tuple[str, ...]:
        """The texts in backticks."""
        return tuple(re.findall(r"`([^`]*)`", str(self)))


def visible(text: object) -> str:
    """Return the text with invisible and private characters spelled as `⟨U+202E⟩`."""
    line = str(text)
    if line.isascii() and line.isprintable():
        return line
    hidden = {ord(sign) for sign in set(line) - _JOINERS if unicodedata.category(sign) in _SPELLED}
    return line.translate({code: f"⟨U+{code:04X}⟩" for code in hidden})


def first_line(error: object) -> str:
    """Return the first line of an error's message, to end a sentence."""
    return str(error).strip().partition("\n")[0]


def flag(name: str) -> str:
    """Return an option as the command line spells it: `--max-update` of `max_update`."""
    return f"--{name.replace('_', '-')}"


def raise_invalid(name: str, rule: str, value: object) -> NoReturn:
    """Raise the `UserError` "`name` must be `rule`, but is `value` instead."."""
    try:
        shown = repr(value)
    except (ValueError, RecursionError):  # Python does not print integers of more than 4,300 digits
        kind = "a number" if isinstance(value, int) else f"a {type(value).__name__}"
        shown = f"{kind} too long to be shown"
    shown = shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}…"
    raise UserError(f"`{name}` must be {rule}, but is {shown} instead.")


def nearest(name: str, names: Collection[str]) -> str:
    """Return the one of `names` that is spelled most like `name`."""
    return max(names, key=lambda other: _likeness(name, other))


def suggestion(name: str, names: Collection[str]) -> str:
    """Return the end of a sentence: the nearest name, if it is similar."""
    other = nearest(name, names) if names else ""
    return f"; the most similar one is {other}" if max(_likeness(name, other)) >= SIMILAR else ""


def shortened(names: Collection[str], like: str = "") -> str:
    """Return names for a sentence.

    All are returned, or if they are long, those spelled most like one.
    """
    text = ", ".join(names)
    if len(text) <= MAX_SHOWN:
        return text
    few = sorted(names, key=lambda name: _likeness(like, name), reverse=True)[:MANY]
    return f"{', '.join(few)} and {len(names) - len(few)} more"


def _likeness(name: str, other: str) -> tuple[float, float]:
    """Return the similarity of the parts before an underscore, then of the names.

    Codes such as `swh_Latn` have a script or a country after the underscore.
    """
    heads = name.split("_")[0], other.split("_")[0]
    return SequenceMatcher(None, *heads).ratio(), SequenceMatcher(None, name, other).ratio()


def unknown_language(where: str, lang: str, langs: Collection[str]) -> UserError:
    """Return the error of a language that a model lacks.

    It has the model's language that is most similar, if one is.
    """
    return UserError(
        f"`{where}` must name languages of the model, but {lang!r} is none of its {len(langs)}"
        f"{suggestion(lang, langs)}; `mtmoe extend` adds a language."
    )


def find_user_error(error: BaseException | None) -> UserError | None:
    """Return the `UserError` in a chain of exceptions, or one for an unreadable path.

    fairseq re-raises some exceptions as others.
    """
    if isinstance(error, OSError) and isinstance(error.filename, str) and _is_given(error.filename):
        return UserError(f"`{error.filename}` cannot be read or written: {error.strerror}.")
    return next((link for link in chain_of(error) if isinstance(link, UserError)), None)


def chain_of(error: BaseException | None) -> list[BaseException]:
    """Return an exception, its cause, and so on; stop at a cycle."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


def _is_given(path: str) -> bool:
    """Return whether a path or a parent is on the command line.

    Forms such as `--out=PATH` count, too.
    """
    parts = {part for argument in sys.argv[1:] for part in (argument, *re.split("[=:]", argument))}
    return any(str(parent) in parts for parent in (path, *Path(path).parents))
