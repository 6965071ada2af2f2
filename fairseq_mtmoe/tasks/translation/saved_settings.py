"""What a checkpoint keeps of a translation task's settings.

A translation model is useless with other languages or language tokens than those that it was trained with, and the
order of its languages is that of rows in its embedding. These settings travel in the checkpoint's task state; where a
checkpoint has them, they replace the options of `fairseq-generate` and `fairseq-interactive` (`take_over`).

A language whose place in `langs` changes takes over the token and the gate of the one that was there.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.tasks.translation.options import all_pairs

SETTINGS = (
    "langs",
    "langtoks",
    "langtoks_specs",
    "lang_tok_style",
    "lang_tok_replacing_bos_eos",
    "enable_lang_ids",
    "task_ids",
)


def saved_settings(args: Namespace) -> dict[str, Any]:
    """The settings to store, as plain containers; and the pairs, which the options may have read from a file."""
    return {**{name: getattr(args, name) for name in SETTINGS}, "lang_pairs": all_pairs(args)}


def pairs_of(state: Mapping[str, Any]) -> list[str]:
    """The pairs that a checkpoint was trained on; none where it does not say."""
    pairs = (state.get("task_state") or {}).get("lang_pairs")
    return [pair for pair in pairs if isinstance(pair, str)] if isinstance(pairs, list) else []


def agreed_languages(before: list[str] | None, now: list[str] | None) -> list[str] | None:
    """The languages of an ensemble's models, of one further model that may not say any.

    Raises:
        UserError: they are others than those before, or in another order.
    """
    if before and now and now != before:
        raise UserError(
            f"The models of an ensemble must have the same languages in the same order, but one has "
            f"{', '.join(before)} and another {', '.join(now)}."
        )
    return now or before


def check_languages(args: Namespace) -> None:
    """Raise a `UserError` unless source and target language are among the model's."""
    for name in ("source_lang", "target_lang"):
        lang, known = getattr(args, name), args.langs
        if lang not in known:
            raise_invalid(f"--{name.replace('_', '-')}", f"one of the model's languages {', '.join(known)}", lang)


logger = logging.getLogger(__name__)


def take_over(args: Namespace, state: Mapping[str, Any], names: Sequence[str]) -> bool:
    """Put a checkpoint's settings of these names in the place of the options; True if that changed any."""
    changed = _differing(args, state, names)
    for name, value in changed.items():
        logger.info(f"from the checkpoint: {name} = {value} instead of {getattr(args, name)}")
        setattr(args, name, value)
    return bool(changed)


def warn_of_changes(args: Namespace, state: Mapping[str, Any], names: Sequence[str]) -> None:
    """Say which settings a run has changed since the checkpoint that it goes on from."""
    for name, value in _differing(args, state, names).items():
        logger.warning(f"{name} was {value} when the checkpoint was trained, and is {getattr(args, name)} from now on")


def _differing(args: Namespace, state: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: state[name] for name in names if name in state and state[name] != getattr(args, name)}
