"""Symbols of a pretrained translator and their rows in Hugging Face's matrix."""

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq.data.multilingual.multilingual_utils import LangTokStyle, get_lang_tok

from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.core.files import read_json
from fairseq_mtmoe.translation.data.vocabulary import VOCABULARY, Vocabulary

BOS = "<s>"
PAD = "<pad>"
EOS = "</s>"
UNK = "<unk>"
SPECIAL = (BOS, PAD, EOS, UNK)  # fairseq's, in this order
MASK = "<mask>"
PLAIN = LangTokStyle.multilingual.value
BRACKETS = LangTokStyle.mbart.value
MADE_UP = "madeupword{:04}"  # fairseq's name of an unused row
MADE_UP_NAME = re.compile(r"madeupword\d{4,}")
MOST_MADE_UP = 256  # matrices are padded to multiples of 8, 64 or 128
NEVER = -1e3  # output bias of symbols without a row: e^NEVER is 0, and smoothed losses hardly grow
OF_MARIAN = re.compile(r">>(.+)<<", re.DOTALL)
NO_ROW = -1  # of a symbol that Hugging Face's matrix lacks
NAME_OF_LANGUAGE = re.compile(r"[^-,\s/{}]+")


@dataclass(frozen=True)
class Layout:
    """A vocabulary, its languages, and Hugging Face's row of each of its ids.

    `source_rows` and `target_rows` are empty if all ids are the same.
    """

    vocabulary: Vocabulary
    langs: tuple[str, ...]
    lang_tok_style: str
    langtoks: tuple[str | None, str | None]
    encoder_langtok_last: bool = False
    source_rows: tuple[int, ...] = ()
    target_rows: tuple[int, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings in the task's state."""
        return {
            "langs": list(self.langs),
            "langtoks": {"main": self.langtoks},
            "langtoks_specs": ["main"],
            "lang_tok_style": self.lang_tok_style,
            "lang_tok_replacing_bos_eos": False,
            "enable_lang_ids": False,
            "encoder_langtok_last": self.encoder_langtok_last,
            "task_ids": "target",
            "lang_pairs": [],
            VOCABULARY: self.vocabulary.to_state(),
        }


def token_of(lang: str, style: str) -> str:
    """Return fairseq's language token."""
    token: str = get_lang_tok(lang, style)
    return token


def language_name(path: object, lang: Any) -> str:
    """Return a language's name in a file.

    Raises `UserError`: it cannot stand in a pair such as `en-de` or a file name.
    """
    if not isinstance(lang, str) or not NAME_OF_LANGUAGE.fullmatch(lang) or not lang.isprintable():
        raise UserError(
            f"`{path}` must name languages without spaces, hyphens, commas, slashes and braces, "
            f"which language pairs such as en-de cannot contain, but names {lang!a}: rename it in "
            "the folder."
        )
    return lang


def filled(names: Mapping[int, str], size: int, folder: object) -> list[str]:
    """Return the names of all rows by id.

    Raises `UserError`: an id beyond the matrix, or too many rows without a name.
    """
    beyond = [f"{name!r} with the id {index}" for index, name in names.items() if index >= size]
    missing = size - len(names)
    if beyond or missing > MOST_MADE_UP:
        content = beyond[0] if beyond else f"{len(names):,} tokens"
        raise UserError(
            f"`{folder}` must have a tokenizer that fits the {size:,} rows of the embedding "
            f"matrix, but has {content}: use the tokenizer of the same model."
        )
    made_up = map(MADE_UP.format, itertools.count())
    return [names.get(index) or next(made_up) for index in range(size)]


def read_values(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file, or {} without the file.

    Raises `UserError`: it is no dictionary.
    """
    content = read_json(path) if path.exists() else {}
    if not isinstance(content, dict):
        raise_invalid(str(path), "a dictionary", content)
    return content
