"""The names of fairseq's data files: `train.en-de.de` is one side of a split of a pair, and of its reversed pair."""

import filecmp
import os
import re
from dataclasses import dataclass
from pathlib import Path

INDEX = ".idx"
SENTENCEPIECE = "spm.model"  # in a data directory of ours: of targets, and of sources where these have none
OF_SOURCES = "spm.source.model"  # there, too, where sources have a model of their own
TOKEN_STYLE = "lang_tok_style.txt"  # in a data directory of ours: fairseq's --lang-tok-style, if it is to be another
TEXT_FOLDER = "raw"  # in a data directory of ours: the text of its validation and test data, under the same names

_SIDE = re.compile(r"(.+)\.([^.-]+)-([^.-]+)\.([^.-]+)")


@dataclass(frozen=True)
class Side:
    """What a file's name says: the side `lang` of a pair's `split`, which is `source` or `target` in text."""

    split: str
    source: str
    target: str
    lang: str

    @property
    def pair(self) -> str:
        return f"{self.source}-{self.target}"


def side_name(split: str, pair: str, lang: str) -> str:
    """The name of a text file, or of a binarized one without its suffix: `train.en-de.de`."""
    return f"{split}.{pair}.{lang}"


def dictionary_name(lang: str) -> str:
    return f"dict.{lang}.txt"


def joined_dictionary(folder: str | Path) -> str | None:
    """Return one of the dictionaries in a folder where all are the same; else None."""
    paths = sorted(map(str, Path(folder).glob(dictionary_name("*"))))
    return paths[0] if paths and all(filecmp.cmp(paths[0], path, shallow=False) for path in paths) else None


def read_side_name(name: str) -> Side | None:
    match = _SIDE.fullmatch(name)
    return Side(*match.groups()) if match else None


def indexed_sides(folder: str | Path) -> list[Side]:
    """The sides that have an index file in a folder, in the order of their names."""
    names = sorted(name.removesuffix(INDEX) for name in os.listdir(folder) if name.endswith(INDEX))
    return [side for side in map(read_side_name, names) if side]


def model_of_sources(folder: str | Path) -> Path:
    """Where the SentencePiece model is that cuts sources in a data directory of ours."""
    own = Path(folder) / OF_SOURCES
    return own if own.is_file() else Path(folder) / SENTENCEPIECE


def find_side(folder: str | Path, split: str, source: str, target: str, lang: str) -> str | None:
    """The path of a pair's file, or of the reversed pair's, without suffix; None if there is neither."""
    for pair in (f"{source}-{target}", f"{target}-{source}"):
        prefix = os.path.join(folder, side_name(split, pair, lang))
        if any(os.path.isfile(prefix + suffix) for suffix in (INDEX, "")):
            return prefix
    return None
