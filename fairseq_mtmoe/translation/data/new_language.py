"""Adding a language to a vocabulary.

Its code and pieces of its text come after all existing symbols.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairseq.data.multilingual.multilingual_utils import get_lang_tok

from fairseq_mtmoe.core.errors import UserError, raise_invalid, unknown_language
from fairseq_mtmoe.translation.data import new_pieces
from fairseq_mtmoe.translation.data.file_names import TAG
from fairseq_mtmoe.translation.data.vocabulary import Side, Vocabulary

_SCRIPT = re.compile("_[A-Z][a-z]{3}(@|$)")  # of `swh_Latn`

# New symbols in order, each with the symbols whose mean is its initial embedding
Rows = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Extended:
    """A vocabulary with a new language, and the new symbols of each side."""

    vocabulary: Vocabulary
    source: Rows
    target: Rows

    @property
    def pieces(self) -> int:
        """Return the number of new pieces over both sides."""
        return len({*self.source, *self.target} - {TAG}) - 1  # without the language's code


def codes_of(lang: str, settings: Mapping[str, Any]) -> list[str]:
    """Return a language's tokens: one for each kind of data.

    settings: a checkpoint's `task_state`.
    """
    return [
        get_lang_tok(lang, settings["lang_tok_style"], spec) for spec in settings["langtoks_specs"]
    ]


def with_codes(vocabulary: Vocabulary, settings: Mapping[str, Any]) -> Vocabulary:
    """Return the vocabulary with language tokens, which fairseq appends to symbols."""

    codes = [codes_of(lang, settings) for lang in settings["langs"]]
    symbols = list(itertools.chain(*zip(*codes, strict=True)))
    if settings["lang_tok_style"] == "mbart":
        symbols.append("<mask>")
    sides = []
    for side in (vocabulary.source, vocabulary.target):
        # A symbol stays where it was first.
        sides.append(Side(tuple(dict.fromkeys((*side.symbols, *symbols))), side.model))
    return Vocabulary(*sides)


def expect_other_language(settings: Mapping[str, Any], lang: str, like: Sequence[str]) -> None:
    """Check that a language can be added.

    like: related languages of the model.

    Raises:
        UserError: the model knows the language, lacks a related one, or has no language tokens.
    """
    langs = settings["langs"]
    if not any(itertools.chain.from_iterable((settings["langtoks"] or {}).values())):
        alone = " and ".join(langs)
        raise UserError(
            "`MODEL` has no language tokens, so no language can be added to it: it only translates "
            f"{alone}."
        )
    if lang in langs or not re.fullmatch(r"\w+(@\w+)?", lang):
        rule = f"a code such as {langs[0]}, of a language that the model does not have"
        raise_invalid("--language", rule, lang)
    if all(map(_SCRIPT.search, langs)) and not _SCRIPT.search(lang):
        raise_invalid("--language", f"a code with a script, such as the model's {langs[0]}", lang)
    for relative in like:
        if relative not in langs:
            raise unknown_language("--like", relative, langs)


def extend(
    vocabulary: Vocabulary,
    settings: Mapping[str, Any],
    lang: str,
    like: Sequence[str],
    text: Sequence[str],
    most: int,
) -> Extended:
    """Return a vocabulary with one more language.

    Each side gets the language's tokens, at most `most` pieces of its text that the side lacks, and
    the tag of back-translated sources. The tag and unknown letters begin as the mean
    of all pieces, which changes other words' scores least ("Initializing New Word Embeddings for
    Pretrained Language Models", Hewitt 2021).

    vocabulary: has a symbol for each row of the embeddings.
    like: languages whose mean the new tokens begin as; empty: all.
    """
    langs = settings["langs"]
    codes = codes_of(lang, settings)
    relatives = [codes_of(relative, settings) for relative in like or langs]
    code_rows = dict(zip(codes, zip(*relatives, strict=True), strict=True))
    sides = list(dict.fromkeys((vocabulary.source, vocabulary.target)))
    grown = [
        new_pieces.grow(side.model, side.processor, side.symbols, text, most) for side in sides
    ]
    parts = [each.parts for each in grown]
    if sides[0].symbols == sides[-1].symbols:  # one matrix, with the pieces of both models
        parts = [parts[-1] | parts[0]] * len(sides)
    new = []
    rows = []
    for side, each, side_parts in zip(sides, grown, parts, strict=True):
        rows.append(_new(side_parts, code_rows, side))
        new.append(Side((*side.symbols, *rows[-1]), each.model))
    return Extended(Vocabulary(new[0], new[-1]), rows[0], rows[-1])


def _new(parts: Rows, codes: Rows, side: Side) -> Rows:
    listed = set(side.symbols)
    pieces = map(side.processor.id_to_piece, range(side.processor.get_piece_size()))
    everything = tuple(piece for piece in pieces if piece in listed)
    rows = {}
    for symbol, symbols_of_mean in {**parts, TAG: (), **codes}.items():
        if symbol not in listed:
            rows[symbol] = symbols_of_mean or everything
    return rows
