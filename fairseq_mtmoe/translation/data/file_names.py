"""Names of fairseq's data files.

`train.en-de.de` is one side of a split of a pair, and of its reversed pair.
"""

import filecmp
import os
import re
from dataclasses import dataclass
from pathlib import Path

INDEX = ".idx"
# Files in data directories of `mtmoe prepare`
SENTENCEPIECE = "spm.model"  # model of targets, and of sources without a model of their own
OF_SOURCES = "spm.source.model"  # model of sources, if it differs from that of targets
TOKEN_STYLE = "lang_tok_style.txt"  # fairseq's --lang-tok-style, if it is not the default
TEXT_FOLDER = "raw"  # text of validation and test data, under the same names
TAG = "<BT>"  # begins back-translated sources (Caswell et al. 2019, "Tagged Back-Translation")

_SIDE = re.compile(r"(.+)\.([^.-]+)-([^.-]+)\.([^.-]+)")


@dataclass(frozen=True)
class Side:
    """The parts of a file's name; `lang`, the file's side, is `source` or `target`."""

    split: str
    source: str
    target: str
    lang: str

    @property
    def pair(self) -> str:
        """The language pair, as `en-de`."""
        return f"{self.source}-{self.target}"


def side_name(split: str, pair: str, lang: str) -> str:
    """Return the name of a text file: `train.en-de.de`.

    A binarized file has the same name and a suffix.
    """
    return f"{split}.{pair}.{lang}"


def dictionary_name(lang: str) -> str:
    """Return the name of a language's dictionary file."""
    return f"dict.{lang}.txt"


def joined_dictionary(folder: str | Path) -> str | None:
    """Return the path of one of a folder's dictionaries if all are equal, else None."""
    paths = sorted(map(str, Path(folder).glob(dictionary_name("*"))))
    if paths and all(filecmp.cmp(paths[0], path, shallow=False) for path in paths):
        return paths[0]
    return None


def read_side_name(name: str) -> Side | None:
    """Return the parts of a file's name without suffix; None for other names."""
    match = _SIDE.fullmatch(name)
    return match and Side(*match.groups())


def indexed_sides(folder: str | Path) -> list[Side]:
    """Return the sides with an index file in a folder, sorted by name."""
    paths = sorted(Path(folder).glob(f"*{INDEX}"))
    return list(filter(None, (read_side_name(path.stem) for path in paths)))


def model_of_sources(folder: str | Path) -> Path:
    """Return the path of a data directory's SentencePiece model for sources."""
    path = Path(folder) / OF_SOURCES
    if path.is_file():
        return path
    return path.with_name(SENTENCEPIECE)


def find_side(folder: str | Path, split: str, source: str, target: str, lang: str) -> str | None:
    """Return the path of a pair's file, or of the reversed pair's, without suffix.

    It is None if neither exists.
    """
    for pair in (f"{source}-{target}", f"{target}-{source}"):
        prefix = os.path.join(folder, side_name(split, pair, lang))
        if any(os.path.isfile(prefix + suffix) for suffix in (INDEX, "")):
            return prefix
    return None
