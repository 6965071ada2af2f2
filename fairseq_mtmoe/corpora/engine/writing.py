"""The fourth stage: write shards, dictionaries and evaluation text.

Shards consist of ids. Lists name the written files.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_mtmoe.core import tiers
from fairseq_mtmoe.corpora.binarize import writer
from fairseq_mtmoe.corpora.engine.encoding import SOURCE, Vocabulary
from fairseq_mtmoe.corpora.engine.state import SIDES, CorpusState, training_by_pair
from fairseq_mtmoe.corpora.engine.work import lines_of, load
from fairseq_mtmoe.corpora.engine.workers import Tools
from fairseq_mtmoe.corpora.recipes.codes import Spelling, reversed_pair
from fairseq_mtmoe.corpora.recipes.recipe import Recipe
from fairseq_mtmoe.corpora.recipes.schema import Role
from fairseq_mtmoe.translation.data import recorded_sizes
from fairseq_mtmoe.translation.data.file_names import (
    OF_SOURCES,
    SENTENCEPIECE,
    TEXT_FOLDER,
    TOKEN_STYLE,
    dictionary_name,
    side_name,
)

TRAIN = Role.train.name
# These files are also beside shards.
OF_ALL_SHARDS = ("langs.txt", "lang_pairs.txt", TOKEN_STYLE, SENTENCEPIECE, OF_SOURCES)


@dataclass(frozen=True)
class DataDirectory:
    """A data directory before it is written."""

    recipe: Recipe
    corpora: list[CorpusState]  # with their ids
    vocabulary: Vocabulary

    @cached_property
    def splits(self) -> dict[tuple[str, str], list[CorpusState]]:
        """Return the corpora of each language pair and split, without empty ones."""
        splits: dict[tuple[str, str], list[CorpusState]] = {}
        for corpus in self.corpora:
            if corpus.is_training or corpus.kept:
                splits.setdefault((corpus.files.pair, corpus.files.role.name), []).append(corpus)
        return splits

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Return the number of training pairs of each language pair, with copies."""
        sizes: dict[str, int] = {}
        for pair, in_pair in training_by_pair(self.corpora).items():
            sizes[pair] = sum(corpus.kept * corpus.files.weight for corpus in in_pair)
        return sizes

    @property
    def pairs(self) -> list[str]:
        """Return the language pairs with text, in plain codes."""
        return list(dict.fromkeys(pair for pair, _ in self.splits))

    @cached_property
    def synthetic(self) -> dict[str, int]:
        """Return the number of back-translated training pairs by direction."""
        counts = Counter[str]()
        for corpus in self.corpora:
            files = corpus.files
            if files.is_synthetic and corpus.kept:
                counts[f"{files.source_lang}-{files.target_lang}"] += corpus.kept * files.weight
        return dict(sorted(counts.items()))

    def shards(self, pair: str) -> int:
        """Return the number of shards of a pair."""
        settings = self.recipe.shards
        return max(1, min(settings.most, math.ceil(self.sizes[pair] / settings.pairs)))

    def tiers(self) -> dict[str, list[str]]:
        """Return the directions of each tier, by the recipe or by size, largest first."""
        named = {name: tier for tier, names in self.recipe.tiers.items() for name in names}
        sizes = {way: self.sizes[self.training_of(way)] for way in self.recipe.trained()}
        by_tier: dict[str, list[str]] = {tier: [] for tier in tiers.TIERS}
        for way in sorted(sizes, key=lambda way: (-sizes[way], way)):
            source, target = way.split("-")
            # A tier is of the language that English is paired with.
            other = source if target == "en" else target
            by_size = tiers.tier_of_size(sizes[way], max(sizes.values()))
            tier = named.get(way) or named.get(f"{target}-{source}") or named.get(other) or by_size
            by_tier[tier].append(self.recipe.data_pair(way))
        return by_tier

    def training_of(self, way: str) -> str:
        """Return the pair with the training data of a direction."""
        return way if way in self.sizes else reversed_pair(way)

    def write(self, tools: Tools, folder: Path) -> None:
        """Fill an empty folder."""
        count = max(map(self.shards, self.sizes))
        folders = [folder] if count == 1 else [folder / f"shard{number}" for number in range(count)]
        for shard in folders:
            shard.mkdir(exist_ok=True)
        self._write_dictionaries(folders)
        for shard in folders:
            self._write_shared(shard, folders)
        if count > 1:
            for name in OF_ALL_SHARDS:
                if (folders[0] / name).exists():
                    _link(folders[0] / name, folder / name)
        self._write_ids(tools, folders)
        for (pair, split), corpora in self.splits.items():
            if split != TRAIN:
                self._write_text(folders[0] / TEXT_FOLDER, pair, corpora)

    def _write_ids(self, tools: Tools, folders: Sequence[Path]) -> None:
        jobs, sizes = [], []
        for (pair, split), corpora in self.splits.items():
            number = self.shards(pair) if split == TRAIN else 1
            files = [file for corpus in corpora for file in corpus.ids * corpus.files.weight]
            for side, lang in zip(SIDES, pair.split("-"), strict=True):
                prefixes = [shard / self._name(pair, split, lang) for shard in folders[:number]]
                jobs.append(partial(write_side, files, side, prefixes, self.vocabulary.symbols))
                sizes.append(sum(corpus.kept * corpus.files.weight for corpus in corpora))
        tools.run("Writing shards", jobs, sizes, "sentences")

    def _name(self, pair: str, split: str, lang: str) -> str:
        return side_name(split, self.recipe.data_pair(pair), self.recipe.data_code(lang))

    def _langs(self) -> list[str]:
        """Return the languages of all text, in plain codes."""
        return sorted(
            {lang for pair in self.pairs for lang in pair.split("-")}, key=self.recipe.data_code
        )

    def _write_dictionaries(self, folders: Sequence[Path]) -> None:
        """Write each language's dictionary, as links to one file or to one for each kind."""
        first: dict[str, Path] = {}
        for lang in self._langs():
            kind = self.vocabulary.kind(lang, self.recipe)
            for folder in folders:
                path = folder / dictionary_name(self.recipe.data_code(lang))
                if kind in first:
                    _link(first[kind], path)
                else:
                    first[kind] = path
                    shutil.copyfile(self.vocabulary.dictionary(kind), path)

    def _write_shared(self, folder: Path, folders: Sequence[Path]) -> None:
        """Write the SentencePiece model or models, and the lists that tasks read."""
        shutil.copyfile(self.vocabulary.model(), folder / SENTENCEPIECE)
        if self.vocabulary.has_sources:
            shutil.copyfile(self.vocabulary.model(SOURCE), folder / OF_SOURCES)
        langs = dict.fromkeys(
            [*self.recipe.known_languages, *map(self.recipe.data_code, self._langs())]
        )
        (folder / "langs.txt").write_text("".join(f"{lang}\n" for lang in langs), encoding="utf-8")
        lang_pairs = sorted(map(self.recipe.data_pair, self.recipe.trained()))
        (folder / "lang_pairs.txt").write_text(",".join(lang_pairs) + "\n", encoding="utf-8")
        if self.recipe.vocabulary.language_tokens is Spelling.mbart:
            (folder / TOKEN_STYLE).write_text("mbart\n")
        (folder / tiers.FILE_NAME).write_text(json.dumps(self.tiers(), indent=1) + "\n")
        sizes = {}
        for pair, size in sorted(self.sizes.items()):
            shards = self.shards(pair)  # which get the sentence pairs in turn
            sizes[self.recipe.data_pair(pair)] = [
                len(range(shard, size, shards)) for shard in range(shards)
            ]
        names = [shard.name for shard in folders] if len(folders) > 1 else [""]
        content: dict[str, Any] = {"shards": names, recorded_sizes.SPLIT: sizes}
        if self.synthetic:
            synthetic = {self.recipe.data_pair(way): count for way, count in self.synthetic.items()}
            content[recorded_sizes.SYNTHETIC] = synthetic
        (folder / recorded_sizes.FILE_NAME).write_text(json.dumps(content, indent=1) + "\n")

    def _write_text(self, folder: Path, pair: str, corpora: Sequence[CorpusState]) -> None:
        """Write evaluation text for scoring; further references are in `….1`, `….2`, …"""
        folder.mkdir(exist_ok=True)
        split = corpora[0].files.role.name
        source, target = (folder / self._name(pair, split, lang) for lang in pair.split("-"))
        paths = {"source": source, "target": target}
        for number in range(max(corpus.references for corpus in corpora)):
            paths[f"reference{number}"] = Path(f"{target}.{number + 1}")
        places = [place for corpus in corpora for place in corpus.places]
        for name, path in paths.items():
            with open(path, "w", encoding="utf-8") as out:
                for place in places:
                    arrays = load(place.block, name)
                    # Some corpora may have fewer references; an empty line means none.
                    lines = lines_of(arrays[name]) if name in arrays else [""] * place.size
                    out.writelines(f"{line}\n" for line in lines)


def _link(path: Path, other: Path) -> None:
    try:
        os.link(path, other)
    except OSError:
        shutil.copyfile(path, other)


def write_side(files: Sequence[Path], side: str, prefixes: Sequence[Path], symbols: int) -> None:
    """Distribute sentences to shards in turn, as `.bin` and `.idx`; a job.

    `files` have the ids of one side of a split. `prefixes` are paths without suffix, one for each
    shard.
    """
    count = 0
    with ExitStack() as stack:
        adders = [stack.enter_context(writer(prefix, symbols)) for prefix in prefixes]
        for path in files:
            arrays = load(path, f"{side}_ids", f"{side}_lengths")
            ids, lengths = arrays[f"{side}_ids"], arrays[f"{side}_lengths"]
            shard_of = (count + np.arange(len(lengths))) % len(adders)
            for shard, add in enumerate(adders):
                is_in_shard = shard_of == shard
                add(ids[np.repeat(is_in_shard, lengths)], lengths[is_in_shard])
            count += len(lengths)
