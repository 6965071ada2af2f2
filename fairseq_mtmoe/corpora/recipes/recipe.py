"""Recipes: the corpora of a data directory, and the settings of its preparation."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.core.files import regular_file
from fairseq_mtmoe.core.typed import between, one_of, structured
from fairseq_mtmoe.core.yaml_files import read_mapping
from fairseq_mtmoe.corpora.recipes import SHIPPED
from fairseq_mtmoe.corpora.recipes.codes import (
    OPEN,
    Spelling,
    each_code,
    filled_pairs,
    matches,
    mbart_code,
    plain_code,
    plain_pair,
    reversed_pair,
)
from fairseq_mtmoe.corpora.recipes.named.of_mtdata import MTDATA, of_mtdata
from fairseq_mtmoe.corpora.recipes.named.of_sacrebleu import SACREBLEU, of_sacrebleu
from fairseq_mtmoe.corpora.recipes.schema import (
    BACK_TRANSLATED,
    CHECKED,
    Action,
    Corpus,
    Filters,
    HeldOut,
    Name,
    Pair,
    Role,
    Shards,
    Tier,
    Vocabulary,
    languages_of,
    name_of,
    with_lists,
)
from fairseq_mtmoe.corpora.recipes.several_pairs import corpora_in, example_files, with_codes

if TYPE_CHECKING:
    from fairseq_mtmoe.corpora.blocks import CorpusFiles

DATASETS = "datasets"  # key of entries that name a folder of tables
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


# ---- from YAML ----


def _shipped_path(name: str) -> Path:
    return Path(__file__).with_name(f"{name}.yaml")


def load_recipe(name_or_path: str | Path, argument: str = "--recipe") -> Recipe:
    """Return a shipped recipe by name, or a user's by path.

    `argument` is its name in messages.
    """
    path = Path(name_or_path)
    if str(path) in SHIPPED:
        path = _shipped_path(str(path))
    elif not path.exists():
        raise_invalid(argument, f"one of {', '.join(SHIPPED)}, or an existing file", str(path))
    content = read_mapping(path, "a recipe", "names, and what they stand for")
    entries = _entries(path, content)
    present = {key: value for key, value in content.items() if value is not None}
    settings = structured(Settings, {"name": path.stem, **present}, str(path))
    values = {**vars(settings)}
    values["directions"] = list(map(plain_pair, settings.directions))
    for tier, names in settings.tiers.items():
        values["tiers"][tier] = list(map(plain_pair, names))
    recipe = Recipe(**values, corpora=list(_corpora(path, entries)), path=path)
    _check(recipe)
    return recipe


def _entries(path: Path, content: dict[str, Any]) -> list[Any]:
    """Remove and return the entries of a recipe's corpora.

    `valid` and `test` have one or a list, which get this role. Entries of `mono` are text in one
    language, to be back-translated for the only direction.
    """
    entries = content.pop("corpora", None)
    if not isinstance(entries, list) or not entries:
        raise_invalid(f"{path}: corpora", "a list of corpora", entries)
    defaults = {
        "valid": {"role": Role.valid.name},
        "test": {"role": Role.test.name},
        "mono": {"role": Role.train.name, "kind": BACK_TRANSLATED},
    }
    directions = content.get("directions")
    if isinstance(directions, list) and len(directions) == 1:
        defaults["mono"]["pair"] = directions[0]
    for key, values in defaults.items():
        others = content.pop(key, [])
        for entry in others if isinstance(others, list) else [others]:
            entries.append({**values, **entry} if isinstance(entry, dict) else entry)
    for entry in entries:
        _check_place(path, entry)
    return [_with_defaults(entry, directions) for entry in entries]


def _check_place(path: Path, entry: Any) -> None:
    """Raise `UserError` if an entry has two places of text, or fields of names."""
    places = ("recipe", MTDATA, SACREBLEU, DATASETS, "files")
    given = [place for place in places if isinstance(entry, dict) and place in entry]
    if len(given) > 1:
        raise UserError(
            f"`{path}: corpora` has an entry with both `{given[0]}` and `{given[1]}`: make two "
            "entries of it, or take one away."
        )
    for key in ("data_set", "text_of"):
        if isinstance(entry, dict) and key in entry:
            rule = "absent: names of data sets set it"
            raise_invalid(f"{path}: corpora: {key}", rule, entry[key])


def _with_defaults(entry: Any, directions: Any) -> Any:
    """Return an entry of text files with the role, name and pair that it leaves out.

    It is training text by default, named as its file, and of the only direction.
    """
    if not isinstance(entry, dict):
        return entry
    if DATASETS in entry:
        entry = {**entry, "files": entry[DATASETS]}
        del entry[DATASETS]
    if "files" not in entry:
        return entry
    files = entry["files"] if isinstance(entry["files"], list) else [entry["files"]]
    defaults: dict[str, Any] = {"role": Role.train.name}
    if files:
        defaults["name"] = name_of(str(files[0]))
    if isinstance(directions, list) and len(directions) == 1:
        defaults["pair"] = directions[0]
    return {**defaults, **entry}


def _check(recipe: Recipe) -> None:
    """Check a recipe's fields with each other (UserError)."""
    dictionary = recipe.vocabulary.dictionary
    if dictionary is not None and recipe.vocabulary.model is None:
        raise UserError(f"`{recipe.path}: vocabulary: dictionary` requires `model`, its model.")
    if (recipe.filters.duplicates, recipe.filters.near_duplicates) == (Action.keep, Action.drop):
        rule = "drop unless `near_duplicates` is keep: equal pairs are near duplicates, too"
        raise_invalid(f"{recipe.path}: filters: duplicates", rule, recipe.filters.duplicates.name)
    names = [corpus.name for corpus in recipe.corpora]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"`{recipe.path}: corpora: {name}: name` is the name of two corpora.")
    if not recipe.pairs and recipe.path.parent != Path(__file__).parent:
        raise_invalid(
            f"{recipe.path}: corpora", "a list with at least one corpus of `role: train`", names
        )
    ranked = list(chain.from_iterable(recipe.tiers.values()))
    for name in ranked:
        is_there = any(_is_in(name, corpus) for corpus in recipe.corpora)
        if ranked.count(name) > 1 or not is_there:
            rule = "languages or pairs of `corpora`, each in only one tier"
            raise_invalid(f"{recipe.path}: tiers", rule, name)


def _is_in(name: str, corpus: Corpus) -> bool:
    """Return whether a language, or both of a pair, may be languages of a corpus."""
    return len({*name.split("-")} - {*corpus.languages}) <= len(corpus.holes)


def _corpora(path: Path, entries: Sequence[Any]) -> Iterator[Corpus]:
    """Yield the entries' corpora; with `langs` a corpus for each language."""
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise_invalid(f"{path}: corpora: number {number}", "a corpus", entry)
        where = f"{path}: corpora: {entry.get('name') or f'number {number}'}"
        if "recipe" in entry:
            yield from _included(where, entry)
            continue
        if MTDATA in entry:
            yield from _corpora(path, of_mtdata(where, entry))
            continue
        if SACREBLEU in entry:
            yield from _corpora(path, of_sacrebleu(where, entry))
            continue
        corpus = structured(Corpus, with_lists(entry), where)
        corpus.check(where)
        corpus = replace(corpus, pair=plain_pair(corpus.pair))
        if not corpus.langs:
            yield corpus
            continue
        for source, target in filled_pairs(corpus.pair, corpus.langs):
            spelling = corpus.langs.get(source, source), corpus.langs.get(target, target)
            yield with_codes(corpus, (source, target), spelling)


@dataclass(frozen=True)
class _Included:
    """The entry of another shipped recipe, for all its languages or for some."""

    __pydantic_config__: ClassVar = CHECKED

    recipe: Annotated[str, one_of(SHIPPED)]
    langs: list[str] = field(default_factory=list)


def _included(where: str, entry: dict[str, Any]) -> list[Corpus]:
    """Return the corpora of another shipped recipe."""
    included = structured(_Included, entry, where)
    path = _shipped_path(included.recipe)
    entries = read_mapping(path, "a recipe", "names, and what they stand for")["corpora"]
    corpora = list(_corpora(path, entries))
    langs = {*map(plain_code, included.langs)}
    if unknown := langs - languages_of(corpora):
        raise_invalid(f"{where}: langs", f"languages of the recipe {included.recipe}", min(unknown))
    return [corpus for corpus in corpora if not langs or {*corpus.languages} <= {*langs, "en"}]
