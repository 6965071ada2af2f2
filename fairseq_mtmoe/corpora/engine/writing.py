"""The fourth stage: write shards, dictionaries and evaluation text.

Shards consist of ids. Lists name the written files.
"""

from __future__ import annotations

import json
import math
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
from fairseq_mtmoe.core.files import link
from fairseq_mtmoe.corpora.binarize import writer
from fairseq_mtmoe.corpora.engine.encoding import SOURCE, Vocabulary
from fairseq_mtmoe.corpora.engine.state import (
    SIDES,
    CorpusState,
    places_of,
    training_by_pair,
    written_in,
)
from fairseq_mtmoe.corpora.engine.work import load
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
    def splits(self) -> dict[str, dict[str, list[CorpusState]]]:
        """Return the corpora of each language pair by split, without empty ones.

        Pairs are in plain codes.
        """
        splits: dict[str, dict[str, list[CorpusState]]] = {}
        for corpus in self.corpora:
            if corpus.is_training or corpus.kept:
                in_pair = splits.setdefault(corpus.files.pair, {})
                in_pair.setdefault(corpus.files.role.name, []).append(corpus)
        return splits

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Return the number of training pairs of each language pair, with copies."""
        sizes = {}
        for pair, corpora in training_by_pair(self.corpora).items():
            sizes[pair] = written_in(corpora)
        return sizes

    @cached_property
    def synthetic(self) -> dict[str, int]:
        """Return the number of back-translated training pairs by direction."""
        counts = Counter[str]()
        for corpus in self.corpora:
            files = corpus.files
            if files.is_synthetic and corpus.kept:
                counts[f"{files.source_lang}-{files.target_lang}"] += written_in([corpus])
        return dict(sorted(counts.items()))

    @cached_property
    def shards(self) -> dict[str, int]:
        """Return the number of shards of each pair with training data."""
        shards = {}
        for pair, size in self.sizes.items():
            wanted = math.ceil(size / self.recipe.shards.pairs)
            shards[pair] = max(1, min(self.recipe.shards.most, wanted))
        return shards

    @cached_property
    def tier_of(self) -> dict[str, str]:
        """Return the tier of each direction, by the recipe or by size, largest first."""
        named = {}
        for tier, names in self.recipe.tiers.items():
            named.update(dict.fromkeys(names, tier))
        sizes = {way: self.sizes[self.training_of(way)] for way in self.recipe.trained()}
        by_way = {}
        for way in sorted(sizes, key=lambda way: (-sizes[way], way)):
            source, target = way.split("-")
            # A tier is of the language that English is paired with.
            other = source if target == "en" else target
            by_size = tiers.tier_of_size(sizes[way], max(sizes.values()))
            reverse = named.get(reversed_pair(way))
            by_way[way] = named.get(way) or reverse or named.get(other) or by_size
        return by_way

    def training_of(self, way: str) -> str:
        """Return the pair with the training data of a direction."""
        return way if way in self.sizes else reversed_pair(way)

    def write(self, tools: Tools, folder: Path) -> None:
        """Fill an empty folder."""
        count = max(self.shards.values())
        names = [""]
        if count > 1:
            names = list(map("shard{}".format, range(count)))
        folders = list(map(folder.joinpath, names))
        for shard in folders:
            shard.mkdir(exist_ok=True)
        self._write_dictionaries(folders)
        for shard in folders:
            self._write_shared(shard, names)
        if count > 1:
            for name in OF_ALL_SHARDS:
                if (folders[0] / name).exists():
                    link(folders[0] / name, folder / name)
        self._write_ids(tools, folders)
        for pair, splits in self.splits.items():
            for split, corpora in splits.items():
                if split != TRAIN:
                    self._write_text(folders[0] / TEXT_FOLDER, pair, split, corpora)

    def _write_ids(self, tools: Tools, folders: Sequence[Path]) -> None:
        jobs = []
        for pair, splits in self.splits.items():
            for split, corpora in splits.items():
                shards = folders[: self.shards[pair] if split == TRAIN else 1]
                files: list[Path] = []
                for corpus in corpora:
                    files += corpus.ids * corpus.files.weight
                for side, lang in zip(SIDES, pair.split("-"), strict=True):
                    name = self._name(pair, split, lang)
                    prefixes = [shard / name for shard in shards]
                    job = partial(write_side, files, side, prefixes, self.vocabulary.symbols)
                    jobs.append((job, written_in(corpora)))
        tools.run("Writing shards", jobs, "sentences")

    def _name(self, pair: str, split: str, lang: str) -> str:
        return side_name(split, self.recipe.data_pair(pair), self.recipe.data_code(lang))

    def _langs(self) -> list[str]:
        """Return the languages of all text, in plain codes."""
        return sorted(set("-".join(self.splits).split("-")), key=self.recipe.data_code)

    def _write_dictionaries(self, folders: Sequence[Path]) -> None:
        """Write each language's dictionary, as links to a file for each prefix."""
        first: dict[str, Path] = {}
        for lang in self._langs():
            prefix = self.vocabulary.prefix(lang)
            for folder in folders:
                path = folder / dictionary_name(self.recipe.data_code(lang))
                if prefix in first:
                    link(first[prefix], path)
                else:
                    first[prefix] = path
                    shutil.copyfile(self.vocabulary.dictionary(prefix), path)

    def _write_shared(self, folder: Path, shard_names: Sequence[str]) -> None:
        """Write the SentencePiece model or models, and the lists that tasks read."""
        shutil.copyfile(self.vocabulary.model(), folder / SENTENCEPIECE)
        if self.vocabulary.source_langs:
            shutil.copyfile(self.vocabulary.model(SOURCE), folder / OF_SOURCES)
        langs = dict.fromkeys(
            [*self.recipe.known_languages, *map(self.recipe.data_code, self._langs())]
        )
        (folder / "langs.txt").write_text("".join(f"{lang}\n" for lang in langs), encoding="utf-8")
        lang_pairs = sorted(map(self.recipe.data_pair, self.recipe.trained()))
        (folder / "lang_pairs.txt").write_text(",".join(lang_pairs) + "\n", encoding="utf-8")
        if self.recipe.vocabulary.language_tokens is Spelling.mbart:
            (folder / TOKEN_STYLE).write_text("mbart\n")
        by_tier: dict[str, list[str]] = {tier: [] for tier in tiers.TIERS}
        for way, tier in self.tier_of.items():
            by_tier[tier].append(self.recipe.data_pair(way))
        (folder / tiers.FILE_NAME).write_text(json.dumps(by_tier, indent=1) + "\n")
        sizes = {}
        for pair, size in sorted(self.sizes.items()):
            shards = self.shards[pair]  # which get the sentence pairs in turn
            sizes[self.recipe.data_pair(pair)] = [
                len(range(shard, size, shards)) for shard in range(shards)
            ]
        content: dict[str, Any] = {"shards": shard_names, recorded_sizes.SPLIT: sizes}
        if self.synthetic:
            synthetic = {self.recipe.data_pair(way): count for way, count in self.synthetic.items()}
            content[recorded_sizes.SYNTHETIC] = synthetic
        (folder / recorded_sizes.FILE_NAME).write_text(json.dumps(content, indent=1) + "\n")

    def _write_text(
        self, folder: Path, pair: str, split: str, corpora: Sequence[CorpusState]
    ) -> None:
        """Write evaluation text for scoring; further references are in `….1`, `….2`, …"""
        folder.mkdir(exist_ok=True)
        source, target = (folder / self._name(pair, split, lang) for lang in pair.split("-"))
        paths = {"source": source, "target": target}
        for number in range(max(corpus.references for corpus in corpora)):
            paths[f"reference{number}"] = Path(f"{target}.{number + 1}")
        for name, path in paths.items():
            with open(path, "wb") as out:
                for place in places_of(corpora):
                    # Some corpora may have fewer references; an empty line means none.
                    none = np.full(place.size, ord("\n"), np.uint8)
                    out.write(load(place.block, name).get(name, none).tobytes())


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
