"""Recipes from YAML: a dataclass for each part, and a sentence for each mistake."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields as fields_of
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from fairseq_mtmoe.data.corpora.recipes.checks import check_corpora, check_corpus, check_parts
from fairseq_mtmoe.data.corpora.recipes.codes import Spelling, plain_code
from fairseq_mtmoe.data.corpora.recipes.parts import Corpus, Filters, HeldOut, Shards, Vocabulary
from fairseq_mtmoe.data.corpora.recipes.patterns import of_language
from fairseq_mtmoe.data.corpora.recipes.recipe import Recipe
from fairseq_mtmoe.errors import UserError, first_line, must_be
from fairseq_mtmoe.io.files import read_text

Fields = TypeVar("Fields")

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
        must_be(argument, f"one of {', '.join(SHIPPED)}, or a file that is there", name)
    content = _content(path)
    _check_keys(str(path), content, _KEYS)
    for key in ("name", "corpora"):
        if key not in content:
            must_be(str(path), f"a recipe with `{key}`", list(content))
    parts = {key: _structured(form, f"{path}: {key}", content.get(key, {})) for key, form in _PARTS.items()}
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


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """PyYAML's safe loader, which takes the last of two equal keys without a word, and values that have themselves in
    them (`&a [*a]`): here these are mistakes."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._around: list[str | None] = []  # the anchors of the values that are being read

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) and event.anchor in self._around:
            line = event.start_mark.line + 1
            raise yaml.YAMLError(f"line {line} has `*{event.anchor}` within what that stands for")
        self._around.append(event.anchor)
        node = super().compose_node(parent, index)
        self._around.pop()
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise yaml.YAMLError(f"line {node.start_mark.line + 1} begins what has `{twice}` twice")
        content: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return content


def _content(path: Path) -> dict[str, Any]:
    text = read_text(path, "a recipe")
    try:
        content = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date that there is not
        reason = " ".join(str(error).split())
        raise UserError(f"`{path}` must be a recipe in YAML, but cannot be read: {reason}.") from error
    if not isinstance(content, dict):
        must_be(str(path), "a recipe: names, and what they stand for", type(content).__name__)
    return content


def _check_keys(where: str, content: Any, known: tuple[str, ...]) -> None:
    if not isinstance(content, dict):
        must_be(where, "names and their values", content)
    for key in content:
        if key not in known:
            must_be(f"a name in {where}", f"one of {', '.join(known)} (see docs/recipes.md)", key)


def _structured(form: type[Fields], where: str, content: Any) -> Fields:
    """The dataclass with these fields, each of the type that it must have."""
    names = tuple(field.name for field in fields_of(form))  # type: ignore[arg-type]
    _check_keys(where, {} if content is None else content, names)
    try:
        given = _with_texts(content or {}, _hidden)
        made: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(form), given))
    except MissingMandatoryValue as error:
        missing = [name for name in names if name not in content and name in ("name", "pair", "role", "files")]
        raise UserError(f"`{where}` must have `{missing[0] if missing else error.key}`, but has not.") from error
    except OmegaConfBaseException as error:
        raise UserError(f"`{where}: {error.full_key}` is wrong: {_shown(first_line(error))}.") from error
    shown: Fields = replace(made, **{name: _with_texts(getattr(made, name), _shown) for name in names})
    return shown


def _hidden(text: str) -> str:
    """A text in which OmegaConf finds nothing to fill in (`${oc.env:HOME}`) or missing (`???`): recipes mean what they
    say, and see nothing of the machine that they are read on."""
    return text.replace("${", "$\0{") if text != "???" else "\0???"


def _shown(text: str) -> str:
    """What `_hidden` was given."""
    return text.replace("$\0{", "${").replace("\0???", "???")


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A value with each text in it changed, but for names."""
    if isinstance(value, dict):
        return {key: _with_texts(part, change) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_texts(part, change) for part in value]
    return change(value) if isinstance(value, str) else value


def _spelling(where: str, value: Any) -> Spelling:
    if value not in Spelling.__members__:
        must_be(where, f"one of {', '.join(Spelling.__members__)}", value)
    return Spelling[value]


def _texts(where: str, value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    for text in values:
        if not isinstance(text, str):
            must_be(where, "a list of texts (`no`, `on` and the like need quotes)", text)
    return values


def _plain_pair(pair: str) -> str:
    return "-".join(map(plain_code, pair.split("-")))


def _tiers(where: str, content: Any) -> Mapping[str, list[str]]:
    _check_keys(where, content, ("high", "mid", "low"))
    return {tier: [_plain_pair(name) for name in _texts(f"{where}: {tier}", names)] for tier, names in content.items()}


def _corpora(path: Path, content: Any) -> list[Corpus]:
    if not isinstance(content, list) or not content:
        must_be(f"{path}: corpora", "a list of corpora", content)
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
    corpus = _structured(Corpus, where, entry)
    check_corpus(where, corpus)
    values = {field.name: getattr(corpus, field.name) for field in fields_of(Corpus)}
    values["pair"] = _plain_pair(corpus.pair)
    if not corpus.langs:
        return [Corpus(**values)]
    return [of_language(Corpus(**values), plain_code(lang)) for lang in corpus.langs]
