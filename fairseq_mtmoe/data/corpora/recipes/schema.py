"""The parts of a recipe: dataclasses with the fields of its YAML and their rules (`docs/reference/recipes.md`)."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import PurePosixPath
from typing import Any, Optional
from urllib.parse import urlsplit

from fairseq_mtmoe.io.typed import MISSING

SHIPPED = ("wmt15", "ml50", "catalogs", "folder", "flores200", "ntrex")  # recipes of this package
ARCHIVE = "!"  # `archive.tgz!path/inside` is a member of an archive
HOLES = SOURCE, TARGET = "{source}", "{target}"  # placeholders for language codes in a corpus of several pairs
OF_DOWNLOADS = ("address", "sha256", "md5", "bytes")  # fields with a value per download
OPEN = ("xx", "yy")  # any language, in a pair
LEAST_COVERAGE = 0.98  # smallest character coverage that SentencePiece accepts
LARGEST_SIZE = 1_000_000  # of a vocabulary; no model has more
LEAST_PIECES, MOST_PIECES = 1000, 32_000  # limits of the default size
CHARACTERS_PER_PIECE = 4000
SIZE_RULE = (
    f"two pieces for each different character and one for every {CHARACTERS_PER_PIECE:,} characters of text, from"
    f" {LEAST_PIECES:,} to {MOST_PIECES:,}, as far as the text allows"
)
PARALLEL, BACK_TRANSLATED = "parallel", "back-translated"
MOST_COPIES = 100  # largest weight of a corpus, as its copies are written to disk


class Spelling(Enum):
    """Spelling of language codes in a data directory."""

    plain = "de"
    mbart = "de_DE"


# The 52 codes of mBART-50 ("Multilingual Translation with Extensible Multilingual Pretraining and Finetuning", Tang et
# al. 2020), of which ML-50 has data for all but two (sw_KE, tl_XX).
MBART = (
    *("af_ZA", "ar_AR", "az_AZ", "bn_IN", "cs_CZ", "de_DE", "en_XX", "es_XX", "et_EE", "fa_IR", "fi_FI", "fr_XX"),
    *("gl_ES", "gu_IN", "he_IL", "hi_IN", "hr_HR", "id_ID", "it_IT", "ja_XX", "ka_GE", "kk_KZ", "km_KH", "ko_KR"),
    *("lt_LT", "lv_LV", "mk_MK", "ml_IN", "mn_MN", "mr_IN", "my_MM", "ne_NP", "nl_XX", "pl_PL", "ps_AF", "pt_XX"),
    *("ro_RO", "ru_RU", "si_LK", "sl_SI", "sv_SE", "sw_KE", "ta_IN", "te_IN", "th_TH", "tl_XX", "tr_TR", "uk_UA"),
    *("ur_PK", "vi_VN", "xh_ZA", "zh_CN"),
)
_MBART_OF = {code.split("_")[0]: code for code in MBART}
_PLAIN_OF = {code: plain for plain, code in _MBART_OF.items()}

# In either spelling, or another that is safe in file names, such as `pt_BR`.
CODE = re.compile(r"[a-z]{2,3}(_[A-Za-z0-9]+)*")
SPELLED = re.compile(r"[A-Za-z0-9_-]+")  # a code in the names of a corpus's files


def plain_code(code: str) -> str:
    """Return `de` for `de_DE` and for `de`; codes that mBART lacks are returned unchanged."""
    return _PLAIN_OF.get(code, code)


def mbart_code(code: str) -> str | None:
    """Return `de_DE` for `de` and for `de_DE`; None for languages that mBART lacks."""
    return code if code in _PLAIN_OF else _MBART_OF.get(code)


def each_code(pair: str, change: Callable[[str], str]) -> str:
    """Return a pair with both codes changed by a function."""
    return "-".join(map(change, pair.split("-")))


_is_name = re.compile(r"[A-Za-z0-9._-]+").fullmatch


def rule(sentence: str, is_allowed: Callable[[Any], object]) -> dict[str, Any]:
    """Return a field's metadata with a rule for its value, or for each value of a list."""
    return {"rule": (sentence, is_allowed)}


def _is_pair(pair: str) -> bool:
    codes = pair.split("-")
    return len(codes) == 2 and all(map(CODE.fullmatch, codes)) and plain_code(codes[0]) != plain_code(codes[1])


_NAME = "letters, digits, `.`, `_` and `-`"
NAME = rule(_NAME, lambda name: isinstance(name, str) and _is_name(name))
PAIR = rule("two different language codes, such as en-de", _is_pair)
_AT_LEAST_1 = rule("at least 1", lambda number: number >= 1)


def _digits(count: int) -> dict[str, Any]:
    return rule(f"{count} hexadecimal digits in lower case", re.compile(f"[0-9a-f]{{{count}}}").fullmatch)


def _is_below(file: str) -> bool:
    """Return whether a path is below RAW, and its member inside the archive."""
    outer, mark, member = file.partition(ARCHIVE)
    parts = [part for path in (outer, member) for part in PurePosixPath(path).parts]
    is_odd = file.strip() != file or "\\" in file or "\0" in file or not outer or (mark and not member)
    return not is_odd and not any(path.startswith("/") for path in (outer, member)) and ".." not in parts


def _is_of_the_web(address: str) -> bool:
    try:
        parts = urlsplit(address)
        found = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:  # an invalid port, unbalanced brackets
        return False
    return bool(found) and not any(character.isspace() for character in address)


_FILES = rule("paths below RAW, and below `!` inside an archive, without `..`", _is_below)
_ADDRESS = rule("a web address, such as https://example.org/text.zip", _is_of_the_web)
_KIND = rule(f"{PARALLEL} or {BACK_TRANSLATED}", (PARALLEL, BACK_TRANSLATED).__contains__)
_FIELDS = ("source", "target", "absent", "incomplete")
_COPIES = rule(f"an integer from 1 to {MOST_COPIES}", lambda weight: 1 <= weight <= MOST_COPIES)
_LANGS = rule("different language codes", lambda lang: CODE.fullmatch(lang) and lang not in OPEN)


Mistake = tuple[str, str, object]  # the field, its rule, and the value that breaks it


def mistakes_of_fields(part: Any) -> Iterator[Mistake]:
    """Yield the fields of a part, nested ones included, whose values break their rules."""
    for one in fields(part):
        value = getattr(part, one.name)
        for name, broken, wrong in mistakes_of_fields(value) if is_dataclass(value) else ():
            yield f"{one.name}: {name}", broken, wrong
        sentence, is_allowed = one.metadata.get("rule", ("", lambda _: True))
        for single in value if isinstance(value, list) else [value]:
            if single is not None and not is_allowed(single):
                yield one.name, sentence, single


class Role(Enum):
    """Role of a corpus."""

    train = "training"
    valid = "validation"
    test = "test"


class Action(Enum):
    """Handling of training pairs that a filter finds."""

    drop = "they are left out"
    keep = "they stay"


@dataclass(frozen=True)
class Corpus:
    """Sentence pairs of two languages, in one file with both sides or in one file per side."""

    name: str = MISSING
    pair: str = field(default=MISSING, metadata=PAIR)
    role: Role = MISSING
    files: list[str] = field(default=MISSING, metadata=_FILES)
    langs: list[str] = field(default_factory=list, metadata=_LANGS)
    format: str = "auto"
    fields: dict[str, Any] = field(default_factory=dict)  # text or number
    address: list[str] = field(default_factory=list, metadata=_ADDRESS)
    sha256: list[str] = field(default_factory=list, metadata=_digits(64))
    md5: list[str] = field(default_factory=list, metadata=_digits(32))
    bytes: list[int] = field(default_factory=list, metadata=rule("above 0", lambda size: size >= 1))
    licence: str = ""
    by_hand: str = ""
    kind: str = field(default=PARALLEL, metadata=_KIND)
    weight: int = field(default=1, metadata=_COPIES)

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
    def is_open(self) -> bool:
        """Return whether the entry stands for the corpora of all languages whose files exist."""
        return any(lang in OPEN for lang in self.languages)

    @property
    def downloads(self) -> list[str]:
        """Return the files to download: the corpus' files, or the archives with these, each once."""
        return list(dict.fromkeys(file.partition(ARCHIVE)[0] for file in self.files))

    def mistakes(self) -> Iterator[Mistake]:
        """Yield the mistakes within an entry of `corpora`, before placeholders are replaced."""
        if not _is_name(self.name.replace(SOURCE, "").replace(TARGET, "") or "x") or self.name.startswith("."):
            yield "name", _NAME, self.name
        yield from mistakes_of_fields(self)
        if not 1 <= len(set(self.files)) == len(self.files) <= 2:
            yield "files", "one file with both sides, or the source's and the target's", self.files
        for key, value in self.fields.items():
            if key not in _FIELDS:
                yield "fields", f"names of {', '.join(_FIELDS)}", key
            if not isinstance(value, str | int) or isinstance(value, bool):
                yield f"fields: {key}", "a text or a number", value
        yield from self._mistakes_of_languages()
        count = len(self.downloads)
        what = f"one for each of {', '.join(self.downloads)}" if count > 1 else f"only one, for {self.downloads[0]}"
        for key in OF_DOWNLOADS:
            if len(values := getattr(self, key)) not in (0, count):
                yield key, what, values
        for parts in map(urlsplit, self.address):
            if parts.username or parts.password:
                yield "address", "without a name or password; keep such a file in RAW by hand", f"{parts.scheme}://…"
        if self.role is not Role.train and (self.is_synthetic or self.weight > 1):
            name, value = ("kind", self.kind) if self.is_synthetic else ("weight", self.weight)
            yield name, "absent unless `role` is train", value
        if self.is_synthetic and (len(self.files) < 2 or any(ARCHIVE in file for file in self.files)):
            yield "files", "the translations and their originals, outside of archives", self.files
        if self.address and self.by_hand:
            yield "by_hand", "absent if there is an address", self.by_hand

    def _mistakes_of_languages(self) -> Iterator[Mistake]:
        """Yield mistakes in the languages of several pairs, given by `langs` or by the files' names."""
        if len(set(self.langs)) < len(self.langs):
            yield "langs", "different language codes", self.langs
        if self.langs and not self.is_open:
            yield "pair", "a pair with `xx` for the languages of `langs`, such as en-xx", self.pair
        if self.langs and len(self.langs) < sum(lang in OPEN for lang in self.languages):
            yield "langs", f"at least two languages, as the pair is {self.pair}", self.langs
        for lang in self.langs:
            if plain_code(lang) in map(plain_code, self.languages):
                yield "langs", f"other languages than the one in {self.pair}", lang
        if not self.is_open and any(hole in text for text in (*self.files, *self.address, self.name) for hole in HOLES):
            yield "pair", f"a pair with `xx`, as other fields have {SOURCE} or {TARGET}", self.pair
        for file in self.files if self.is_open and not self.langs else ():
            folder, _, name = file.rpartition("/")
            if ARCHIVE in file or "{" in folder or not all(hole in name for hole in HOLES):
                has = f"with {SOURCE} and {TARGET} in their names, outside of archives"
                yield "files", f"files {has}, if `langs` is absent", file


@dataclass(frozen=True)
class HeldOut:
    """Numbers of sentence pairs to take from training data of language pairs without validation or test corpus."""

    valid: int = field(default=1000, metadata=_AT_LEAST_1)
    test: int = field(default=1000, metadata=_AT_LEAST_1)


@dataclass(frozen=True)
class Filters:
    """Filters of training pairs; see `cleaning`. Held-out sentences are always removed from training data."""

    max_characters: int = field(default=1000, metadata=_AT_LEAST_1)
    max_ratio: float = field(default=3.0, metadata=rule("above 1", lambda ratio: 1 < ratio < math.inf))
    copies: Action = Action.drop
    wrong_script: Action = Action.drop
    duplicates: Action = Action.drop
    near_duplicates: Action = Action.drop
    identify: Optional[str] = None  # noqa: UP045 (OmegaConf reads it)
    min_confidence: float = field(default=0.5, metadata=rule("from 0 to 1", lambda share: 0 <= share <= 1))


_SIZE = rule(f"from 1 to {LARGEST_SIZE:,}", lambda size: 1 <= size <= LARGEST_SIZE)
_COVERAGE = rule(f"from {LEAST_COVERAGE} to 1", lambda share: LEAST_COVERAGE <= share <= 1)


@dataclass(frozen=True)
class Vocabulary:
    """Settings of the vocabulary: trained, or given by `model` and `dictionary`."""

    size: Optional[int] = field(default=None, metadata=_SIZE)  # noqa: UP045
    temperature: float = field(default=5.0, metadata=rule("above 0", lambda value: 0 < value < math.inf))
    character_coverage: float = field(default=0.9995, metadata=_COVERAGE)
    model: Optional[str] = None  # noqa: UP045
    dictionary: Optional[str] = None  # noqa: UP045
    language_tokens: Spelling = Spelling.plain


@dataclass(frozen=True)
class Shards:
    """Division of a pair's training data into shards: one for each `pairs` sentence pairs, at most `most`."""

    pairs: int = field(default=1_000_000, metadata=_AT_LEAST_1)
    most: int = field(default=16, metadata=_AT_LEAST_1)
