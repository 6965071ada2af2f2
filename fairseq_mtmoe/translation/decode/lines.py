"""Lines of text with their place, for messages."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Lines:
    """Consecutive lines of a text.

    `first` is the number of the first one, `name` the text's name in messages.
    """

    lines: Sequence[str]
    name: str = "the text"
    first: int = 1
