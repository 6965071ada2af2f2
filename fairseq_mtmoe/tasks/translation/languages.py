"""The dictionaries of a translation task and the language tokens in them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence

import torch
from fairseq.data import Dictionary
from fairseq.data.multilingual.multilingual_utils import augment_dictionary, get_lang_tok
from torch import Tensor

from fairseq_mtmoe.errors import UserError, raise_invalid


def check_joined(dicts: Mapping[str, Dictionary], langs: Sequence[str]) -> None:
    """Raise a `UserError` unless all of these languages have the same dictionary."""
    for lang in langs:
        if dicts[lang] != dicts[langs[0]]:
            raise UserError(
                f"dict.{lang}.txt and dict.{langs[0]}.txt must be the same dictionary, but differ; "
                "preprocess all languages with one joined dictionary."
            )


def check_language_tokens(args: Namespace, dictionary: Dictionary) -> None:
    """See that the dictionary has the tokens of all languages that `--langtoks` asks for.

    Raises:
        UserError: `--langtoks-specs` gives it no such tokens.
    """
    for spec in {spec for specs in args.langtoks.values() for spec in specs if spec is not None}:
        token = get_lang_tok(args.langs[0], args.lang_tok_style, spec)
        if token not in dictionary:
            specs = ",".join(args.langtoks_specs)
            raise_invalid(
                "--langtoks-specs", f"kinds of data that give {token}, which `{spec}` in --langtoks needs", specs
            )


def relabel(dicts: Mapping[str, Dictionary], sizes: Mapping[int, int], args: Namespace) -> None:
    """Replace the dictionaries' language tokens, which follow their own symbols, by those of `args`.

    Args:
        dicts: by language; several may have the same one.
        sizes: how many symbols of its own each has, by its `id`.
        args: with languages and style.
    """
    for dictionary in {id(dictionary): dictionary for dictionary in dicts.values()}.values():
        size = sizes[id(dictionary)]
        for symbol in dictionary.symbols[size:]:
            del dictionary.indices[symbol]
        del dictionary.symbols[size:], dictionary.count[size:]
        augment_dictionary(
            dictionary=dictionary,
            language_list=args.langs,
            lang_tok_style=args.lang_tok_style,
            langtoks_specs=args.langtoks_specs,
            extra_data=args.extra_data,
        )


def is_word(tokens: Tensor, dictionary: Dictionary, size: int) -> Tensor:
    """Return where tokens stand for text, and not for a sentence's ends, padding or a language.

    Args:
        tokens: of any shape.
        dictionary: theirs.
        size: number of the dictionary's own symbols, which language tokens follow.
    """
    special = torch.tensor([dictionary.bos(), dictionary.pad(), dictionary.eos()], device=tokens.device)
    return ~torch.isin(tokens, special) & (tokens < size)
