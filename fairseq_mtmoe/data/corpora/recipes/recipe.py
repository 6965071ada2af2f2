"""What a recipe says: which corpora a data directory is made of, and how."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fairseq_mtmoe.data.corpora.blocks import CorpusFiles
from fairseq_mtmoe.data.corpora.recipes.schema import (
    CODE,
    NAME,
    OF_DOWNLOADS,
    OPEN,
    PAIR,
    SOURCE,
    TARGET,
    Corpus,
    Filters,
    HeldOut,
    Mistake,
    Role,
    Shards,
    Spelling,
    Vocabulary,
    each_code,
    mbart_code,
    mistakes_of_fields,
    plain_code,
    rule,
)
from fairseq_mtmoe.data.translation.tiers import TIERS
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import regular_file

_SEED = rule("a whole number from 0 to 2³²-1", lambda seed: type(seed) is int and 0 <= seed < 2**32)


@dataclass(frozen=True)
class Recipe:
    """All of it. Codes of languages are plain here, however the file spells them; `data_code` says how DATA does.

    Attributes:
        name: of the recipe.
        languages: how codes are written in the data directory's file names.
        directions: what is trained: pairs, or `en-xx`, `xx-en`, `xx-yy`, where `xx` and `yy` are any languages that
            the corpora pair so, in either order; empty: the pairs of the corpora as these name them.
        corpora: in the order in which of several equal pairs the first stays.
        tiers: languages or pairs by `high`, `mid`, `low`; those that are not named go by their size.
        seed: decides about every draw.
        path: the file that says so.
        known_languages: those that a vocabulary of another data directory was made for, as that directory spells them;
            they come first in the list of this one.
    """

    name: str = field(metadata=NAME)
    languages: Spelling
    directions: list[str] = field(metadata=PAIR)
    corpora: list[Corpus]
    held_out: HeldOut
    filters: Filters
    vocabulary: Vocabulary
    shards: Shards
    tiers: Mapping[str, list[str]]
    seed: int = field(metadata=_SEED)
    path: Path
    known_languages: tuple[str, ...] = ()

    @property
    def is_shipped(self) -> bool:
        """Whether it is one of ours: `--recipe NAME`."""
        return self.path.parent == Path(__file__).parent

    @property
    def pairs(self) -> list[str]:
        """The language pairs that have training data, each once: see `pair_of`."""
        return list(dict.fromkeys(self.pair_of(corpus) for corpus in self.corpora if corpus.role is Role.train))

    def pair_of(self, corpus: Corpus) -> str:
        """The language pair that a corpus is a part of. Both orders are one: where corpora for training have both, it
        is named as the first validation or test corpus is, and else as the first one for training."""
        both = [one for one in self.corpora if one.pair in (corpus.pair, _reversed(corpus.pair))]
        trained = [one.pair for one in both if one.role is Role.train]
        evaluated = [one.pair for one in both if one.pair in trained and one.role is not Role.train]
        return next(iter([*evaluated, *trained]), corpus.pair)

    def data_code(self, lang: str) -> str:
        """How a language is written in the data directory's file names and lists: one that mBART lacks as it is."""
        return plain_code(lang) if self.languages is Spelling.plain else mbart_code(lang) or lang

    def data_pair(self, pair: str) -> str:
        """How a pair is."""
        return each_code(pair, self.data_code)

    def mistakes(self) -> Iterator[Mistake]:
        """What is wrong in a recipe whose corpora make sense by themselves."""
        yield from mistakes_of_fields(self)
        if self.vocabulary.dictionary is not None and self.vocabulary.model is None:
            what = "absent without a `model` that it belongs to"
            yield "vocabulary: dictionary", what, self.vocabulary.dictionary
        ranked = [name for tier in TIERS for name in self.tiers.get(tier, [])]
        for name in ranked:
            if not all(map(CODE.fullmatch, name.split("-"))) or ranked.count(name) > 1:
                yield "tiers", "languages or pairs, each in one tier", name
        names = [corpus.name for corpus in self.corpora]
        if not self.pairs:
            yield "corpora", "among others some with `role: train`", names
        said: dict[tuple[str, str], tuple[str, object]] = {}
        for number, corpus in enumerate(self.corpora):
            where = f"corpora: {corpus.name}"
            if corpus.name in names[:number]:
                yield f"{where}: name", "different from all others", corpus.name
            for key in OF_DOWNLOADS:
                for file, value in zip(corpus.downloads, getattr(corpus, key), strict=False):
                    other, before = said.setdefault((file, key), (corpus.name, value))
                    if before != value:
                        yield f"{where}: {key}", f"what {other} has for {file}, {before}", value
            is_mbarts = all(lang in OPEN or mbart_code(lang) for lang in corpus.languages)
            if self.languages is Spelling.mbart and not is_mbarts:
                yield f"{where}: pair", "of languages that mBART has, where `languages` is mbart", corpus.pair

    def trained(self) -> list[str]:
        """The directions to train, in plain codes: of the pairs that have training data, as `directions` says.

        Raises:
            UserError: one of them has none.
        """
        there = _both_ways(self.pairs)
        found: list[str] = []
        named = [corpus.pair for corpus in self.corpora if corpus.role is Role.train]
        for wanted in self.directions or named:
            matching = [pair for pair in there if _matches(pair, wanted)]
            if not matching:
                known = f"for which no corpus is to train on ({', '.join(self.pairs)})"
                raise UserError(f"`{self.path}: directions` has {wanted}, {known}.")
            found += sorted(set(matching) - set(found))
        return found

    def found_in(self, raw: Path) -> Recipe:
        """The recipe with corpora for every language whose files are there, in the place of those of any language; with
        `xx-yy` among the directions, for every pair of languages.

        Raises:
            UserError: there are no files for training, only one side of a pair's, or two pairs that are the same.
        """
        wants_all = any(set(way.split("-")) == set(OPEN) for way in self.directions)
        corpora: list[Corpus] = []
        for corpus in self.corpora:
            if wants_all and corpus.is_open:  # every pair, also where the corpora say `en-xx`
                corpus = replace(corpus, pair="-".join(OPEN))
            corpora += _corpora_in(raw, corpus) if corpus.is_open else [corpus]
        if not any(corpus.role is Role.train for corpus in corpora):
            names = next(corpus.files for corpus in self.corpora if corpus.role is Role.train)
            raise UserError(f"`{raw}` must have files such as {' and '.join(names)}, but has none.")
        return replace(self, corpora=corpora)

    def missing(self, raw: Path) -> list[Corpus]:
        """The corpora of which a file is not there."""
        return [corpus for corpus in self.corpora if not all((raw / file).exists() for file in corpus.downloads)]

    def without(self, names: Collection[str]) -> Recipe:
        """The recipe without these corpora; directions that nothing is left for go, too.

        Raises:
            UserError: nothing to train on is left, or none of the directions to train.
        """
        left = replace(self, corpora=[corpus for corpus in self.corpora if corpus.name not in names])
        if not left.pairs:
            raise UserError(f"`{self.path}` must have a corpus for training whose files are there, but has none.")
        there = _both_ways(left.pairs)
        directions = [way for way in self.directions if any(_matches(pair, way) for pair in there)]
        if self.directions and not directions:
            ways = ", ".join(self.directions)
            raise UserError(f"`{self.path}: directions` has {ways} alone, for which no corpus has its files.")
        return replace(left, directions=directions)

    def files_of(self, corpus: Corpus, raw: Path, allow_unequal: bool = False) -> CorpusFiles:
        """Where a corpus is below `raw`, and what it is read by; languages in plain codes, as most files have them.

        Raises:
            UserError: a file is not there; the sentence says where it is from.
        """
        for file in corpus.downloads:
            if not (raw / file).exists():
                lacking = f"files of {len(self.missing(raw))} of {len(self.corpora)} corpora are missing in all"
                raise UserError(
                    f"`{raw / file}` of the corpus {corpus.name} is missing: {self._origin(corpus)}; {lacking}, and"
                    " `--skip-missing` leaves these corpora out."
                )
            regular_file(raw / file, f"a file of the corpus {corpus.name}")
        paths = tuple(raw / file for file in corpus.files)
        fields, is_evaluation = dict(corpus.fields), corpus.role is not Role.train
        return CorpusFiles(corpus.name, paths, *corpus.languages, corpus.format, fields, is_evaluation, allow_unequal)

    def _origin(self, corpus: Corpus) -> str:
        if corpus.address:
            return f"`mtmoe download` fetches it from {corpus.address[0]}"
        return corpus.by_hand.rstrip(".") or "put it there, or take the corpus out of the recipe"


def _reversed(pair: str) -> str:
    return "-".join(reversed(pair.split("-")))


def _both_ways(pairs: Sequence[str]) -> set[str]:
    return {*pairs, *map(_reversed, pairs)}


def _matches(pair: str, pattern: str) -> bool:
    sides = zip(pair.split("-"), pattern.split("-"), strict=True)
    return all(wanted in OPEN or lang == wanted for lang, wanted in sides)


# ---- a corpus that stands for several: of the languages that are named, or whose files are there ----


def of_language(corpus: Corpus, lang: str) -> Corpus:
    """The corpus of one language, for one whose pair has `xx`."""
    source, target = (lang if code in OPEN else code for code in corpus.languages)
    return _with_codes(replace(corpus, langs=[]), (source, target), (source, target))


def _corpora_in(raw: Path, corpus: Corpus) -> list[Corpus]:
    """The corpora of all pairs whose files are in the folder, for one of any language; in the order of their pairs.

    Raises:
        UserError: only one side of a pair is there, or a pair comes twice, in both spellings.
    """
    spellings: set[tuple[str, str]] = set()
    for file in corpus.files:
        folder, _, name = file.rpartition("/")
        names = [path.name for path in (raw / folder).iterdir()] if (raw / folder).is_dir() else []
        spellings |= {(found["source"], found["target"]) for found in map(_pattern(name).fullmatch, names) if found}
    made: dict[tuple[str, str], Corpus] = {}
    for spelling in sorted(spellings):
        source, target = plain = plain_code(spelling[0]), plain_code(spelling[1])
        fits = (
            wanted in OPEN or code == plain_code(wanted) for code, wanted in zip(plain, corpus.languages, strict=True)
        )
        if source == target or not all(fits):
            continue
        one = _with_codes(corpus, plain, spelling)
        if plain in made:
            files = f"{made[plain].files[0]} and {one.files[0]}"
            raise UserError(f"`{raw}` must have each pair in one spelling of its codes, but has {files}.")
        for file in one.files:
            if not (raw / file).exists():
                raise UserError(f"`{raw / file}` is missing: {source}-{target} needs both sides.")
        made[plain] = one
    return [made[pair] for pair in sorted(made)]


def _pattern(name: str) -> re.Pattern[str]:
    """What names of files look like that are `name` with codes in the place of `{source}` and `{target}`."""
    text = re.escape(name)
    for hole, group in ((SOURCE, "source"), (TARGET, "target")):
        text = text.replace(re.escape(hole), f"(?P<{group}>{CODE.pattern})", 1)
        text = text.replace(re.escape(hole), f"(?P={group})")
    return re.compile(text)


def _with_codes(corpus: Corpus, plain: tuple[str, str], spelling: tuple[str, str]) -> Corpus:
    """The corpus of two languages, for one of several pairs: `plain` in its name and pair, `spelling` in its files."""

    def fill(value: Any, codes: tuple[str, str]) -> Any:
        if isinstance(value, list):
            return [fill(part, codes) for part in value]
        if isinstance(value, dict):
            return {key: fill(part, codes) for key, part in value.items()}
        return value.replace(SOURCE, codes[0]).replace(TARGET, codes[1]) if isinstance(value, str) else value

    values = {field.name: fill(getattr(corpus, field.name), spelling) for field in fields(Corpus)}
    is_named = SOURCE in corpus.name or TARGET in corpus.name
    name = corpus.name if is_named else f"{corpus.name}-{SOURCE}-{TARGET}"
    return Corpus(**{**values, "name": fill(name, plain), "pair": "-".join(plain)})
