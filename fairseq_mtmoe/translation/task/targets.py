"""Whether a translator can tell its target languages apart.

It does so by a language token, or by parts for tasks.
"""

import logging
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from fairseq_mtmoe.core.errors import UserError, shortened
from fairseq_mtmoe.slots.slot import unwrapped
from fairseq_mtmoe.slots.sparse_model import depends_on_tasks

NO_TOKENS = "--langtoks \"{'main': (None, None)}\""  # trains without language tokens

logger = logging.getLogger(__name__)


def check_targets(args: Namespace, task_id: Callable[[str], int], model: Any) -> None:
    """Check that a model can tell targets apart, unless the user gave `NO_TOKENS`.

    Raises:
        UserError: it has neither a language token nor a task's part for them.
    """
    if "tgt" in args.langtoks["main"]:
        return
    by_task = depends_on_tasks(unwrapped(model))
    targets: dict[tuple[str, int | None], list[str]] = {}
    for pair in args.lang_pairs:
        source, _, target = pair.partition("-")
        targets.setdefault((source, task_id(pair) if by_task else None), []).append(target)
    for (source, _), languages in targets.items():
        if len(languages) == 1:
            continue
        alike = f"{shortened(languages)} apart, the targets of {source}"
        if not args.insists_on_tokens:
            raise UserError(
                f"`--decoder-langtok` or `--encoder-langtok tgt` is required to tell {alike}, "
                f"but neither is given; `{NO_TOKENS}` trains without language tokens."
            )
        logger.warning(
            f"The model has no language token and no gate to tell {alike}: it writes the same for "
            "all of them, unless the text names its target."
        )
