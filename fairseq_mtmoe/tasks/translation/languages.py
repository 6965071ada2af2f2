"""The languages of a translation task: what a checkpoint keeps of them, and their tokens in the dictionaries.

A translation model is useless with other languages or language tokens than those that it was trained with, and the
order of its languages is that of rows in its embedding. These settings travel in the checkpoint's task state; where a
checkpoint has them, they replace the options of `fairseq-generate` and `fairseq-interactive` (`take_over`). A language
whose place in `langs` changes takes over the token and the gate of the one that was there.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.data.multilingual.multilingual_utils import augment_dictionary, get_lang_tok
from torch import Tensor

from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.tasks.translation.options import all_pairs

SETTINGS = (
    *("langs", "langtoks", "langtoks_specs", "lang_tok_style"),
    *("lang_tok_replacing_bos_eos", "enable_lang_ids", "task_ids"),
)

logger = logging.getLogger(__name__)


def saved_settings(args: Namespace) -> dict[str, Any]:
    """The settings to store, as plain containers; and the pairs, which the options may have read from a file."""
    return {**{name: getattr(args, name) for name in SETTINGS}, "lang_pairs": all_pairs(args)}


def pairs_of(state: Mapping[str, Any]) -> list[str]:
    """The pairs that a checkpoint was trained on; none where it does not say."""
    pairs = (state.get("task_state") or {}).get("lang_pairs")
    return [pair for pair in pairs if isinstance(pair, str)] if isinstance(pairs, list) else []


def take_over(args: Namespace, state: Mapping[str, Any]) -> bool:
    """Put a checkpoint's settings in the place of the options; True if that changed any."""
    changed = _differing(args, state)
    for name, value in changed.items():
        logger.info(f"from the checkpoint: {name} = {value} instead of {getattr(args, name)}")
        setattr(args, name, value)
    for name in ("source_lang", "target_lang") if changed else ():
        lang, known = getattr(args, name), args.langs
        if lang not in known:
            raise_invalid(f"--{name.replace('_', '-')}", f"one of the model's languages {', '.join(known)}", lang)
    return bool(changed)


def warn_of_changes(args: Namespace, state: Mapping[str, Any]) -> None:
    """Say which settings a run has changed since the checkpoint that it goes on from."""
    for name, value in _differing(args, state).items():
        logger.warning(f"{name} was {value} when the checkpoint was trained, and is {getattr(args, name)} from now on")


def _differing(args: Namespace, state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: state[name] for name in SETTINGS if name in state and state[name] != getattr(args, name)}


def check_joined(dicts: Mapping[str, Dictionary], langs: Sequence[str]) -> None:
    """Raise a `UserError` unless all of these languages have the same dictionary."""
    for lang in langs:
        if dicts[lang] != dicts[langs[0]]:
            raise UserError(
                f"`dict.{lang}.txt` and `dict.{langs[0]}.txt` must be the same dictionary, but differ; "
                "preprocess all languages with one joined dictionary."
            )


def check_language_tokens(args: Namespace, dictionary: Dictionary) -> None:
    """Raise a `UserError` if `--langtoks-specs` gives the dictionary no tokens that `--langtoks` asks for."""
    for spec in {spec for specs in args.langtoks.values() for spec in specs if spec is not None}:
        token = get_lang_tok(args.langs[0], args.lang_tok_style, spec)
        if token not in dictionary:
            rule = f"kinds of data that give {token}, which `{spec}` in --langtoks needs"
            raise_invalid("--langtoks-specs", rule, ",".join(args.langtoks_specs))


def relabel(dicts: Mapping[str, Dictionary], sizes: Mapping[int, int], args: Namespace) -> None:
    """Replace the dictionaries' language tokens, which follow their own symbols, by those of `args`.

    Dictionaries are by language, several of which may have the same; `sizes` has their own symbols' number by `id`.
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
    """Where tokens stand for text, not for a sentence's end, padding or a language (from the `size`th symbol on)."""
    special = torch.tensor([dictionary.bos(), dictionary.pad(), dictionary.eos()], device=tokens.device)
    return ~torch.isin(tokens, special) & (tokens < size)
