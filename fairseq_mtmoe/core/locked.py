"""A lock on an open file or folder.

It ends with its process or when the file is closed.
"""

import fcntl
from typing import BinaryIO

from fairseq_mtmoe.core.errors import UserError


def lock(file: BinaryIO | int, sentence: str) -> None:
    """Lock a file for this process alone, without waiting.

    Raises `UserError` with `sentence` if another process has it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UserError(sentence) from error
