"""Recipes: the corpora of a data directory, and the settings of its preparation."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import regular_file
from fairseq_mtmoe.core.typed import between
from fairseq_mtmoe.corpora.recipes.codes import (
    OPEN,
    Spelling,
    each_code,
    matches,
    mbart_code,
    plain_code,
    reversed_pair,
)
from fairseq_mtmoe.corpora.recipes.schema import (
    CHECKED,
    Corpus,
    Filters,
    HeldOut,
    Name,
    Pair,
    Role,
    Shards,
    Tier,
    Vocabulary,
)
from fairseq_mtmoe.corpora.recipes.several_pairs import corpora_in, example_files

if TYPE_CHECKING:
    from fairseq_mtmoe.corpora.blocks import CorpusFiles

# Keys of a given vocabulary's files for sources.
SOURCE_FILES = ("source model", "source dictionary")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A recipe without its corpora, as its YAML has it.

    See `docs/reference/recipes.md`.
    """

    __pydantic_config__: ClassVar = CHECKED

    name: Name
    languages: Spelling = Spelling.plain  # of codes in the data directory's file names
    directions: list[Pair] = field(default_factory=list)
    held_out: HeldOut = field(default_factory=HeldOut)
    filters: Filters = field(default_factory=Filters)
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    shards: Shards = field(default_factory=Shards)
    tiers: dict[Tier, list[str]] = field(default_factory=dict)
    seed: Annotated[int, between(0, 2**32 - 1)] = 1


@dataclass(frozen=True, kw_only=True)
class Recipe(Settings):
    """A recipe, with plain codes of languages.

    Attributes:
        corpora: in order of priority; of several equal pairs the first is kept.
        path: the recipe's file.
        known_languages: languages of a given vocabulary, in its spelling; the new directory lists
            them first.
        codes: a translator's codes by language, in place of `languages`, if its vocabulary is
            given.
        of_sources: model and dictionary of sources, by `SOURCE_FILES`, if the given vocabulary has
            two sides.
    """

    corpora: list[Corpus]
    path: Path
    known_languages: tuple[str, ...] = ()
    codes: dict[str, str] = field(default_factory=dict)
    of_sources: dict[str, str] = field(default_factory=dict)

    @cached_property
    def training(self) -> list[Corpus]:
        """Return the corpora of training text."""
        return [corpus for corpus in self.corpora if corpus.role is Role.train]

    @cached_property
    def pairs(self) -> list[str]:
        """Return the language pairs with training data, each once; see `pair_of`."""
        return list(dict.fromkeys(map(self.pair_of, self.training)))

    @property
    def has_synthetic(self) -> bool:
        """Return whether a corpus has back-translated sources."""
        return any(corpus.is_synthetic for corpus in self.corpora)

    def pair_of(self, corpus: Corpus) -> str:
        """Return a corpus' pair; both orders of training data are one pair.

        It is named as in evaluation data, else as in training data.
        """
        if corpus.role is not Role.train:
            return corpus.pair
        names = corpus.pair, reversed_pair(corpus.pair)
        trained = [other.pair for other in self.training if other.pair in names]
        for other in self.corpora:
            if other.role is not Role.train and other.pair in trained:
                return other.pair
        return trained[0]

    def data_code(self, lang: str) -> str:
        """Return a language's code in the data directory's names.

        Languages that mBART lacks keep theirs.
        """
        if lang in self.codes:
            return self.codes[lang]
        return plain_code(lang) if self.languages is Spelling.plain else mbart_code(lang)

    def data_pair(self, pair: str) -> str:
        """Return a pair's name in the data directory."""
        return each_code(pair, self.data_code)

    def directions_of(self, pattern: str) -> set[str]:
        """Return the directions with training data that match a pattern, such as `en-xx`."""
        directions = {*self.pairs, *map(reversed_pair, self.pairs)}
        return {direction for direction in directions if matches(direction, pattern)}

    def trained(self) -> list[str]:
        """Return the directions to train, in plain codes.

        Raises `UserError` if a direction has no training data.
        """
        trained: list[str] = []
        for pattern in self.directions or [corpus.pair for corpus in self.training]:
            matching = self.directions_of(pattern)
            if not matching:
                raise UserError(
                    f"`{self.path}: directions` has {pattern}, but no training corpus is for it; "
                    f"there are {', '.join(self.pairs)}."
                )
            trained += sorted(matching - set(trained))
        return trained

    def check_synthetic(self) -> None:
        """Check that back-translations are never targets.

        Raises `UserError` if a direction would train on them.
        """
        trained = self.trained()
        for corpus in self.corpora:
            if corpus.is_synthetic and (turned := reversed_pair(corpus.pair)) in trained:
                raise UserError(
                    f"`{self.path}: directions` must not contain {turned}, because the sources of"
                    f" the corpus {corpus.name} are back-translated, but are {', '.join(trained)};"
                    " make a data directory for each direction."
                )

    def source_languages(self) -> set[str]:
        """Return the source languages of all directions, in plain codes."""
        return {direction.split("-")[0] for direction in self.trained()}

    def found_in(self, raw: Path) -> Recipe:
        """Return the recipe with a corpus for each pair of an `xx` corpus.

        These are the languages, or pairs, whose files exist.

        Raises:
            UserError: there are no training files, only one side of a pair, or a pair twice.
        """
        if not self.pairs:
            raise UserError(
                f"`{self.name}` has only test sets: include it in a recipe with training text,"
                f" as in `corpora: [{{recipe: {self.name}, langs: [de, sw]}}, …]`."
            )
        all_pairs = "-".join(OPEN)
        wants_all = {all_pairs, reversed_pair(all_pairs)} & {*self.directions}
        corpora: list[Corpus] = []
        for corpus in self.corpora:
            if corpus.is_open and wants_all:  # also where the corpora say `en-xx`
                corpus = replace(corpus, pair=all_pairs)
            corpora += corpora_in(raw, corpus)
        filled = replace(self, corpora=corpora)
        if not filled.training:
            names = " and ".join(example_files(raw, self.training[0]))
            raise UserError(
                f"`{raw}` contains no files that the recipe reads for training; name the two files"
                f" of a language pair {names}, and unpack compressed ones."
            )
        return filled

    def missing(self, raw: Path) -> list[Corpus]:
        """Return the corpora with missing files."""
        corpora = []
        for corpus in self.corpora:
            if not all((raw / file).exists() for file in corpus.needed):
                corpora.append(corpus)
        return corpora

    def without(self, names: Collection[str]) -> Recipe:
        """Return the recipe without these corpora and directions without text.

        Raises `UserError` if no training data is left.
        """
        left = replace(
            self, corpora=[corpus for corpus in self.corpora if corpus.name not in names]
        )
        if not left.pairs:
            raise UserError(f"`{self.path}` has no training corpus whose files exist.")
        directions = list(filter(left.directions_of, self.directions))
        if self.directions and not directions:
            patterns = ", ".join(self.directions)
            raise UserError(
                f"`{self.path}: directions` has only {patterns},"
                " but the corpora's files are missing."
            )
        return replace(left, directions=directions)

    def files_of(self, corpus: Corpus, raw: Path) -> CorpusFiles:
        """Return a corpus' files below `raw`, with their format.

        Raises `UserError` with the file's origin if one is missing.
        """
        from fairseq_mtmoe.corpora.blocks import CorpusFiles

        for file in corpus.needed:
            if not (raw / file).exists():
                lacking = (
                    f"{len(self.missing(raw))} of {len(self.corpora)} corpora have missing files"
                )
                origin = self._origin(corpus, file, raw)
                raise UserError(
                    f"`{raw / file}` of the corpus {corpus.name} does not exist: {origin};"
                    f" {lacking}, and `--skip-missing` leaves these out."
                )
            regular_file(raw / file, f"a file of the corpus {corpus.name}")
        return CorpusFiles(
            corpus.name,
            tuple(map(raw.joinpath, corpus.files)),
            *corpus.languages,
            corpus.format,
            dict(corpus.fields),
            pair=self.pair_of(corpus),
            role=corpus.role,
            names=tuple(corpus.files),
            is_synthetic=corpus.is_synthetic,
            weight=corpus.weight,
            data_set=corpus.data_set,
        )

    def _origin(self, corpus: Corpus, file: str, raw: Path) -> str:
        """Return how to get a missing file."""
        if corpus.is_synthetic and file == corpus.files[0]:
            text = raw / corpus.files[1]
            to, source = map(self.data_code, corpus.languages)
            command = ["--from", source, "--to", to, "--input", str(text), "--out", str(raw / file)]
            is_missing = corpus.text_of and not text.exists()
            before = f"`mtmoe download` writes `{text}`, of which " if is_missing else ""
            return (
                f"{before}`mtmoe translate MODEL {shlex.join(command)}` makes it,"
                f" with a model of {source}-{to}"
            )
        if corpus.text_of:
            return f"`mtmoe download` writes it from {corpus.downloads[0]}"
        if corpus.address:
            return f"`mtmoe download` fetches it from {corpus.address[0]}"
        return corpus.by_hand.rstrip(".") or "put it there, or take the corpus out of the recipe"
