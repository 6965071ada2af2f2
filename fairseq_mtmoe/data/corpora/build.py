"""From split sentence pairs to a data directory: SentencePiece, dictionaries, binarized files, references, tiers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import sentencepiece

from fairseq_mtmoe.data.corpora.binarize import symbols_of, write_dataset, write_dictionary
from fairseq_mtmoe.data.corpora.bitext import Bitext, Track, untracked
from fairseq_mtmoe.data.corpora.spm import sample_text, train_model_apart
from fairseq_mtmoe.data.translation.file_names import TEXT_FOLDER, dictionary_name, side_name
from fairseq_mtmoe.data.translation.tiers import FILE_NAME as TIERS_FILE
from fairseq_mtmoe.data.translation.tiers import TIERS, tier_of_size
from fairseq_mtmoe.errors import UserError, must_be


@dataclass(frozen=True)
class BuildOptions:
    """How to build a data directory; every field changes the bytes that are written."""

    vocab_size: int = 8000
    character_coverage: float = 0.9995
    temperature: float = 5.0
    seed: int = 1
    shards: int = 1

    def __post_init__(self) -> None:
        if self.vocab_size < 8:
            must_be("--vocab-size", "at least 8", self.vocab_size)
        if not 0.9 <= self.character_coverage <= 1:
            must_be("--character-coverage", "from 0.9 to 1", self.character_coverage)
        if not self.temperature > 0:
            must_be("--temperature", "over 0", self.temperature)
        if self.shards < 1:
            must_be("--shards", "at least 1", self.shards)


@dataclass
class Coverage:
    """Tokens of one side of a split, and how many of them the vocabulary does not have."""

    tokens: int = 0
    unknown: int = 0


Counts = dict[str, dict[str, dict[str, Coverage]]]
"""Token counts by language pair, split and language."""


def build(
    out: Path,
    bitexts: Sequence[Bitext],
    tiers: Mapping[str, Sequence[str]],
    options: BuildOptions,
    track: Track = untracked,
) -> Counts:
    """Fill the empty directory `out` with a data directory, or with `shard0` … if `options.shards` is over 1.

    `tiers` has the language pairs of each tier. Raises `UserError` if the text is too small for the options.
    """
    _check_sizes(bitexts, options.shards)
    folders = [out] if options.shards == 1 else [out / f"shard{index}" for index in range(options.shards)]
    sample = sample_text(bitexts, options.temperature, options.seed)
    [model_bytes] = [
        train_model_apart(lines, options.vocab_size, options.character_coverage)
        for lines in track([sample], "Training SentencePiece")
    ]
    writer = _Writer(folders, model_bytes)
    writer.write_shared_files(bitexts, tiers)
    for bitext in track(bitexts, "Binarizing"):
        writer.write_bitext(bitext)
    return writer.counts


def complete_tiers(bitexts: Sequence[Bitext], named: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The pairs of every tier, largest first: as `named` by pair or target language, the others by their size."""
    tier_of = {name: tier for tier, names in named.items() for name in names}
    sizes = {bitext.name: len(bitext.splits["train"]) for bitext in bitexts}
    tiers: dict[str, list[str]] = {tier: [] for tier in TIERS}
    for bitext in sorted(bitexts, key=lambda bitext: (-sizes[bitext.name], bitext.name)):
        by_size = tier_of_size(sizes[bitext.name], max(sizes.values()))
        tiers[tier_of.get(bitext.name) or tier_of.get(bitext.target_lang) or by_size].append(bitext.name)
    return tiers


def _check_sizes(bitexts: Sequence[Bitext], shards: int) -> None:
    for bitext in bitexts:
        for split, pairs in bitext.splits.items():
            needed = shards if split == "train" else 1
            if len(pairs) < needed:
                raise UserError(f"{bitext.name} must have at least {needed} {split} pairs, but has {len(pairs)}.")


class _Writer:
    """Writes data directories that share one model; training pairs are dealt out to them in turn."""

    def __init__(self, folders: Sequence[Path], model_bytes: bytes) -> None:
        self.folders = folders
        self.model_bytes = model_bytes
        self.model = sentencepiece.SentencePieceProcessor(model_proto=model_bytes)
        self.symbols = symbols_of(self.model)
        self.counts: Counts = {}

    def write_shared_files(self, bitexts: Sequence[Bitext], tiers: Mapping[str, Sequence[str]]) -> None:
        """In every folder: the model, one dictionary per language (all the same), the tiers, and for fairseq's
        `--lang-dict` and `--lang-pairs` the languages and the pairs."""
        langs = sorted({lang for bitext in bitexts for lang in bitext.name.split("-")})
        pairs = sorted(bitext.name for bitext in bitexts)
        for folder in self.folders:
            folder.mkdir(exist_ok=True)
            (folder / "spm.model").write_bytes(self.model_bytes)
            (folder / TIERS_FILE).write_text(json.dumps(tiers, indent=1) + "\n", encoding="utf-8")
            (folder / "langs.txt").write_text("".join(f"{lang}\n" for lang in langs), encoding="utf-8")
            (folder / "lang_pairs.txt").write_text(",".join(pairs) + "\n", encoding="utf-8")
            for lang in langs:
                write_dictionary(folder / dictionary_name(lang), self.symbols)

    def write_bitext(self, bitext: Bitext) -> None:
        """All splits: training data in every folder, validation and test data where fairseq looks, in the first."""
        self.counts[bitext.name] = {}
        for split in bitext.splits:
            folders = self.folders if split == "train" else self.folders[:1]
            self.counts[bitext.name][split] = {
                lang: self._write_side(folders, bitext, split, lang)
                for lang in (bitext.source_lang, bitext.target_lang)
            }
            if split != "train":
                self._write_raw(bitext, split)

    def _write_side(self, folders: Sequence[Path], bitext: Bitext, split: str, lang: str) -> Coverage:
        sentences: list[list[int]] = self.model.encode(bitext.lines(split, lang))
        for index, folder in enumerate(folders):
            prefix = folder / side_name(split, bitext.name, lang)
            write_dataset(prefix, sentences[index :: len(folders)], self.model.get_piece_size())
        unknown = sum(ids.count(self.model.unk_id()) for ids in sentences)
        return Coverage(sum(map(len, sentences)), unknown)

    def _write_raw(self, bitext: Bitext, split: str) -> None:
        """The text itself: references to score detokenized output against."""
        folder = self.folders[0] / TEXT_FOLDER
        folder.mkdir(exist_ok=True)
        for lang in (bitext.source_lang, bitext.target_lang):
            text = "".join(f"{line}\n" for line in bitext.lines(split, lang))
            (folder / side_name(split, bitext.name, lang)).write_text(text, encoding="utf-8")
