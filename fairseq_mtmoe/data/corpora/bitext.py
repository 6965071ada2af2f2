"""The one value that the pipeline hands on: the sentence pairs of one language pair, split three ways."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

SPLITS = ("train", "valid", "test")

SentencePair = tuple[str, str]
"""(source sentence, target sentence), each one normalised line."""


@dataclass(frozen=True)
class Bitext:
    """Sentence pairs of one direction, `source_lang` to `target_lang`, by split."""

    source_lang: str
    target_lang: str
    splits: dict[str, list[SentencePair]]

    @property
    def name(self) -> str:
        """fairseq's name of the language pair, such as `en-de`."""
        return f"{self.source_lang}-{self.target_lang}"

    def lines(self, split: str, lang: str) -> list[str]:
        """The sentences of one side of a split, in order."""
        side = 0 if lang == self.source_lang else 1
        return [pair[side] for pair in self.splits[split]]


Item = TypeVar("Item")


class Track(Protocol):
    """Passes `items` through one by one, and shows the progress under `label`."""

    def __call__(self, items: Sequence[Item], label: str) -> Iterable[Item]:
        """The items, in their order."""
        ...


def untracked(items: Sequence[Item], label: str) -> Iterable[Item]:
    """A `Track` that shows nothing."""
    return items
