"""Plain text that is split already: a folder of `{train,valid,test}.<src>-<tgt>.<lang>`, one sentence per line."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from fairseq_mtmoe.data.corpora.blocks import CorpusFiles
from fairseq_mtmoe.data.corpora.engine.reading import RawCorpus
from fairseq_mtmoe.data.corpora.recipes import Role
from fairseq_mtmoe.data.translation.file_names import read_side_name, side_name
from fairseq_mtmoe.data.translation.tiers import read_tiers
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import regular_file

SPLITS = tuple(role.name for role in Role)

_CHUNK = 1 << 20


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


def corpora_of(
    files: Mapping[str, Mapping[str, tuple[Path, Path]]], hashes: Mapping[Path, str], allow_unequal: bool = False
) -> list[RawCorpus]:
    """The files of `find_text_files` as corpora that are taken as they are.

    Args:
        hashes: of each file's content.
        allow_unequal: whether one of two files for training may have more lines, which are left out.
    """
    corpora = []
    for pair, of_pair in files.items():
        source, target = pair.split("-")
        for split, paths in of_pair.items():
            role = Role[split]
            is_evaluation = role is not Role.train
            corpus = CorpusFiles(f"{split}.{pair}", paths, source, target, "text", {}, is_evaluation, allow_unequal)
            corpora.append(RawCorpus(corpus, pair, role, tuple(hashes[path] for path in paths)))
    return corpora


def lone_carriage_returns(paths: Iterable[Path]) -> list[str]:
    """The names of the files that have a carriage return that is not before a line feed."""
    return [path.name for path in paths if _has_lone_carriage_return(path)]


def _has_lone_carriage_return(path: Path) -> bool:
    with open(regular_file(path, "a text file"), "rb") as file:
        rest = b""
        while data := file.read(_CHUNK):
            data = rest + data
            rest = b"\r" if data.endswith(b"\r") else b""  # a line feed may follow
            if re.search(rb"\r[^\n]", data):
                return True
    return bool(rest)


def read_ranked_tiers(path: Path) -> dict[str, list[str]]:
    """The language pairs, or target languages, of every tier that a file such as `tiers.json` names.

    A key may have a rank in front, and a fourth tier counts to the third, as in `T1-high`, …, `T4-tiny`: results are
    reported for high, mid and low. Raises `UserError` if the file says something else.
    """
    return read_tiers(path, lambda key: key.split("-")[-1].lower().replace("tiny", "low"))
