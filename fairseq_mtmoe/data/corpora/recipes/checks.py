"""What must hold in a recipe: a sentence with file and place for each mistake."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from fairseq_mtmoe.data.corpora.recipes.codes import CODE, Spelling, mbart_code, plain_code
from fairseq_mtmoe.data.corpora.recipes.recipe import Recipe
from fairseq_mtmoe.data.corpora.recipes.schema import (
    ARCHIVE,
    LARGEST_SIZE,
    LEAST_COVERAGE,
    OPEN,
    SOURCE,
    TARGET,
    Corpus,
)
from fairseq_mtmoe.data.translation.tiers import TIERS
from fairseq_mtmoe.errors import UserError, raise_invalid

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_HEX = {"sha256": re.compile(r"[0-9a-f]{64}"), "md5": re.compile(r"[0-9a-f]{32}")}


def check_corpus(where: str, corpus: Corpus) -> None:
    """See that an entry of `corpora` makes sense by itself.

    Args:
        where: file and place, for the sentence.
        corpus: as it is written, with the placeholders of several pairs.

    Raises:
        UserError: it does not.
    """
    name = corpus.name.replace(SOURCE, "").replace(TARGET, "") or "x"
    if not _NAME.fullmatch(name) or name.startswith("."):
        raise_invalid(f"{where}: name", "letters, digits, `.`, `_` and `-`", corpus.name)
    check_pair(f"{where}: pair", corpus.pair)
    _check_languages(where, corpus)
    _check_files(f"{where}: files", corpus)
    _check_origin(where, corpus)
    for key, value in corpus.fields.items():
        if not isinstance(value, str | int) or isinstance(value, bool):
            raise_invalid(f"{where}: fields: {key}", "a text or a number", value)


def check_pair(where: str, pair: str) -> None:
    """See that a pair has the codes of two languages, not one language in both spellings."""
    codes = pair.split("-")
    if len(codes) != 2 or not all(map(CODE.fullmatch, codes)) or plain_code(codes[0]) == plain_code(codes[1]):
        raise_invalid(where, "two different codes of languages, such as en-de", pair)


def _check_languages(where: str, corpus: Corpus) -> None:
    """Whether the languages of several pairs are told, or can be found by the names of their files."""
    languages = corpus.pair.split("-")
    for lang in corpus.langs:
        if not CODE.fullmatch(lang) or lang in OPEN or corpus.langs.count(lang) > 1:
            raise_invalid(f"{where}: langs", "different codes of languages", lang)
    if corpus.langs and sum(lang in OPEN for lang in languages) != 1:
        raise_invalid(
            f"{where}: pair", "one with `xx` in the place of the languages of `langs`, such as en-xx", corpus.pair
        )
    for lang in corpus.langs:
        if plain_code(lang) in map(plain_code, languages):
            raise_invalid(f"{where}: langs", f"other languages than the one that {corpus.pair} names", lang)
    several = any(lang in OPEN for lang in languages)
    holes = [text for text in (*corpus.files, *corpus.address, corpus.name) if SOURCE in text or TARGET in text]
    if holes and not several:
        raise_invalid(f"{where}: pair", f"one with `xx` where other fields have {SOURCE} or {TARGET}", corpus.pair)
    if several and not corpus.langs:
        for file in corpus.files:
            folder, _, name = file.rpartition("/")
            if ARCHIVE in file or "{" in folder or SOURCE not in name or TARGET not in name:
                rule = (
                    f"files whose names have {SOURCE} and {TARGET} and which no archive holds, where `langs` is absent"
                )
                raise_invalid(f"{where}: files", rule, file)


def _check_files(where: str, corpus: Corpus) -> None:
    if not 1 <= len(corpus.files) <= 2 or len(set(corpus.files)) < len(corpus.files):
        raise_invalid(where, "one file with both sides, or the source's and the target's", corpus.files)
    for file in corpus.files:
        outer, mark, member = file.partition(ARCHIVE)
        if not outer or (mark and not member) or any(map(_leaves, (outer, member))) or file.strip() != file:
            raise_invalid(where, "paths below RAW, and below `!` inside an archive, without `..`", file)


def _leaves(path: str) -> bool:
    return path.startswith("/") or "\\" in path or "\0" in path or ".." in PurePosixPath(path).parts


def _check_origin(where: str, corpus: Corpus) -> None:
    """Where the corpus is from, and what is known of its files."""
    count = len(corpus.downloads)
    what = f"one for each of {', '.join(corpus.downloads)}" if count > 1 else f"that of {corpus.downloads[0]} alone"
    for key in ("address", "sha256", "md5", "bytes"):
        values: Sequence[object] = getattr(corpus, key)
        if values and len(values) != count:
            raise_invalid(f"{where}: {key}", what, values)
    for address in corpus.address:
        _check_address(f"{where}: address", address)
    for key, pattern in _HEX.items():
        for value in getattr(corpus, key):
            if not pattern.fullmatch(value):
                raise_invalid(
                    f"{where}: {key}", f"{pattern.pattern[-3:-1]} digits from 0 to f, in small letters", value
                )
    for size in corpus.bytes:
        if size < 1:
            raise_invalid(f"{where}: bytes", "above 0", size)
    if corpus.address and corpus.by_hand:
        raise_invalid(f"{where}: by_hand", "absent where there is an address", corpus.by_hand)


def _check_address(where: str, address: str) -> None:
    try:
        parts = urlsplit(address)
        found = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is none, brackets that do not close
        found = None
    if not found or any(character.isspace() for character in address):
        raise_invalid(where, "one of the web, such as https://example.org/text.zip", address)
    if parts.username or parts.password:
        raise_invalid(where, "without a name or password; keep such a file in RAW by hand", f"{parts.scheme}://…")


def check_corpora(recipe: Recipe) -> None:
    """See that the corpora make sense together.

    Raises:
        UserError: they do not.
    """
    where = f"{recipe.path}: corpora"
    names = [corpus.name for corpus in recipe.corpora]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"`{where}` must have different names, but {twice} comes twice.")
    if not recipe.pairs:
        raise_invalid(where, "among others some with `role: train`", names)
    _check_same_downloads(where, recipe.corpora)
    if recipe.languages is Spelling.mbart:
        for corpus in recipe.corpora:
            for lang in corpus.languages:
                if lang not in OPEN and mbart_code(lang) is None:
                    rule = "of languages that mBART has, where `languages` is mbart"
                    raise_invalid(f"{where}: {corpus.name}: pair", rule, corpus.pair)
    for pair in recipe.directions:
        check_pair(f"{recipe.path}: directions", pair)


def _check_same_downloads(where: str, corpora: Sequence[Corpus]) -> None:
    """Whether what several corpora say of one archive is the same."""
    said: dict[tuple[str, str], tuple[str, object]] = {}
    for corpus in corpora:
        for key in ("address", "sha256", "md5", "bytes"):
            for file, value in zip(corpus.downloads, getattr(corpus, key), strict=False):
                other, before = said.setdefault((file, key), (corpus.name, value))
                if before != value:
                    raise_invalid(f"{where}: {corpus.name}: {key}", f"what {other} has for {file}, {before}", value)


_NUMBERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "held_out: valid": (lambda value: value >= 1, "at least 1"),
    "held_out: test": (lambda value: value >= 1, "at least 1"),
    "shards: pairs": (lambda value: value >= 1, "at least 1"),
    "shards: most": (lambda value: value >= 1, "at least 1"),
    "filters: max_characters": (lambda value: value >= 1, "at least 1"),
    "filters: max_ratio": (lambda value: 1 < value < math.inf, "above 1"),
    "filters: min_confidence": (lambda value: 0 <= value <= 1, "from 0 to 1"),
    "vocabulary: size": (lambda value: value is None or 1 <= value <= LARGEST_SIZE, f"from 1 to {LARGEST_SIZE:,}"),
    "vocabulary: temperature": (lambda value: 0 < value < math.inf, "above 0"),
    "vocabulary: character_coverage": (lambda value: LEAST_COVERAGE <= value <= 1, f"from {LEAST_COVERAGE} to 1"),
}
"""By part and field, whether a number is allowed, and the rule."""


def check_parts(recipe: Recipe) -> None:
    """See that all but the corpora makes sense.

    Raises:
        UserError: it does not.
    """
    path = recipe.path
    if not isinstance(recipe.name, str) or not _NAME.fullmatch(recipe.name):
        raise_invalid(f"{path}: name", "letters, digits, `.`, `_` and `-`", recipe.name)
    if not isinstance(recipe.seed, int) or isinstance(recipe.seed, bool) or not 0 <= recipe.seed < 2**32:
        raise_invalid(f"{path}: seed", "a whole number from 0 to 2³²-1", recipe.seed)
    for name, (is_allowed, rule) in _NUMBERS.items():
        part, field = name.split(": ")
        value = getattr(getattr(recipe, part), field)
        if not is_allowed(value):
            raise_invalid(f"{path}: {name}", rule, value)
    vocabulary = recipe.vocabulary
    if vocabulary.dictionary is not None and vocabulary.model is None:
        raise_invalid(
            f"{path}: vocabulary: dictionary", "absent without a `model` that it belongs to", vocabulary.dictionary
        )
    named = [name for tier in TIERS for name in recipe.tiers.get(tier, [])]
    for name in named:
        if not all(map(CODE.fullmatch, name.split("-"))) or named.count(name) > 1:
            raise_invalid(f"{path}: tiers", "languages or pairs, each in one tier", name)
