"""Recipes from YAML: a dataclass for each part, and a sentence for each mistake."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairseq_mtmoe.data.corpora.recipes.recipe import Recipe, of_language
from fairseq_mtmoe.data.corpora.recipes.schema import (
    Corpus,
    Filters,
    HeldOut,
    Mistake,
    Shards,
    Spelling,
    Vocabulary,
    each_code,
    plain_code,
)
from fairseq_mtmoe.errors import raise_invalid
from fairseq_mtmoe.io.yaml_files import check_names, read_mapping, structured

SHIPPED = ("wmt15", "ml50", "catalogs", "folder")
_PARTS: dict[str, type[Any]] = {
    "held_out": HeldOut,
    "filters": Filters,
    "vocabulary": Vocabulary,
    "shards": Shards,
}
_KEYS = ("name", "languages", "directions", "corpora", *_PARTS, "tiers", "seed")
_TEXTS = ("files", "langs", "address", "sha256", "md5")  # lists of a corpus, in which `no` must not become "False"


def load_recipe(name_or_path: str | Path, argument: str = "--recipe") -> Recipe:
    """A shipped recipe by its name, or a user's own by its path.

    Args:
        name_or_path: of the recipe.
        argument: what the command line calls it, for the sentence.

    Raises:
        UserError: there is none, or it is wrong; the sentence says where and what.
    """
    name = str(name_or_path)
    path = Path(__file__).with_name(f"{name}.yaml") if name in SHIPPED else Path(name)
    if name not in SHIPPED and not path.exists():
        raise_invalid(argument, f"one of {', '.join(SHIPPED)}, or a file that is there", name)
    content = read_mapping(path, "a recipe", "names, and what they stand for")
    check_names(str(path), content, _KEYS)
    for key in ("name", "corpora"):
        if key not in content:
            raise_invalid(str(path), f"a recipe with `{key}`", list(content))
    spelling, tiers, entries = content.get("languages", "plain"), content.get("tiers", {}), content["corpora"]
    if spelling not in Spelling.__members__:
        raise_invalid(f"{path}: languages", f"one of {', '.join(Spelling.__members__)}", spelling)
    check_names(f"{path}: tiers", tiers, ("high", "mid", "low"))
    if not isinstance(entries, list) or not entries:
        raise_invalid(f"{path}: corpora", "a list of corpora", entries)
    recipe = Recipe(
        name=content["name"],
        languages=Spelling[spelling],
        directions=_plain(f"{path}: directions", content.get("directions", [])),
        corpora=[corpus for number, entry in enumerate(entries, 1) for corpus in _corpora(path, number, entry)],
        tiers={tier: _plain(f"{path}: tiers: {tier}", names) for tier, names in tiers.items()},
        seed=content.get("seed", 1),
        path=path,
        **{key: structured(form, f"{path}: {key}", content.get(key, {})) for key, form in _PARTS.items()},
    )
    _check(str(path), recipe.mistakes())
    return recipe


def _check(where: str, mistakes: Iterable[Mistake]) -> None:
    for name, rule, value in mistakes:
        raise_invalid(f"{where}: {name}", rule, value)


def _texts(where: str, value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    for text in values:
        if not isinstance(text, str):
            raise_invalid(where, "a list of texts (`no`, `on` and the like need quotes)", text)
    return values


def _plain(where: str, value: Any) -> list[str]:
    """Pairs or languages in plain codes."""
    return [each_code(name, plain_code) for name in _texts(where, value)]


def _corpora(path: Path, number: int, entry: Any) -> list[Corpus]:
    """The corpus of an entry; of one with `langs` a corpus for each."""
    name = entry.get("name") if isinstance(entry, dict) else None
    where = f"{path}: corpora: {name if isinstance(name, str) else f'number {number}'}"
    if isinstance(entry, dict):  # a single value may stand without brackets
        lists = {key: entry[key] for key in (*_TEXTS, "bytes") if key in entry and not isinstance(entry[key], list)}
        entry = {**entry, **{key: [value] for key, value in lists.items()}}
        for key in _TEXTS:
            _texts(f"{where}: {key}", entry.get(key, []))
    corpus = structured(Corpus, where, entry)
    _check(where, corpus.mistakes())
    corpus = replace(corpus, pair=each_code(corpus.pair, plain_code))
    return [of_language(corpus, plain_code(lang)) for lang in corpus.langs] or [corpus]
