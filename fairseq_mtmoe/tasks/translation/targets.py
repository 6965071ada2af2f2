"""Whether a translator can tell its target languages apart: by a language token, or by parts for tasks."""

import functools
import logging
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.slots.slot import unwrapped
from fairseq_mtmoe.slots.sparse_model import depends_on_tasks

SHOWN = 4  # languages that a message lists
NO_TOKENS = "--langtoks \"{'main': (None, None)}\""  # how a run insists

logger = logging.getLogger(__name__)


def alike_targets(
    pairs: Sequence[str], tokens: Sequence[str | None], task_id: Callable[[str], int], models: Sequence[Any]
) -> tuple[str, tuple[str, ...]] | None:
    """Return a source and those of its targets that models cannot tell apart, or None.

    tokens: kinds of the language tokens of sources and of targets; `tgt` is the target's.
    """
    if "tgt" in tokens:
        return None
    by_task = any(depends_on_tasks(unwrapped(model)) for model in models)
    targets: dict[tuple[str, int | None], list[str]] = {}
    for pair in pairs:
        source, _, target = pair.partition("-")
        targets.setdefault((source, task_id(pair) if by_task else None), []).append(target)
    for (source, _), languages in targets.items():
        if len(languages) > 1:
            return source, tuple(languages)
    return None


def check_targets(args: Namespace, task_id: Callable[[str], int], model: Any) -> None:
    """Check that a training's model can tell targets apart (UserError), or a user insists."""
    alike = alike_targets(args.lang_pairs, args.langtoks["main"], task_id, [model])
    if alike is None:
        return
    if args.insists_on_tokens:
        _warn(*alike)
        return
    source, targets = alike
    raise UserError(
        f"`--decoder-langtok` or `--encoder-langtok tgt` must be given to tell {_listed(targets)} apart, the targets "
        f"of {source}, but neither is; `{NO_TOKENS}` trains without language tokens."
    )


def warn_of_targets(
    pairs: Sequence[str], tokens: Sequence[str | None], task_id: Callable[[str], int], models: Sequence[Any]
) -> None:
    """Log a warning if models cannot tell apart the targets that they were trained on."""
    alike = alike_targets(pairs, tokens, task_id, models)
    if alike is not None:
        _warn(*alike)


@functools.cache
def _warn(source: str, targets: tuple[str, ...]) -> None:
    """Log the warning once."""
    logger.warning(
        f"The model has no language token and no gate to tell {_listed(targets)} apart, the targets of {source}: "
        "it writes the same for all of them, unless the text names its target."
    )


def _listed(languages: Sequence[str]) -> str:
    if len(languages) <= SHOWN:
        return f"{', '.join(languages[:-1])} and {languages[-1]}"
    return f"{', '.join(languages[:SHOWN])} and {len(languages) - SHOWN} more"
