"""The second half of every preparation: text that stays becomes a vocabulary, ids, and a data directory.

That has shards of ids, which stock fairseq reads (`MMapIndexedDataset`), and what is to be known of them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fairseq_mtmoe.data.corpora.binarize import Writer
from fairseq_mtmoe.data.corpora.engine.encoding import (
    SIDES,
    Encoded,
    ForVocabulary,
    Text,
    Vocabulary,
    encode,
    make_vocabulary,
)
from fairseq_mtmoe.data.corpora.engine.progress import Shown
from fairseq_mtmoe.data.corpora.engine.selecting import Selection
from fairseq_mtmoe.data.corpora.engine.store import Saved, WorkFolder
from fairseq_mtmoe.data.corpora.engine.workers import Workers
from fairseq_mtmoe.data.corpora.recipes import Recipe, Role, Shards, Spelling
from fairseq_mtmoe.data.translation import recorded_sizes, tiers
from fairseq_mtmoe.data.translation.file_names import TEXT_FOLDER, TOKEN_STYLE, dictionary_name, side_name

TRAIN = Role.train.name
# also beside the shards: what commands are told by name
OF_ALL_SHARDS = ("langs.txt", "lang_pairs.txt", TOKEN_STYLE, "spm.model")


def binarize(
    folder: Path,
    work: WorkFolder,
    recipe: Recipe,
    vocabulary: ForVocabulary,
    selections: Mapping[str, Sequence[Selection]],
    evaluation: Mapping[str, Mapping[str, list[Path]]],
    workers: Workers,
    shown: Shown,
) -> Assembly:
    """Fill the empty directory `folder`; what is in it.

    Args:
        recipe: vocabulary, shards, tiers and the spelling of codes.
        selections: the training text of each language pair.
        evaluation: by language pair and split, files of text.

    Raises:
        UserError: the text is too small for the vocabulary, or a given file is none of its kind.
    """
    made = make_vocabulary(work, recipe, vocabulary, selections, workers, shown)
    everything = [selection for of_pair in selections.values() for selection in of_pair]
    splits = [Evaluation(pair, split, files) for pair, of in evaluation.items() for split, files in of.items()]
    texts = [Text(list(selection.blocks())) for selection in everything]
    texts += [Text([(file, None) for file in one.files]) for one in splits]
    encoded = encode(work, texts, made.model, made.ids, made.stage.key, workers, shown)
    ids = iter(encoded)
    training = {pair: [next(ids) for _ in of_pair] for pair, of_pair in selections.items()}
    assembly = Assembly(recipe, made, training, list(zip(splits, ids, strict=True)))
    assembly.write(folder, workers, shown)
    return assembly


@dataclass(frozen=True)
class Evaluation:
    """The validation or test text of a language pair."""

    pair: str
    split: str
    files: list[Path]  # with `source`, `target` and further references


@dataclass(frozen=True)
class Assembly:
    """A data directory that is to be written.

    Attributes:
        training: the ids of each language pair's corpora.
        evaluation: validation and test text with its ids.
    """

    recipe: Recipe
    vocabulary: Vocabulary
    training: Mapping[str, Sequence[Encoded]]
    evaluation: Sequence[tuple[Evaluation, Encoded]]
    sizes: dict[str, int] = field(init=False)  # training pairs of each language pair

    def __post_init__(self) -> None:
        sizes = {
            pair: sum(summary["pairs"] for encoded in corpora for summary in encoded.summaries())
            for pair, corpora in self.training.items()
        }
        object.__setattr__(self, "sizes", sizes)

    @property
    def pairs(self) -> list[str]:
        """Those that there is text of, in plain codes."""
        return list(dict.fromkeys([*self.training, *(text.pair for text, _ in self.evaluation)]))

    def shards(self, pair: str) -> int:
        """Into how many directories a pair's training data is dealt out."""
        return shards_of(self.sizes[pair], self.recipe.shards)

    def tiers(self) -> dict[str, list[str]]:
        """The directions of every tier, largest first: as the recipe names them, the others by their size."""
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
        """The language pair whose text a direction is trained on."""
        return way if way in self.sizes else "-".join(reversed(way.split("-")))

    # ---- writing ----

    def folders(self, folder: Path) -> list[Path]:
        """The directory itself, or those of its shards."""
        count = max(map(self.shards, self.training))
        return [folder] if count == 1 else [folder / f"shard{number}" for number in range(count)]

    def write(self, folder: Path, workers: Workers, shown: Shown) -> None:
        """Fill the empty directory `folder`."""
        folders = self.folders(folder)
        dictionary = folders[0] / dictionary_name(self.recipe.data_code(self._langs()[0]))
        for place in folders:
            place.mkdir(exist_ok=True)
            self._write_shared(place, folders, dictionary)
        for name in OF_ALL_SHARDS if len(folders) > 1 else ():
            if (folders[0] / name).exists():
                _link(folders[0] / name, folder / name)
        jobs = sorted(self._jobs(folders), key=lambda job: -len(job.ids))  # what takes longest comes first
        with shown.step("Writing shards", total=sum(self.sizes.values())) as step:
            for pairs in workers.map_blocks(write_side, jobs):
                step.advance(pairs)
        for text, _ in self.evaluation:
            self._write_text(folders[0] / TEXT_FOLDER, text)

    def _jobs(self, folders: Sequence[Path]) -> Iterator[SideJob]:
        for pair, corpora in self.training.items():
            files = [file for encoded in corpora for file in encoded.files]
            yield from self._sides(pair, TRAIN, files, folders[: self.shards(pair)])
        for text, encoded in self.evaluation:
            yield from self._sides(text.pair, text.split, encoded.files, folders[:1])

    def _sides(self, pair: str, split: str, files: Sequence[Path], folders: Sequence[Path]) -> Iterator[SideJob]:
        for side, lang in zip(SIDES, pair.split("-"), strict=True):
            name = side_name(split, self.recipe.data_pair(pair), self.recipe.data_code(lang))
            prefixes = [folder / name for folder in folders]
            yield SideJob(files, side, prefixes, self.vocabulary.symbols, split == TRAIN)

    def _langs(self) -> list[str]:
        """Those of all text, in plain codes."""
        return sorted({lang for pair in self.pairs for lang in pair.split("-")}, key=self.recipe.data_code)

    def _write_shared(self, folder: Path, folders: Sequence[Path], dictionary: Path) -> None:
        """The model, a dictionary for each language, and the lists that fairseq and `translation_heated` read.

        Args:
            dictionary: the first of all; the others are links to it, where the file system has such.
        """
        langs = list(map(self.recipe.data_code, self._langs()))
        shutil.copyfile(self.vocabulary.model, folder / "spm.model")
        for lang in langs:
            place = folder / dictionary_name(lang)
            if place == dictionary:
                shutil.copyfile(self.vocabulary.dictionary, place)
            else:
                _link(dictionary, place)
        known = self.recipe.known_languages
        ordered = [*known, *(lang for lang in langs if lang not in known)]
        _write(folder / "langs.txt", "".join(f"{lang}\n" for lang in ordered))
        ways = sorted(map(self.recipe.data_pair, self.recipe.trained()))
        _write(folder / "lang_pairs.txt", ",".join(ways) + "\n")
        if self.recipe.vocabulary.language_tokens is Spelling.mbart:
            _write(folder / TOKEN_STYLE, "mbart\n")
        _write(folder / tiers.FILE_NAME, json.dumps(self.tiers(), indent=1) + "\n")
        sizes = {
            self.recipe.data_pair(pair): sizes_of(size, self.shards(pair)) for pair, size in sorted(self.sizes.items())
        }
        shards = [place.name for place in folders] if len(folders) > 1 else [""]
        _write(
            folder / recorded_sizes.FILE_NAME,
            json.dumps({"shards": shards, recorded_sizes.SPLIT: sizes}, indent=1) + "\n",
        )

    def _write_text(self, folder: Path, text: Evaluation) -> None:
        """The text itself: references to score detokenized output against, further ones as `….1` (see `evaluation`)."""
        folder.mkdir(exist_ok=True)
        pair = self.recipe.data_pair(text.pair)
        source, target = (
            folder / side_name(text.split, pair, self.recipe.data_code(lang)) for lang in text.pair.split("-")
        )
        names = {"source": source, "target": target}
        further = max(_references(file) for file in text.files)
        names |= {f"reference{number}": Path(f"{target}.{number + 1}") for number in range(further)}
        for name, path in names.items():
            with open(path, "w", encoding="utf-8", newline="\n") as out:
                for file in text.files:
                    with Saved(file) as saved:
                        # of several corpora some may have fewer references: no text stands for none
                        lines = saved.lines(name) if name in saved else [""] * int(saved["source_count"])
                    out.writelines(f"{line}\n" for line in lines)


def _references(file: Path) -> int:
    with Saved(file) as saved:
        return int(saved.summary["references"])


def _link(path: Path, other: Path) -> None:
    try:
        os.link(path, other)
    except OSError:
        shutil.copyfile(path, other)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


# ---- shards ----


def shards_of(pairs: int, settings: Shards) -> int:
    """Into how many directories a language pair's training data is dealt out."""
    return max(1, min(settings.most, -(-pairs // settings.pairs)))


def sizes_of(pairs: int, shards: int) -> list[int]:
    """How many pairs each shard gets: they are dealt out in turn."""
    return [len(range(shard, pairs, shards)) for shard in range(shards)]


@dataclass(frozen=True)
class SideJob:
    """One side of a split of a language pair: the files of its ids, and where it goes.

    Attributes:
        prefixes: paths without suffix, one for each shard.
        symbols: of the dictionary.
    """

    ids: Sequence[Path]
    side: str  # source or target
    prefixes: Sequence[Path]
    symbols: int
    is_training: bool


def write_side(job: SideJob) -> int:
    """Deal sentences out to the shards in turn, and write each shard's `.bin` and `.idx`; how many training pairs have
    their source written now."""
    count = 0
    with ExitStack() as stack:
        writers = [stack.enter_context(Writer(prefix, job.symbols)) for prefix in job.prefixes]
        for path in job.ids:
            with Saved(path) as saved:
                ids, lengths = saved[f"{job.side}_ids"], saved[f"{job.side}_lengths"]
            shard_of = (count + np.arange(len(lengths))) % len(writers)
            for shard, writer in enumerate(writers):
                mine = shard_of == shard
                writer.add(ids[np.repeat(mine, lengths)], lengths[mine])
            count += len(lengths)
    return count if job.is_training and job.side == "source" else 0
