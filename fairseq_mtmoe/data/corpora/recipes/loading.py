"""Recipes from YAML: a dataclass for each part, and a sentence for each mistake."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any

from fairseq_mtmoe.data.corpora.recipes.checks import check_corpora, check_corpus, check_parts
from fairseq_mtmoe.data.corpora.recipes.codes import Spelling, plain_code
from fairseq_mtmoe.data.corpora.recipes.recipe import Recipe, of_language
from fairseq_mtmoe.data.corpora.recipes.schema import Corpus, Filters, HeldOut, Shards, Vocabulary
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
_LISTS = ("files", "langs", "address", "sha256", "md5", "bytes")  # of a corpus: a single one may stand without brackets


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
    parts = {key: structured(form, f"{path}: {key}", content.get(key, {})) for key, form in _PARTS.items()}
    recipe = Recipe(
        name=content["name"],
        languages=_spelling(f"{path}: languages", content.get("languages", "plain")),
        directions=[_plain_pair(pair) for pair in _texts(f"{path}: directions", content.get("directions", []))],
        corpora=_corpora(path, content["corpora"]),
        tiers=_tiers(f"{path}: tiers", content.get("tiers", {})),
        seed=content.get("seed", 1),
        path=path,
        **parts,
    )
    check_parts(recipe)
    check_corpora(recipe)
    return recipe


def _spelling(where: str, value: Any) -> Spelling:
    if value not in Spelling.__members__:
        raise_invalid(where, f"one of {', '.join(Spelling.__members__)}", value)
    return Spelling[value]


def _texts(where: str, value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    for text in values:
        if not isinstance(text, str):
            raise_invalid(where, "a list of texts (`no`, `on` and the like need quotes)", text)
    return values


def _plain_pair(pair: str) -> str:
    return "-".join(map(plain_code, pair.split("-")))


def _tiers(where: str, content: Any) -> Mapping[str, list[str]]:
    check_names(where, content, ("high", "mid", "low"))
    return {tier: [_plain_pair(name) for name in _texts(f"{where}: {tier}", names)] for tier, names in content.items()}


def _corpora(path: Path, content: Any) -> list[Corpus]:
    if not isinstance(content, list) or not content:
        raise_invalid(f"{path}: corpora", "a list of corpora", content)
    corpora: list[Corpus] = []
    for number, entry in enumerate(content, start=1):
        name = entry.get("name") if isinstance(entry, dict) else None
        corpora += _corpus(f"{path}: corpora: {name if isinstance(name, str) else f'number {number}'}", entry)
    return corpora


def _corpus(where: str, entry: Any) -> list[Corpus]:
    """The corpus of an entry; of one with `langs` a corpus for each."""
    if isinstance(entry, dict):
        lists = {key: entry[key] for key in _LISTS if key in entry and not isinstance(entry[key], list)}
        entry = {**entry, **{key: [value] for key, value in lists.items()}}
        for key in ("files", "langs", "address", "sha256", "md5"):
            _texts(f"{where}: {key}", entry.get(key, []))
    corpus = structured(Corpus, where, entry)
    check_corpus(where, corpus)
    values = {field.name: getattr(corpus, field.name) for field in fields_of(Corpus)}
    values["pair"] = _plain_pair(corpus.pair)
    if not corpus.langs:
        return [Corpus(**values)]
    return [of_language(Corpus(**values), plain_code(lang)) for lang in corpus.langs]
