"""The parts of a recipe: its YAML has the fields of these dataclasses, which `docs/recipes.md` explains.

`loading.py` reads it, `checks.py` checks it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Optional

from omegaconf import MISSING

from fairseq_mtmoe.data.corpora.recipes.codes import Spelling

ARCHIVE = "!"  # `archive.tgz!path/inside` is a member of an archive
SOURCE, TARGET = "{source}", "{target}"  # in a corpus of several pairs: the codes of its languages
OPEN = ("xx", "yy")  # in a pair: any language
LEAST_COVERAGE = 0.98  # of characters, that SentencePiece takes
LARGEST_SIZE = 1_000_000  # of a vocabulary: beyond what any model has


class Role(Enum):
    """What the sentences of a corpus are for."""

    train = "training"
    valid = "validation"
    test = "test"


class Action(Enum):
    """What becomes of the training pairs that a filter finds."""

    drop = "they are left out"
    keep = "they stay"


@dataclass(frozen=True)
class Corpus:
    """Sentence pairs of two languages, in one file with both sides, or in one for each."""

    name: str = MISSING
    pair: str = MISSING
    role: Role = MISSING
    files: list[str] = MISSING
    langs: list[str] = field(default_factory=list)
    format: str = "auto"
    fields: dict[str, Any] = field(default_factory=dict)  # text or number
    address: list[str] = field(default_factory=list)
    sha256: list[str] = field(default_factory=list)
    md5: list[str] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    licence: str = ""
    by_hand: str = ""

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target."""
        source, target = self.pair.split("-")
        return source, target

    @property
    def is_open(self) -> bool:
        """Whether it stands for the corpora of all languages whose files are there."""
        return any(lang in OPEN for lang in self.languages)

    @property
    def downloads(self) -> list[str]:
        """What is fetched below RAW: its files, or the archives that these are members of, each once."""
        return list(dict.fromkeys(file.partition(ARCHIVE)[0] for file in self.files))


@dataclass(frozen=True)
class HeldOut:
    """How many pairs are taken from training data where a pair has no corpus for validation or test."""

    valid: int = 1000
    test: int = 1000


@dataclass(frozen=True)
class Filters:
    """Which training pairs are left out; see `cleaning`. Held-out sentences are always removed from training data."""

    max_characters: int = 1000
    max_ratio: float = 3.0
    copies: Action = Action.drop
    wrong_script: Action = Action.drop
    duplicates: Action = Action.drop
    near_duplicates: Action = Action.drop
    identify: Optional[str] = None  # noqa: UP045 (OmegaConf reads it)
    min_confidence: float = 0.5


@dataclass(frozen=True)
class Vocabulary:
    """The pieces that all languages share."""

    size: Optional[int] = None  # noqa: UP045
    temperature: float = 5.0
    character_coverage: float = 0.9995
    model: Optional[str] = None  # noqa: UP045
    dictionary: Optional[str] = None  # noqa: UP045
    language_tokens: Spelling = Spelling.plain


@dataclass(frozen=True)
class Shards:
    """Into how many data directories a pair's training data is dealt out: one for each `pairs`, `most` at most."""

    pairs: int = 1_000_000
    most: int = 16
