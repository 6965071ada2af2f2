"""Filters of known warnings that a user cannot act on.

fairseq was written for older versions of its libraries. A user's own filters (`python -W`,
PYTHONWARNINGS) take precedence.
"""

import logging
import re
import warnings

KNOWN: tuple[tuple[type[Warning], str, str], ...] = (  # category, how the text begins, module
    (FutureWarning, r"`torch\.cuda\.amp\.", r"fairscale\..*|fairseq\..*"),
    (UserWarning, r"hydra\.experimental\.", r"hydra\..*"),
    (UserWarning, r"\nThe version_base parameter is not specified", r"hydra\..*"),
    (UserWarning, r"In '.*': Usage of deprecated keyword in package header", r"hydra\..*"),
    (UserWarning, r"\n'.*' is validated against ConfigStore schema", r".*"),
    (UserWarning, r"\nThe strict flag in the compose API is deprecated", r"hydra\..*"),
    (FutureWarning, r".broadcast_buffers. is deprecated", r"fairseq_mtmoe\..*|fairseq\..*"),
    (
        UserWarning,
        r"'pin_memory' argument is set as true but no accelerator",
        r"torch\.utils\.data\..*",
    ),
    (UserWarning, r"Distributed is already initialized", r"fairseq\..*"),  # by `training/launch.py`
    (UserWarning, r"Support for mismatched key_padding_mask and attn_mask", r"torch\.nn\..*"),
)


def filter_known() -> None:
    """Filter the known warnings, and hydra's and fairseq's messages; idempotent."""
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)  # on tensorboardX
    if logging.getLogger("hydra").level == logging.NOTSET:
        logging.getLogger("hydra").setLevel(logging.INFO)
    for category, text, module in KNOWN:
        rule = ("ignore", re.compile(text, re.IGNORECASE), category, re.compile(module), 0)
        if rule not in warnings.filters:
            warnings.filterwarnings("ignore", text, category, module, append=True)
