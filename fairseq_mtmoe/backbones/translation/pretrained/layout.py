"""The symbols of a pretrained translator and its languages, and which row of Hugging Face's matrix each is."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairseq.data.multilingual.multilingual_utils import LangTokStyle, get_lang_tok

from fairseq_mtmoe.data.translation.vocabulary import VOCABULARY, Vocabulary
from fairseq_mtmoe.errors import UserError

SPECIAL = BOS, PAD, EOS, UNK = ("<s>", "<pad>", "</s>", "<unk>")  # fairseq's, in this order
MASK = "<mask>"
PLAIN, BRACKETS = LangTokStyle.multilingual.value, LangTokStyle.mbart.value
MADE_UP = "madeupword{:04}"  # what fairseq calls rows that nothing stands for
MADE_UP_NAME = re.compile(r"madeupword\d{4,}")
MOST_MADE_UP = 256  # matrices are padded to multiples of 8, 64 or 128
NEVER = -1e3  # the bias of what Hugging Face has no row of: e^NEVER is 0, and smoothed losses hardly grow by it
OF_MARIAN = re.compile(r">>(.+)<<", re.DOTALL)
NAME_OF_LANGUAGE = re.compile(r"[^-,\s/{}]+")


@dataclass(frozen=True)
class Layout:
    """A vocabulary, its languages and forms of sentences; and for each of its ids Hugging Face's, None for none.

    Rows of sources and targets are empty where all ids are equal.
    """

    vocabulary: Vocabulary
    langs: tuple[str, ...]
    lang_tok_style: str
    langtoks: tuple[str | None, str | None]
    encoder_langtok_last: bool = False
    source_rows: tuple[int | None, ...] = ()
    target_rows: tuple[int | None, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """Return the state of the task."""
        return {
            "langs": list(self.langs), "langtoks": {"main": self.langtoks}, "langtoks_specs": ["main"],
            "lang_tok_style": self.lang_tok_style, "lang_tok_replacing_bos_eos": False, "enable_lang_ids": False,
            "encoder_langtok_last": self.encoder_langtok_last, "task_ids": "target", "lang_pairs": [],
            VOCABULARY: self.vocabulary.to_state(),
        }  # fmt: skip


def token_of(lang: str, style: str) -> str:
    """Return fairseq's symbol of a language."""
    token: str = get_lang_tok(lang, style)
    return token


def token_name(path: object, name: Any) -> str:
    """Return the name of a token in a file (UserError: it is empty, or no text that a file can hold)."""
    if not isinstance(name, str) or not name or not _is_unicode(name):
        raise UserError(f"`{path}` must have tokens of Unicode text, none of which is empty, but has {name!a}.")
    return name


def language_name(path: object, lang: Any) -> str:
    """Return what a file calls a language (UserError: no pair such as `en-de`, nor a file, can be called so)."""
    if not isinstance(lang, str) or not NAME_OF_LANGUAGE.fullmatch(lang) or not lang.isprintable():
        raise UserError(
            f"`{path}` must call languages by text without spaces, hyphens, commas, slashes or braces, as pairs such "
            f"as en-de need, but has {lang!a}: call it otherwise in the folder."
        )
    return lang


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)  # half of a character, from JSON


def filled(names: Mapping[int, str], size: int, folder: object) -> list[str]:
    """Return the names of all rows by id (UserError: beyond the matrix, or too many have none)."""
    beyond = [f"{name!r} ({index})" for index, name in names.items() if index >= size]
    missing = size - len(names)
    if beyond or missing > MOST_MADE_UP:
        found = f"has {beyond[0]}" if beyond else f"has {len(names):,} tokens"
        raise UserError(
            f"`{folder}` must have a tokenizer that fits the matrix of embeddings with its {size:,} rows, but {found}."
        )
    gaps = (index for index in range(size) if index not in names)
    made_up = {index: MADE_UP.format(number) for number, index in enumerate(gaps)}
    return [names[index] if index in names else made_up[index] for index in range(size)]
