"""The test sets of a data directory: pairs, tiers, source text and references.

References are the test set's text if the data directory has it: `raw/test.en-de.de` beside
`test.en-de.de.bin`, and further ones in `raw/test.en-de.de.1`, `.2` and so on. A binarized file has
lost the words outside the dictionary; fairseq-generate compares with `<<unk>>` instead.
"""

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from fairseq import utils
from fairseq.data import Dictionary, data_utils

from fairseq_mtmoe.core.errors import UserError, raise_invalid, shortened
from fairseq_mtmoe.core.files import text_lines
from fairseq_mtmoe.core.tiers import FILE_NAME, load_tiers
from fairseq_mtmoe.training.indexed_files import count_sentences
from fairseq_mtmoe.translation.data.file_names import (
    TEXT_FOLDER,
    find_side,
    indexed_sides,
    side_name,
)
from fairseq_mtmoe.translation.data.pairs import sentences_of
from fairseq_mtmoe.translation.data.recorded_sizes import with_shards

# Kinds of references: text, or as fairseq-generate's
TEXT = "text"
FAIRSEQ = "fairseq"

_ANYTHING = "\ue000"  # a private character for an unknown word


def folders(data: str) -> list[Path]:
    """Return the folders of a data argument: one, or shards by colons or subfolders."""
    paths = list(map(Path, utils.split_paths(with_shards(data))))
    for path in paths:
        if not path.is_dir():
            raise UserError(
                f"There is no data directory {path}: make one with mtmoe prepare or "
                "fairseq-preprocess."
            )
    return paths


def sizes_of(data: str, subset: str) -> dict[str, int]:
    """Return the sentences of every pair in the first shard.

    A pair has a file `<subset>.<source>-<target>.<target>.idx`.
    """
    folder = folders(data)[0]
    sizes = _sizes(folder, subset)
    if not sizes:
        subsets = ", ".join(sorted({side.split for side in indexed_sides(folder)})) or "none"
        raise_invalid("--subset", f"one that the data directory {folder} has ({subsets})", subset)
    return sizes


def tiers_of(data: str, pairs: Sequence[str]) -> dict[str, str]:
    """Return pairs' tiers by tiers.json, or by training sentences over all shards."""
    training = Counter[str]()
    for folder in folders(data):
        number = 0
        while sizes := _sizes(folder, f"train{number or ''}"):  # as training reads
            training.update(sizes)
            number += 1
    trained: dict[str, int] = {}
    for pair in pairs:
        sentences = size_of(pair, training)
        if sentences is not None:
            trained[pair] = sentences
    first = folders(data)[0]
    if not trained and os.path.lexists(first / FILE_NAME):
        trained = dict.fromkeys(pairs, 0)
    return load_tiers(first, trained)


def choose_pairs(
    sizes: Mapping[str, int], trained: Sequence[str], wanted: Sequence[str]
) -> list[str]:
    """Return the wanted pairs, else the directory's pairs that were trained, else all."""
    for pair in wanted:
        if size_of(pair, sizes) is None:
            rule = f"pairs that the data directory has ({shortened(sorted(sizes), pair)})"
            raise_invalid("--lang-pairs", rule, pair)
    present = [pair for pair in trained if size_of(pair, sizes) is not None]
    return list(dict.fromkeys(wanted or present or sizes))


def size_of(pair: str, sizes: Mapping[str, int]) -> int | None:
    """Return a pair's sentences, from files of either direction; None without any."""
    source, _, target = pair.partition("-")
    return sizes.get(pair, sizes.get(f"{target}-{source}"))


def _sizes(folder: Path, subset: str) -> dict[str, int]:
    sizes = {}
    for side in indexed_sides(folder):
        if (side.split, side.lang) == (subset, side.target):
            path = folder / side_name(subset, side.pair, side.lang)
            sizes[side.pair] = sentences_of(str(path))
    return sizes


class Speller:
    """Converts tokens to text as fairseq-generate does; `ignored` tokens are dropped."""

    def __init__(
        self, dictionary: Dictionary, post_process: str | None, ignored: Iterable[int] = ()
    ) -> None:
        self.dictionary = dictionary
        self._post_process = post_process
        self._ignored = set(ignored)

    def __call__(self, tokens: Sequence[int], unknown: str) -> str:
        """Return the text of tokens, with `unknown` for the unknown one."""
        text: str = self.dictionary.string(
            tokens, self._post_process, extra_symbols_to_ignore=self._ignored, unk_string=unknown
        )
        return text


@dataclass(frozen=True)
class References:
    """References of a test set."""

    lines: list[str]
    file: str  # their file in the data directory
    altered: int  # lines that lost words outside the dictionary
    more: tuple[list[str], ...] = ()  # further references of every line, or ""


def load_references(data: str, subset: str, pair: str, spell: Speller, way: str) -> References:
    """Return a pair's references: `raw/` if it exists; binarized words for `FAIRSEQ`."""
    side = _TestSetSide(data, subset, pair, pair.partition("-")[2], spell)
    if way == TEXT and side.raw.exists():
        lines = side.text()
        more = _further(side.raw, len(lines))
        return References(lines, f"{TEXT_FOLDER}/{side.raw.name}", altered=0, more=more)
    dictionary = spell.dictionary
    altered = sum(dictionary.unk() in tokens for tokens in side.sentences)
    lines = side.spelled(dictionary.unk_string(escape=True))
    return References(lines, f"{side.prefix.name}.bin", altered)


def load_sources(data: str, subset: str, pair: str, spell: Speller) -> list[str]:
    """Return a pair's source text: in `raw/`, else the binarized words."""
    side = _TestSetSide(data, subset, pair, pair.partition("-")[0], spell)
    if side.raw.exists():
        return side.text()
    return side.spelled(spell.dictionary.unk_string())


class _TestSetSide:
    """One language of a pair's test set: sentences, and text if it exists.

    Its files serve both directions of the pair.
    """

    def __init__(self, data: str, subset: str, pair: str, lang: str, spell: Speller) -> None:
        source, _, target = pair.partition("-")
        folder = folders(data)[0]
        self.prefix = Path(
            find_side(folder, subset, source, target, lang)
            or folder / side_name(subset, pair, lang)
        )
        self.raw = folder / TEXT_FOLDER / self.prefix.name
        self._spell = spell
        count_sentences(str(self.prefix))  # refuses a file that is missing or damaged
        dataset = data_utils.load_indexed_dataset(str(self.prefix), spell.dictionary)
        if dataset.supports_prefetch:  # older formats read nothing without it
            dataset.prefetch(range(len(dataset)))
        self.sentences: list[torch.Tensor] = [dataset[number] for number in range(len(dataset))]

    def spelled(self, unknown: str) -> list[str]:
        """Return the sentences as text, with this for unknown words."""
        return [self._spell(tokens.tolist(), unknown) for tokens in self.sentences]

    def text(self) -> list[str]:
        """Return the lines in `raw/` (UserError: they do not match the binarized lines)."""
        rule = (
            f"`{self.raw}` must be the text of `{self.raw.name}.bin` ({len(self.sentences)} lines)"
        )
        advice = "put the right text there, or give `--references fairseq`"
        lines = _lines(self.raw)
        if len(lines) != len(self.sentences):
            raise UserError(f"{rule}, but has {len(lines)}; {advice}.")
        pairs = zip(lines, self.spelled(_ANYTHING), strict=True)
        for number, (line, pattern) in enumerate(pairs, start=1):
            if not _fits(_letters(line), _letters(pattern).split(_ANYTHING)):
                raise UserError(f"{rule}, but line {number} is another there; {advice}.")
        return lines


def _lines(path: Path) -> list[str]:
    """Return a file's lines without further line breaks inside."""
    return [" ".join(line.splitlines()) for line in text_lines(path)]


def _further(raw: Path, count: int) -> tuple[list[str], ...]:
    """Return further references: files with numbers from 1 on."""
    references: list[list[str]] = []
    while (path := raw.with_name(f"{raw.name}.{len(references) + 1}")).exists():
        references.append(_lines(path))
        if len(references[-1]) != count:
            raise UserError(
                f"`{path}` must have a line for each of the {count} of `{raw.name}`, empty if "
                f"there is no further reference, but has {len(references[-1])}."
            )
    return tuple(references)


def _letters(text: str) -> str:
    """Return a line's letters and digits, which tokenizing and normalisation keep."""
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return re.sub(f"[^\\w{_ANYTHING}]|_", "", folded)


def _fits(text: str, parts: Sequence[str]) -> bool:
    """Return whether `text` is these parts in order, with anything between them."""
    first, *others = map(re.escape, parts)
    if not others:
        return text == parts[0]
    middle = "".join(f"(?>.*?{part})" for part in others[:-1])  # without backtracking
    return re.fullmatch(f"{first}{middle}.*{others[-1]}", text) is not None
