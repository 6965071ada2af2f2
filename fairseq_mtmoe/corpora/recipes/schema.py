"""The parts of a recipe's YAML, with their rules (`docs/reference/recipes.md`)."""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.core.typed import Rule, at_least, between, one_of
from fairseq_mtmoe.corpora.recipes.codes import CODE, OPEN, Spelling, is_pair, plain_code

ARCHIVE = "!"  # `archive.tgz!path/inside` is a member of an archive
# Placeholders for language codes in a corpus of several pairs.
HOLES = SOURCE, TARGET = ("{source}", "{target}")
OF_DOWNLOADS = ("address", "sha256", "md5", "bytes")  # fields with a value per download
LISTS = ("files", "langs", "cite", *OF_DOWNLOADS)  # fields whose single values need no brackets
LEAST_COVERAGE = 0.98  # smallest character coverage that SentencePiece accepts
LARGEST_SIZE = 1_000_000  # of a vocabulary; no model has more
# Limits of the default size.
LEAST_PIECES = 1000
MOST_PIECES = 32_000
CHARACTERS_PER_PIECE = 4000
SIZE_RULE = (
    f"two pieces for each different character and one for every {CHARACTERS_PER_PIECE:,}"
    f" characters of text, from {LEAST_PIECES:,} to {MOST_PIECES:,}, as far as the text allows"
)
PARALLEL = "parallel"
BACK_TRANSLATED = "back-translated"
MOST_COPIES = 100  # largest weight of a corpus, as its copies are written to disk
# Pydantic's configuration of each part: no other names, no conversions.
CHECKED = {"extra": "forbid", "strict": True}

_SPELLED = re.compile(r"[A-Za-z0-9_-]+")  # a code in the names of a corpus' files
_NAME = re.compile(r"(?!\.)([A-Za-z0-9._-]|\{source\}|\{target\})+")


class Role(Enum):
    """Role of a corpus."""

    train = "train"
    valid = "valid"
    test = "test"


class Action(Enum):
    """Handling of training pairs that a filter finds: they are left out, or stay."""

    drop = "drop"
    keep = "keep"


def _is_below(file: str) -> bool:
    """Return whether a path is below RAW, and its member inside the archive."""
    names = re.split(f"[/{ARCHIVE}]", file)
    return "\0" not in file and not {"", ".."} & {*names}


def _is_of_the_web(address: str) -> bool:
    try:
        parts = urlsplit(address)
    except ValueError:  # unbalanced brackets
        return False
    return (
        parts.scheme in ("http", "https") and bool(parts.hostname) and not re.search(r"\s", address)
    )


def _matches(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda text: pattern.fullmatch(text) is not None


def _digits(count: int) -> Rule:
    return Rule(
        f"{count} hexadecimal digits in lower case", _matches(re.compile(f"[0-9a-f]{{{count}}}"))
    )


def _above(least: float) -> Rule:
    return Rule(f"above {least:g}", lambda value: least < value < math.inf)


Name = Annotated[str, Rule("letters, digits, `.`, `_` and `-`", _matches(_NAME))]
Pair = Annotated[str, Rule("two different language codes, such as en-de", is_pair)]
Tier = Annotated[str, one_of(("high", "mid", "low"))]
_Code = Annotated[
    str,
    Rule(
        "a language code; `no` needs quotes",
        lambda code: CODE.fullmatch(code) is not None and code not in OPEN,
    ),
]
_Spelled = Annotated[str, Rule("a code's spelling in file names", _matches(_SPELLED))]
Langs = dict[_Code, _Spelled]  # languages, with their spellings in names of files or data sets
_File = Annotated[
    str, Rule("a path below RAW, and below `!` inside an archive, without `..`", _is_below)
]
_Address = Annotated[
    str, Rule("a web address, such as https://example.org/text.zip", _is_of_the_web)
]
_Positive = Annotated[int, at_least(1)]
_Field = Annotated[str, one_of(("source", "target", "absent", "incomplete"))]


@dataclass(frozen=True)
class Corpus:
    """Sentence pairs of two languages.

    They are in one file with both sides or in one file per side.
    """

    __pydantic_config__: ClassVar = CHECKED

    name: Name
    pair: Pair
    role: Role
    files: Annotated[list[_File], Rule("one file or two", lambda files: 1 <= len(files) <= 2)]
    langs: Langs = field(default_factory=dict)
    format: str = "auto"
    fields: dict[_Field, str | int] = field(default_factory=dict)
    address: list[_Address] = field(default_factory=list)
    sha256: list[Annotated[str, _digits(64)]] = field(default_factory=list)
    md5: list[Annotated[str, _digits(32)]] = field(default_factory=list)
    bytes: list[_Positive] = field(default_factory=list)
    licence: str = ""
    cite: list[str] = field(default_factory=list)  # publications, in BibTeX
    # Download that the text of a back-translated corpus is taken from, in its field `target`.
    text_of: str = ""
    data_set: str = ""  # what the recipe names it by, such as `mtdata OPUS-gnome-v1-eng-hau`
    by_hand: str = ""
    kind: Annotated[str, one_of((PARALLEL, BACK_TRANSLATED))] = PARALLEL
    weight: Annotated[int, between(1, MOST_COPIES)] = 1

    @property
    def is_synthetic(self) -> bool:
        """Return whether the sources are a model's translations of the targets."""
        return self.kind == BACK_TRANSLATED

    @property
    def languages(self) -> tuple[str, str]:
        """Return source and target language."""
        source, target = self.pair.split("-")
        return source, target

    @property
    def holes(self) -> list[str]:
        """Return the codes of its pair that stand for any language."""
        return [lang for lang in self.languages if lang in OPEN]

    @property
    def is_open(self) -> bool:
        """Return whether the entry stands for the corpora of several languages."""
        return bool(self.holes)

    @property
    def needed(self) -> list[str]:
        """Return the files that must be there: its files, or the archives with these."""
        return list(dict.fromkeys(file.partition(ARCHIVE)[0] for file in self.files))

    @property
    def downloads(self) -> list[str]:
        """Return the files to download, each once."""
        return [self.text_of.partition(ARCHIVE)[0]] if self.text_of else self.needed

    def check(self, where: str) -> None:
        """Check the fields with each other (UserError)."""
        if self.langs and not self.is_open:
            raise_invalid(
                f"{where}: pair",
                "a pair with `xx` for the languages of `langs`, such as en-xx",
                self.pair,
            )
        if 0 < len(self.langs) < len(self.holes):
            raise_invalid(
                f"{where}: langs",
                f"at least two languages, because the pair is {self.pair}",
                list(self.langs),
            )
        if {*map(plain_code, self.languages)} & {*self.langs}:
            raise_invalid(
                f"{where}: langs", f"without the language in {self.pair}", list(self.langs)
            )
        for key in OF_DOWNLOADS:
            if len(values := getattr(self, key)) not in (0, len(self.downloads)):
                raise_invalid(
                    f"{where}: {key}", f"one for each of {', '.join(self.downloads)}", values
                )
        for parts in map(urlsplit, self.address):
            if parts.username or parts.password:
                rule = "without a name or password (put such a file into RAW by hand)"
                raise_invalid(f"{where}: address", rule, f"{parts.scheme}://…")
        for key, default in (("kind", PARALLEL), ("weight", 1)):
            if self.role is not Role.train and getattr(self, key) != default:
                raise UserError(f"`{where}: {key}` is only for corpora whose `role` is train.")
        if self.is_synthetic and (
            len(self.files) < 2 or any(ARCHIVE in file for file in self.files)
        ):
            rule = "the translations and their originals, outside of archives"
            raise_invalid(f"{where}: files", rule, self.files)


def languages_of(corpora: Iterable[Corpus]) -> set[str]:
    """Return the languages of all corpora."""
    return {lang for corpus in corpora for lang in corpus.languages}


@dataclass(frozen=True)
class HeldOut:
    """Numbers of sentence pairs to take from training data.

    They are for language pairs without validation or test corpus.
    """

    __pydantic_config__: ClassVar = CHECKED

    valid: _Positive = 1000
    test: _Positive = 1000


@dataclass(frozen=True)
class Filters:
    """Filters of training pairs; see `cleaning`.

    Held-out sentences are always removed from training data.
    """

    __pydantic_config__: ClassVar = CHECKED

    max_characters: _Positive = 1000
    max_ratio: Annotated[float, _above(1)] = 3.0
    copies: Action = Action.drop
    wrong_script: Action = Action.drop
    duplicates: Action = Action.drop
    near_duplicates: Action = Action.drop
    identify: str | None = None
    min_confidence: Annotated[float, between(0, 1)] = 0.5


@dataclass(frozen=True)
class Vocabulary:
    """Settings of the vocabulary: trained, or given by `model` and `dictionary`."""

    __pydantic_config__: ClassVar = CHECKED

    size: Annotated[int, between(1, LARGEST_SIZE)] | None = None
    temperature: Annotated[float, _above(0)] = 5.0
    character_coverage: Annotated[float, between(LEAST_COVERAGE, 1)] = 0.9995
    model: str | None = None
    dictionary: str | None = None
    language_tokens: Spelling = Spelling.plain


@dataclass(frozen=True)
class Shards:
    """Division of a pair's training data into shards.

    There is one for each `pairs` sentence pairs, at most `most`.
    """

    __pydantic_config__: ClassVar = CHECKED

    pairs: _Positive = 1_000_000
    most: _Positive = 16


def name_of(text: str) -> str:
    """Return a corpus' name for a file or a data set."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text).lstrip(".")


def with_lists(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry of `corpora` with lists for single values.

    Each of its `langs` gets a spelling.
    """
    entry = dict(entry)
    for key in LISTS:
        if not isinstance(entry.get(key, []), list | dict):
            entry[key] = [entry[key]]
    langs = entry.get("langs", {})
    if isinstance(langs, list):
        codes = list(map(str, langs))
        langs = dict(zip(codes, map(plain_code, codes), strict=True))
    return {**entry, "langs": {plain_code(str(code)): spelling for code, spelling in langs.items()}}
