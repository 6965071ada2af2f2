"""Recipes from YAML: a user's file, or a shipped one by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar

from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.core.typed import one_of, structured
from fairseq_mtmoe.core.yaml_files import read_mapping
from fairseq_mtmoe.corpora.recipes import SHIPPED
from fairseq_mtmoe.corpora.recipes.codes import filled_pairs, plain_code, plain_pair
from fairseq_mtmoe.corpora.recipes.named.of_mtdata import MTDATA, of_mtdata
from fairseq_mtmoe.corpora.recipes.named.of_sacrebleu import SACREBLEU, of_sacrebleu
from fairseq_mtmoe.corpora.recipes.recipe import Recipe, Settings
from fairseq_mtmoe.corpora.recipes.schema import (
    BACK_TRANSLATED,
    CHECKED,
    Action,
    Corpus,
    Role,
    languages_of,
    name_of,
    with_lists,
)
from fairseq_mtmoe.corpora.recipes.several_pairs import with_codes

DATASETS = "datasets"  # key of entries that name a folder of tables


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
