"""The second half of every preparation: vocabulary, shards of ids, and lists that describe them."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_mtmoe.data.corpora.binarize import writer
from fairseq_mtmoe.data.corpora.engine.encoding import SOURCE, Kinds, Text, Vocabulary, encode, make_vocabulary
from fairseq_mtmoe.data.corpora.engine.selecting import SIDES, Selections
from fairseq_mtmoe.data.corpora.engine.store import Saved, summary_of
from fairseq_mtmoe.data.corpora.engine.workers import Tools
from fairseq_mtmoe.data.corpora.recipes.recipe import Recipe
from fairseq_mtmoe.data.corpora.recipes.schema import Role, Shards, Spelling
from fairseq_mtmoe.data.translation import recorded_sizes, tiers
from fairseq_mtmoe.data.translation.file_names import (
    OF_SOURCES,
    SENTENCEPIECE,
    TEXT_FOLDER,
    TOKEN_STYLE,
    dictionary_name,
    side_name,
)

TRAIN = Role.train.name
OF_ALL_SHARDS = ("langs.txt", "lang_pairs.txt", TOKEN_STYLE, SENTENCEPIECE, OF_SOURCES)  # also beside shards

Evaluation = Mapping[str, Mapping[str, Sequence[Path]]]  # by pair and split, files with references


def binarize(
    folder: Path,
    tools: Tools,
    recipe: Recipe,
    given: Mapping[str, Path],
    names: tuple[str, str],
    selections: Selections,
    evaluation: Evaluation,
) -> Assembly:
    """Fill the empty directory `folder` by a recipe; `given` and `names` of a vocabulary as in `make_vocabulary`."""
    vocabulary = make_vocabulary(tools, recipe, given, names, selections)
    trained = [selection for of_pair in selections.values() for selection in of_pair]
    texts: list[Text] = [selection.blocks for selection in trained]
    tagged = [*(selection.corpus.raw.tagged for selection in trained), *("" for of in evaluation.values() for _ in of)]
    splits = [(pair, split, files) for pair, of_pair in evaluation.items() for split, files in of_pair.items()]
    pairs = [*(pair for pair, of_pair in selections.items() for _ in of_pair), *(pair for pair, *_ in splits)]
    kinds = [kinds_of(pair, recipe, vocabulary) for pair in pairs]
    texts += [[(file, None) for file in files] for *_, files in splits]
    encoded = iter(encode(tools, texts, vocabulary, kinds, tagged))
    ids = [
        Ids(pair, TRAIN, [file for one in of_pair for file in next(encoded) * one.corpus.raw.weight])
        for pair, of_pair in selections.items()
    ]
    ids += [Ids(pair, split, next(encoded), files) for pair, split, files in splits]
    synthetic = Counter[str]()
    for raw, kept in ((one.corpus.raw, one.summary()["kept"]) for one in trained):
        if raw.is_synthetic and kept:
            synthetic[f"{raw.files.source_lang}-{raw.files.target_lang}"] += kept * raw.weight
    assembly = Assembly(recipe, vocabulary, ids, synthetic)
    assembly.write(folder, tools)
    return assembly


def kinds_of(pair: str, recipe: Recipe, vocabulary: Vocabulary) -> Kinds:
    """Return the kind of vocabulary of each side of a pair."""
    sources = recipe.source_languages() if vocabulary.has_sources else set()
    first, second = (SOURCE if lang in sources else "" for lang in pair.split("-"))
    return first, second


@dataclass(frozen=True)
class Ids:
    """Files with the ids of a pair's split, in order; for evaluation data also the files with its text."""

    pair: str
    split: str
    files: Sequence[Path]
    text: Sequence[Path] = ()

    @cached_property
    def summaries(self) -> list[dict[str, Any]]:
        """Return each file's `pairs`, and each side's counts for `vocabulary.table`."""
        return list(map(summary_of, self.files))


@dataclass(frozen=True)
class Assembly:
    """A data directory before it is written: its vocabulary, and the ids of each split of each language pair.

    `synthetic`: number of back-translated training pairs in a direction.
    """

    recipe: Recipe
    vocabulary: Vocabulary
    ids: Sequence[Ids]
    synthetic: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Return the training pairs of each language pair."""
        return {one.pair: sum(of["pairs"] for of in one.summaries) for one in self.ids if one.split == TRAIN}

    @property
    def pairs(self) -> list[str]:
        """Return the language pairs with text, in plain codes."""
        return list(dict.fromkeys(one.pair for one in self.ids))

    def shards(self, pair: str) -> int:
        """Return the number of shards of a pair."""
        return shards_of(self.sizes[pair], self.recipe.shards)

    def tiers(self) -> dict[str, list[str]]:
        """Return the directions of each tier, largest first: by the recipe, the others by size."""
        named = {name: tier for tier, names in self.recipe.tiers.items() for name in names}
        sizes = {way: self.sizes[self.training_of(way)] for way in self.recipe.trained()}
        found: dict[str, list[str]] = {tier: [] for tier in tiers.TIERS}
        for way in sorted(sizes, key=lambda way: (-sizes[way], way)):
            source, target = way.split("-")
            other = source if target == "en" else target  # a tier is of the language that English is paired with
            by_size = tiers.tier_of_size(sizes[way], max(sizes.values()))
            tier = named.get(way) or named.get(f"{target}-{source}") or named.get(other) or by_size
            found[tier].append(self.recipe.data_pair(way))
        return found

    def training_of(self, way: str) -> str:
        """Return the pair with the training data of a direction."""
        return way if way in self.sizes else "-".join(reversed(way.split("-")))

    def write(self, folder: Path, tools: Tools) -> None:
        """Write the data directory."""
        count = max(map(self.shards, self.sizes))
        folders = [folder] if count == 1 else [folder / f"shard{number}" for number in range(count)]
        for each in folders:
            each.mkdir(exist_ok=True)
        self._write_dictionaries(folders)
        for each in folders:
            self._write_shared(each, folders)
        for name in OF_ALL_SHARDS if count > 1 else ():
            if (folders[0] / name).exists():
                _link(folders[0] / name, folder / name)
        jobs = sorted(self._jobs(folders), key=lambda job: -len(job.args[0]))  # longest jobs first
        tools.do("Writing shards", jobs, sum(self.sizes.values()))
        for one in self.ids:
            if one.text:
                self._write_text(folders[0] / TEXT_FOLDER, one)

    def _jobs(self, folders: Sequence[Path]) -> Iterator[partial[int]]:
        for one in self.ids:
            is_training = one.split == TRAIN
            number = self.shards(one.pair) if is_training else 1
            for side, lang in zip(SIDES, one.pair.split("-"), strict=True):
                prefixes = [each / self._name(one, lang) for each in folders[:number]]
                yield partial(write_side, one.files, side, prefixes, self.vocabulary.symbols, is_training)

    def _name(self, ids: Ids, lang: str) -> str:
        return side_name(ids.split, self.recipe.data_pair(ids.pair), self.recipe.data_code(lang))

    def _langs(self) -> list[str]:
        """Return the languages of all text, in plain codes."""
        return sorted({lang for pair in self.pairs for lang in pair.split("-")}, key=self.recipe.data_code)

    def _write_dictionaries(self, folders: Sequence[Path]) -> None:
        """Write each language's dictionary, as links to one file, or to one for sources and one for targets."""
        first: dict[str, Path] = {}
        for lang in self._langs():
            kind = kinds_of(f"{lang}-", self.recipe, self.vocabulary)[0]
            for path in (folder / dictionary_name(self.recipe.data_code(lang)) for folder in folders):
                if kind in first:
                    _link(first[kind], path)
                else:
                    first[kind] = path
                    shutil.copyfile(self.vocabulary.dictionary(kind), path)

    def _write_shared(self, folder: Path, folders: Sequence[Path]) -> None:
        """Write the SentencePiece model or models, and the lists that tasks read."""
        langs = list(map(self.recipe.data_code, self._langs()))
        shutil.copyfile(self.vocabulary.model(), folder / SENTENCEPIECE)
        if self.vocabulary.has_sources:
            shutil.copyfile(self.vocabulary.model(SOURCE), folder / OF_SOURCES)
        known = self.recipe.known_languages
        ordered = [*known, *(lang for lang in langs if lang not in known)]
        _write(folder / "langs.txt", "".join(f"{lang}\n" for lang in ordered))
        _write(folder / "lang_pairs.txt", ",".join(sorted(map(self.recipe.data_pair, self.recipe.trained()))) + "\n")
        if self.recipe.vocabulary.language_tokens is Spelling.mbart:
            _write(folder / TOKEN_STYLE, "mbart\n")
        _write(folder / tiers.FILE_NAME, json.dumps(self.tiers(), indent=1) + "\n")
        pairs = sorted(self.sizes)
        sizes = {self.recipe.data_pair(pair): sizes_of(self.sizes[pair], self.shards(pair)) for pair in pairs}
        shards = [each.name for each in folders] if len(folders) > 1 else [""]
        synthetic = {self.recipe.data_pair(way): count for way, count in sorted(self.synthetic.items())}
        content: dict[str, Any] = {"shards": shards, recorded_sizes.SPLIT: sizes}
        content |= {recorded_sizes.SYNTHETIC: synthetic} if synthetic else {}
        _write(folder / recorded_sizes.FILE_NAME, json.dumps(content, indent=1) + "\n")

    def _write_text(self, folder: Path, ids: Ids) -> None:
        """Write evaluation text, for scoring detokenized output; further references as `….1` (see `evaluation`)."""
        folder.mkdir(exist_ok=True)
        source, target = (folder / self._name(ids, lang) for lang in ids.pair.split("-"))
        further = max(summary_of(file)["references"] for file in ids.text)
        names = {"source": source, "target": target}
        names |= {f"reference{number}": Path(f"{target}.{number + 1}") for number in range(further)}
        for name, path in names.items():
            with open(path, "w", encoding="utf-8", newline="\n") as out:
                for file in ids.text:
                    with Saved(file) as saved:
                        # some corpora may have fewer references; an empty line means none
                        lines = saved.lines(name) if name in saved else [""] * int(saved["source_count"])
                    out.writelines(f"{line}\n" for line in lines)


def _link(path: Path, other: Path) -> None:
    try:
        os.link(path, other)
    except OSError:
        shutil.copyfile(path, other)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


def shards_of(pairs: int, settings: Shards) -> int:
    """Return the number of shards of a language pair's training data."""
    return max(1, min(settings.most, -(-pairs // settings.pairs)))


def sizes_of(pairs: int, shards: int) -> list[int]:
    """Return each shard's number of pairs, which are distributed in turn."""
    return [len(range(shard, pairs, shards)) for shard in range(shards)]


def write_side(files: Sequence[Path], side: str, prefixes: Sequence[Path], symbols: int, is_training: bool) -> int:
    """Distribute sentences to shards in turn, as `.bin` and `.idx`; return the number of pairs with sources.

    `files` have the ids of one side of a split, `prefixes` are paths without suffix, one for each shard.
    """
    count = 0
    with ExitStack() as stack:
        adders = [stack.enter_context(writer(prefix, symbols)) for prefix in prefixes]
        for path in files:
            with Saved(path) as saved:
                ids, lengths = saved[f"{side}_ids"], saved[f"{side}_lengths"]
            shard_of = (count + np.arange(len(lengths))) % len(adders)
            for shard, add in enumerate(adders):
                mine = shard_of == shard
                add(ids[np.repeat(mine, lengths)], lengths[mine])
            count += len(lengths)
    return count if is_training and side == "source" else 0
