"""Plain text that is split already: a folder of `{train,valid,test}.<src>-<tgt>.<lang>`, one sentence per line."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fairseq_mtmoe.data.corpora.bitext import SPLITS, Bitext, Track, untracked
from fairseq_mtmoe.data.corpora.clean import Changes, changes_of, normalise
from fairseq_mtmoe.data.translation.file_names import read_side_name, side_name
from fairseq_mtmoe.data.translation.tiers import read_tiers
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import read_bytes, regular_file, text_lines


def find_text_files(raw: Path) -> dict[str, dict[str, tuple[Path, Path]]]:
    """The (source, target) files of every split of every language pair: `{"en-de": {"train": (…, …), …}, …}`.

    Raises `UserError` if there is no such file, or if a language pair lacks some.
    """
    if not raw.is_dir():
        raise UserError(f"`{raw}` must be a folder of text files such as `train.en-de.de`, but there is none.")
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(raw.iterdir()):
        side = read_side_name(path.name)
        if side and side.split in SPLITS and side.lang in (side.source, side.target):
            found[side.pair].add(path.name)
    if not found:
        raise UserError(f"`{raw}` must hold text files such as `train.en-de.en` and `train.en-de.de`, but has none.")
    return {pair: {split: _both_sides(raw, split, pair, names) for split in SPLITS} for pair, names in found.items()}


def _both_sides(raw: Path, split: str, pair: str, present: set[str]) -> tuple[Path, Path]:
    source, target = (side_name(split, pair, lang) for lang in pair.split("-"))
    for name in (source, target):
        if name not in present:
            raise UserError(f"`{raw / name}` is missing: {pair} needs both sides of train, valid and test.")
    return regular_file(raw / source, "a text file"), regular_file(raw / target, "a text file")


class Corpus(NamedTuple):
    """The language pairs of a folder, normalised, and what was changed on the way."""

    bitexts: list[Bitext]
    dropped: dict[str, dict[str, int]]  # by pair, how many training pairs, by reason
    changes: dict[str, Changes]  # by file name


def read_bitexts(raw: Path, track: Track = untracked) -> Corpus:
    """All language pairs of a folder.

    Only training pairs with an empty side are dropped: fairseq trains on them as on any other. Validation and test
    files keep every line. Raises `UserError` on files that do not fit together.
    """
    corpus = Corpus([], {}, {})
    for pair, files in track(list(find_text_files(raw).items()), "Reading text"):
        splits = {split: _read_sides(*files[split], corpus.changes) for split in SPLITS}
        kept = [(source, target) for source, target in splits["train"] if source and target]
        if not kept:
            raise UserError(f"`{files['train'][0]}` and its translation must have a sentence, but have none.")
        corpus.dropped[pair] = {"empty": len(splits["train"]) - len(kept)}
        source_lang, target_lang = pair.split("-")
        corpus.bitexts.append(Bitext(source_lang, target_lang, {**splits, "train": kept}))
    return corpus


def _read_sides(source: Path, target: Path, changes: dict[str, Changes]) -> list[tuple[str, str]]:
    sides = [text_lines(path) for path in (source, target)]
    if len(sides[0]) != len(sides[1]):
        raise UserError(
            f"`{target}` must have as many lines as `{source.name}` ({len(sides[0])}), but has {len(sides[1])}."
        )
    for path, lines in zip((source, target), sides, strict=True):
        changes[path.name] = changes_of(lines)
    return list(zip(*(map(normalise, lines) for lines in sides), strict=True))


def lone_carriage_returns(paths: Iterable[Path]) -> list[str]:
    """The names of the files that have a carriage return that is not before a line feed."""
    return [path.name for path in paths if re.search(rb"\r(?!\n)", read_bytes(path, "a text file"))]


def read_ranked_tiers(path: Path) -> dict[str, list[str]]:
    """The language pairs, or target languages, of every tier that a file such as `tiers.json` names.

    A key may have a rank in front, and a fourth tier counts to the third, as in `T1-high`, …, `T4-tiny`: results are
    reported for high, mid and low. Raises `UserError` if the file says something else.
    """
    return read_tiers(path, lambda key: key.split("-")[-1].lower().replace("tiny", "low"))
