"""Recipes: the corpora of a data directory, and the settings of its preparation."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_mtmoe.data.corpora.recipes import schema
from fairseq_mtmoe.data.corpora.recipes.schema import SHIPPED, Action, Corpus, Filters, Role, Spelling, Vocabulary
from fairseq_mtmoe.data.translation.tiers import TIERS
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.io.files import regular_file
from fairseq_mtmoe.io.yaml_files import check_names, read_mapping, structured

if TYPE_CHECKING:
    from fairseq_mtmoe.data.corpora.blocks import CorpusFiles

SOURCE_FILES = ("source model", "source dictionary")  # keys of a given vocabulary's files for sources
_SEED = schema.rule("an integer from 0 to 2³²-1", lambda seed: type(seed) is int and 0 <= seed < 2**32)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe, with plain codes of languages; see `docs/reference/recipes.md`.

    Attributes:
        languages: spelling of codes in the data directory's file names.
        corpora: in order of priority; of several equal pairs the first is kept.
        path: the recipe's file.
        known_languages: languages of a given vocabulary, in its spelling, listed first in the new directory.
        codes: a translator's codes by language, in place of `languages`, if its vocabulary is given.
        of_sources: model and dictionary of sources, by `SOURCE_FILES`, if the given vocabulary has two sides.
    """

    name: str = field(metadata=schema.NAME)
    languages: Spelling
    directions: list[str] = field(default_factory=list, metadata=schema.PAIR)
    corpora: list[Corpus]
    held_out: schema.HeldOut = field(default_factory=schema.HeldOut)
    filters: Filters = field(default_factory=Filters)
    vocabulary: Vocabulary
    shards: schema.Shards
    tiers: Mapping[str, list[str]]
    seed: int = field(metadata=_SEED)
    path: Path
    known_languages: tuple[str, ...] = ()
    codes: Mapping[str, str] = field(default_factory=dict)
    of_sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_shipped(self) -> bool:
        """Return whether the recipe is part of this package (`--recipe NAME`)."""
        return self.path.parent == Path(__file__).parent

    @property
    def takes_options(self) -> bool:
        """Return whether options of the command line set its values (`--recipe folder`)."""
        return self.is_shipped and self.name == "folder"

    @property
    def pairs(self) -> list[str]:
        """Return the language pairs with training data, each once; see `pair_of`."""
        return list(dict.fromkeys(self.pair_of(corpus) for corpus in self.corpora if corpus.role is Role.train))

    def pair_of(self, corpus: Corpus) -> str:
        """Return a corpus' pair; both orders are one pair, named as in evaluation data, else as in training data."""
        both = [one for one in self.corpora if one.pair in (corpus.pair, _reversed(corpus.pair))]
        trained = [one.pair for one in both if one.role is Role.train]
        evaluated = [one.pair for one in both if one.pair in trained and one.role is not Role.train]
        return next(iter([*evaluated, *trained]), corpus.pair)

    def data_code(self, lang: str) -> str:
        """Return a language's code in the data directory's names; languages that mBART lacks keep theirs."""
        if lang in self.codes:
            return self.codes[lang]
        return schema.plain_code(lang) if self.languages is Spelling.plain else schema.mbart_code(lang) or lang

    def data_pair(self, pair: str) -> str:
        """Return a pair's name in the data directory."""
        return schema.each_code(pair, self.data_code)

    def mistakes(self) -> Iterator[schema.Mistake]:
        """Yield the recipe's mistakes besides those within single corpora."""
        yield from schema.mistakes_of_fields(self)
        if self.vocabulary.dictionary is not None and self.vocabulary.model is None:
            what = "absent without its `model`"
            yield "vocabulary: dictionary", what, self.vocabulary.dictionary
        if (self.filters.duplicates, self.filters.near_duplicates) == (Action.keep, Action.drop):
            what = "drop unless `near_duplicates` is keep, as equal pairs are near duplicates, too"
            yield "filters: duplicates", what, self.filters.duplicates.name
        ranked = [name for tier in TIERS for name in self.tiers.get(tier, [])]
        for name in ranked:
            if not all(map(schema.CODE.fullmatch, name.split("-"))) or ranked.count(name) > 1:
                yield "tiers", "languages or pairs, each in only one tier", name
            elif not any(_is_in(name, corpus.languages) for corpus in self.corpora):
                yield "tiers", "languages or pairs of `corpora`", name
        names = [corpus.name for corpus in self.corpora]
        if not self.pairs and not self.is_shipped:
            yield "corpora", "a list with at least one corpus of `role: train`", names
        said: dict[tuple[str, str], tuple[str, object]] = {}
        for number, corpus in enumerate(self.corpora):
            where = f"corpora: {corpus.name}"
            if corpus.name in names[:number]:
                yield f"{where}: name", "different from all other names", corpus.name
            for key in schema.OF_DOWNLOADS:
                for file, value in zip(corpus.downloads, getattr(corpus, key), strict=False):
                    other, before = said.setdefault((file, key), (corpus.name, value))
                    if before != value:
                        yield f"{where}: {key}", f"the same as in {other} for {file}, {before}", value
            is_mbarts = all(lang in schema.OPEN or schema.mbart_code(lang) for lang in corpus.languages)
            if self.languages is Spelling.mbart and not is_mbarts:
                yield f"{where}: pair", "a pair of mBART's languages, as `languages` is mbart", corpus.pair

    def trained(self) -> list[str]:
        """Return the directions to train, in plain codes (UserError: one has no training data)."""
        there = _both_ways(self.pairs)
        found: list[str] = []
        named = [corpus.pair for corpus in self.corpora if corpus.role is Role.train]
        for wanted in self.directions or named:
            matching = [pair for pair in there if _matches(pair, wanted)]
            if not matching:
                known = f"which no training corpus is for (there are {', '.join(self.pairs)})"
                raise UserError(f"`{self.path}: directions` has {wanted}, {known}.")
            found += sorted(set(matching) - set(found))
        return found

    def check_synthetic(self) -> None:
        """Check that back-translations are never targets (UserError: a direction would train on them)."""
        trained = self.trained()
        for corpus in self.corpora:
            if corpus.is_synthetic and (turned := _reversed(corpus.pair)) in trained:
                raise UserError(
                    f"`{self.path}: directions` must be without {turned} for the corpus {corpus.name}, whose sources "
                    f"are back-translated, but are {', '.join(trained)}; make a data directory for each direction."
                )

    def source_languages(self) -> set[str]:
        """Return the source languages of all directions, in plain codes."""
        return {way.split("-")[0] for way in self.trained()}

    def found_in(self, raw: Path) -> Recipe:
        """Return the recipe with `xx` corpora replaced by one for each language (or pair) whose files exist.

        Raises:
            UserError: there are no training files, only one side of a pair, or a pair twice.
        """
        if not self.pairs:
            raise UserError(
                f"`{self.name}` has only test sets: include it in a recipe with training text, as in "
                f"`corpora: [{{recipe: {self.name}, langs: [de, sw]}}, …]`."
            )
        wants_all = any(set(way.split("-")) == set(schema.OPEN) for way in self.directions)
        corpora: list[Corpus] = []
        for corpus in self.corpora:
            if wants_all and corpus.is_open:  # every pair, also where the corpora say `en-xx`
                corpus = replace(corpus, pair="-".join(schema.OPEN))
            corpora += _corpora_in(raw, corpus) if corpus.is_open else [corpus]
        if not any(corpus.role is Role.train for corpus in corpora):
            names = next(corpus.files for corpus in self.corpora if corpus.role is Role.train)
            raise UserError(f"`{raw}` must have files such as {' and '.join(names)}, but has none.")
        return replace(self, corpora=corpora)

    def missing(self, raw: Path) -> list[Corpus]:
        """Return the corpora with missing files."""
        return [corpus for corpus in self.corpora if not all((raw / file).exists() for file in corpus.downloads)]

    def without(self, names: Collection[str]) -> Recipe:
        """Return the recipe without these corpora and directions without text (UserError: no training data left)."""
        left = replace(self, corpora=[corpus for corpus in self.corpora if corpus.name not in names])
        if not left.pairs:
            raise UserError(f"`{self.path}` must have a training corpus whose files exist, but has none.")
        there = _both_ways(left.pairs)
        directions = [way for way in self.directions if any(_matches(pair, way) for pair in there)]
        if self.directions and not directions:
            ways = ", ".join(self.directions)
            raise UserError(f"`{self.path}: directions` has only {ways}, but the corpora's files are missing.")
        return replace(left, directions=directions)

    def files_of(self, corpus: Corpus, raw: Path, allow_unequal: bool = False) -> CorpusFiles:
        """Return a corpus' files below `raw`, with their format (UserError: one is missing; it names the origin)."""
        from fairseq_mtmoe.data.corpora.blocks import CorpusFiles

        for file in corpus.downloads:
            if not (raw / file).exists():
                lacking = f"{len(self.missing(raw))} of {len(self.corpora)} corpora have missing files"
                origin = self._origin(corpus, file, raw)
                raise UserError(
                    f"`{raw / file}` of the corpus {corpus.name} is missing: {origin}; {lacking}, and `--skip-missing`"
                    " leaves these out."
                )
            regular_file(raw / file, f"a file of the corpus {corpus.name}")
        paths = tuple(raw / file for file in corpus.files)
        return CorpusFiles(
            corpus.name,
            paths,
            *corpus.languages,
            corpus.format,
            dict(corpus.fields),
            allow_unequal,
            pair=self.pair_of(corpus) if corpus.role is Role.train else corpus.pair,
            role=corpus.role,
            names=tuple(corpus.files),
            is_synthetic=corpus.is_synthetic,
            weight=corpus.weight,
        )

    def _origin(self, corpus: Corpus, file: str, raw: Path) -> str:
        if corpus.is_synthetic and file == corpus.files[0]:
            text, (to, source) = raw / corpus.files[1], map(self.data_code, corpus.languages)
            command = ["--from", source, "--to", to, "--input", str(text), "--out", str(raw / file)]
            return f"`mtmoe translate MODEL {shlex.join(command)}` makes it, with a model of {source}-{to}"
        if corpus.address:
            return f"`mtmoe download` fetches it from {corpus.address[0]}"
        return corpus.by_hand.rstrip(".") or "put it there, or take the corpus out of the recipe"


def _reversed(pair: str) -> str:
    return "-".join(reversed(pair.split("-")))


def _both_ways(pairs: Sequence[str]) -> set[str]:
    return {*pairs, *map(_reversed, pairs)}


def _is_in(name: str, langs: Sequence[str]) -> bool:
    """Return whether a language, or both of a pair, may be languages of a corpus."""
    places = [lang in schema.OPEN for lang in langs]
    return sum(lang not in langs for lang in name.split("-")) <= sum(places)


def _matches(pair: str, pattern: str) -> bool:
    sides = zip(pair.split("-"), pattern.split("-"), strict=True)
    return all(wanted in schema.OPEN or lang == wanted for lang, wanted in sides)


def of_languages(corpus: Corpus, langs: Iterable[str], spelled: Mapping[str, str]) -> Corpus:
    """Return the corpus with these languages for `xx` and `yy`; `spelled` has codes that differ in file names."""
    given = iter(langs)
    source, target = (next(given) if code in schema.OPEN else code for code in corpus.languages)
    spelling = spelled.get(source, source), spelled.get(target, target)
    return _with_codes(replace(corpus, langs=[]), (source, target), spelling)


def _corpora_in(raw: Path, corpus: Corpus) -> list[Corpus]:
    """Return the corpora of all pairs whose files exist (UserError: one side is missing, or a pair occurs twice)."""
    spellings: set[tuple[str, str]] = set()
    for file in corpus.files:
        folder, _, name = file.rpartition("/")
        names = [path.name for path in (raw / folder).iterdir()] if (raw / folder).is_dir() else []
        spellings |= {(found["source"], found["target"]) for found in map(_pattern(name).fullmatch, names) if found}
    made: dict[tuple[str, str], Corpus] = {}
    for spelling in sorted(spellings):
        source, target = plain = schema.plain_code(spelling[0]), schema.plain_code(spelling[1])
        if source == target or not _matches(f"{source}-{target}", schema.each_code(corpus.pair, schema.plain_code)):
            continue
        one = _with_codes(corpus, plain, spelling)
        if plain in made:
            files = f"{made[plain].files[0]} and {one.files[0]}"
            raise UserError(f"`{raw}` must have each pair in only one spelling of its codes, but has {files}.")
        for file in () if one.is_synthetic else one.files:
            if not (raw / file).exists():
                raise UserError(f"`{raw / file}` is missing: {source}-{target} needs both sides.")
        made[plain] = one
    return [made[pair] for pair in sorted(made)]


def _pattern(name: str) -> re.Pattern[str]:
    """Return a pattern for file names with codes in place of `{source}` and `{target}` in `name`."""
    text = re.escape(name)
    for hole, group in ((schema.SOURCE, "source"), (schema.TARGET, "target")):
        text = text.replace(re.escape(hole), f"(?P<{group}>{schema.CODE.pattern})", 1)
        text = text.replace(re.escape(hole), f"(?P={group})")
    return re.compile(text)


def _with_codes(corpus: Corpus, plain: tuple[str, str], spelling: tuple[str, str]) -> Corpus:
    """Return a corpus of several pairs for one pair: `plain` codes in name and pair, `spelling` in its files."""

    def fill(value: Any, codes: tuple[str, str]) -> Any:
        if isinstance(value, list):
            return [fill(part, codes) for part in value]
        if isinstance(value, dict):
            return {key: fill(part, codes) for key, part in value.items()}
        if isinstance(value, str):
            return value.replace(schema.SOURCE, codes[0]).replace(schema.TARGET, codes[1])
        return value

    values = {field.name: fill(getattr(corpus, field.name), spelling) for field in fields(Corpus)}
    is_named = schema.SOURCE in corpus.name or schema.TARGET in corpus.name
    name = corpus.name if is_named else f"{corpus.name}-{schema.SOURCE}-{schema.TARGET}"
    return Corpus(**{**values, "name": fill(name, plain), "pair": "-".join(plain)})


_PARTS: dict[str, type[Any]] = {
    "held_out": schema.HeldOut,
    "filters": Filters,
    "vocabulary": Vocabulary,
    "shards": schema.Shards,
}
_KEYS = ("name", "languages", "directions", "corpora", *_PARTS, "tiers", "seed")
_TEXTS = ("files", "langs", "address", "sha256", "md5")  # a corpus' lists of text; YAML's `no` must not be "False"


def load_recipe(name_or_path: str | Path, argument: str = "--recipe") -> Recipe:
    """Return a shipped recipe by name, or a user's by path; `argument` is its name in messages."""
    name = str(name_or_path)
    path = Path(__file__).with_name(f"{name}.yaml") if name in SHIPPED else Path(name)
    if name not in SHIPPED and not path.exists():
        raise_invalid(argument, f"one of {', '.join(SHIPPED)}, or an existing file", name)
    content = read_mapping(path, "a recipe", "names, and what they stand for")
    check_names(str(path), content, _KEYS)
    for key in ("name", "corpora"):
        if key not in content:
            raise_invalid(str(path), f"a recipe with `{key}`", list(content))
    spelling, tiers, entries = content.get("languages", "plain"), content.get("tiers", {}), content["corpora"]
    seed = content.get("seed", 1)
    if not isinstance(spelling, str) or spelling not in Spelling.__members__:
        raise_invalid(f"{path}: languages", f"one of {', '.join(Spelling.__members__)}", spelling)
    if type(seed) is not int:
        raise_invalid(f"{path}: seed", _SEED["rule"][0], seed)
    check_names(f"{path}: tiers", tiers, ("high", "mid", "low"))
    if not isinstance(entries, list) or not entries:
        raise_invalid(f"{path}: corpora", "a list of corpora", entries)
    recipe = Recipe(
        name=content["name"],
        languages=Spelling[spelling],
        directions=_plain(f"{path}: directions", content.get("directions", [])),
        corpora=[corpus for number, entry in enumerate(entries, 1) for corpus in _corpora(path, number, entry)],
        tiers={tier: _plain(f"{path}: tiers: {tier}", names) for tier, names in tiers.items()},
        seed=seed,
        path=path,
        **{key: structured(form, f"{path}: {key}", content.get(key, {})) for key, form in _PARTS.items()},
    )
    _check(str(path), recipe.mistakes())
    return recipe


def _check(where: str, mistakes: Iterable[schema.Mistake]) -> None:
    for name, rule, value in mistakes:
        raise_invalid(f"{where}: {name}", rule, value)


def _texts(where: str, value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    for text in values:
        if not isinstance(text, str):
            raise_invalid(where, "a list of texts (`no`, `on` and the like need quotes)", text)
    return values


def _plain(where: str, value: Any) -> list[str]:
    return [schema.each_code(name, schema.plain_code) for name in _texts(where, value)]


def _corpora(path: Path, number: int, entry: Any) -> list[Corpus]:
    """Return an entry's corpus; with `langs` a corpus for each language."""
    name = entry.get("name") if isinstance(entry, dict) else None
    where = f"{path}: corpora: {name if isinstance(name, str) else f'number {number}'}"
    if isinstance(entry, dict) and "recipe" in entry:
        return _included(where, entry)
    spelled: dict[str, str] = {}
    if isinstance(entry, dict) and isinstance(entry.get("langs"), dict):
        codes, texts = (_texts(f"{where}: langs", list(part)) for part in (entry["langs"], entry["langs"].values()))
        if bad := [text for text in texts if not schema.SPELLED.fullmatch(text)]:
            raise_invalid(f"{where}: langs", "codes, each with its spelling in file names", bad[0])
        spelled = dict(zip(map(schema.plain_code, codes), texts, strict=True))
        entry = {**entry, "langs": codes}
    if isinstance(entry, dict):  # single values may be written without brackets
        lists = {key: entry[key] for key in (*_TEXTS, "bytes") if key in entry and not isinstance(entry[key], list)}
        entry = {**entry, **{key: [value] for key, value in lists.items()}}
        for key in _TEXTS:
            _texts(f"{where}: {key}", entry.get(key, []))
    corpus = structured(Corpus, where, entry)
    _check(where, corpus.mistakes())
    corpus = replace(corpus, pair=schema.each_code(corpus.pair, schema.plain_code))
    plain = [schema.plain_code(lang) for lang in corpus.langs]
    every = combinations(plain, sum(lang in schema.OPEN for lang in corpus.languages)) if plain else ()
    return [of_languages(corpus, langs, spelled) for langs in every] or [corpus]


def _included(where: str, entry: Mapping[str, Any]) -> list[Corpus]:
    """Return the corpora of another shipped recipe, for all its languages or for some."""
    check_names(where, entry, ("recipe", "langs"))
    name, langs = entry["recipe"], _plain(f"{where}: langs", entry.get("langs", []))
    if name not in SHIPPED:
        raise_invalid(f"{where}: recipe", f"one of {', '.join(SHIPPED)}", name)
    content = read_mapping(Path(__file__).with_name(f"{name}.yaml"), "a recipe", "names, and what they stand for")
    entries = enumerate(content["corpora"], 1)
    corpora = [corpus for number, one in entries for corpus in _corpora(Path(name), number, one)]
    known = {lang for corpus in corpora for lang in corpus.languages}
    for lang in langs:
        if lang not in known:
            raise_invalid(f"{where}: langs", f"languages of the recipe {name}", lang)
    return [corpus for corpus in corpora if not langs or {*corpus.languages} <= {*langs, "en"}]
