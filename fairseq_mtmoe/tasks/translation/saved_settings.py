"""What a checkpoint remembers of its task, so that generation needs no option repeated.

A translation model is useless with other languages or language tokens than those that it was trained with, and the
order of its languages is that of rows in its embedding. These settings travel in the checkpoint's task state; where a
checkpoint has them, they take the place of the options of `fairseq-generate` and `fairseq-interactive`.
"""

import logging
from argparse import Namespace
from typing import Any, Dict, Mapping

from fairseq.data import Dictionary
from fairseq.data.multilingual.multilingual_utils import augment_dictionary

from fairseq_mtmoe.tasks.translation.options import all_pairs

logger = logging.getLogger(__name__)

SETTINGS = (
    "langs",
    "langtoks",
    "langtoks_specs",
    "lang_tok_style",
    "lang_tok_replacing_bos_eos",
    "enable_lang_ids",
    "task_ids",
)


def remembered(args: Namespace) -> Dict[str, Any]:
    """The settings to store, as plain containers; and the pairs, which the options may have read from a file."""
    return {**{name: getattr(args, name) for name in SETTINGS}, "lang_pairs": all_pairs(args)}


def recall(args: Namespace, state: Mapping[str, Any]) -> bool:
    """Put a checkpoint's settings in the place of the options; True if that changed any."""
    changed = _differing(args, state)
    for name, value in changed.items():
        logger.info(f"from the checkpoint: {name} = {value} instead of {getattr(args, name)}")
        setattr(args, name, value)
    return bool(changed)


def warn_of_changes(args: Namespace, state: Mapping[str, Any]) -> None:
    """Say which settings a run has changed since the checkpoint that it goes on from.

    A language whose place in `langs` has changed takes over the token and the gate of the one that was there.
    """
    for name, value in _differing(args, state).items():
        logger.warning(f"{name} was {value} when the checkpoint was trained, and is {getattr(args, name)} from now on")


def _differing(args: Namespace, state: Mapping[str, Any]) -> Dict[str, Any]:
    return {name: state[name] for name in SETTINGS if name in state and state[name] != getattr(args, name)}


def relabel(dictionary: Dictionary, num_symbols: int, args: Namespace) -> None:
    """Replace a dictionary's language tokens, which follow its `num_symbols` own ones, by those of `args`."""
    for symbol in dictionary.symbols[num_symbols:]:
        del dictionary.indices[symbol]
    del dictionary.symbols[num_symbols:], dictionary.count[num_symbols:]
    augment_dictionary(
        dictionary=dictionary,
        language_list=args.langs,
        lang_tok_style=args.lang_tok_style,
        langtoks_specs=args.langtoks_specs,
        extra_data=args.extra_data,
    )
