"""One training at a time in a `--save-dir`: two would replace each other's checkpoints and remove each other's experts.

The lock is of the kind that belongs to a process and no child of it (POSIX's, `fcntl.lockf`): however the process ends,
the system takes it back, as does the server of a network file system, and workers that load data cannot keep it. The
file may stay for ever: it locks nothing.
"""

from __future__ import annotations

import errno
import fcntl
import io
import logging
import os
import re
import socket
from datetime import datetime
from pathlib import Path

from torch import distributed as dist

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.training import failures

logger = logging.getLogger(__name__)

FILE_NAME = ".training.lock"

_HOLDER = re.compile(r"process \d+ of [\w.-]+ since [\d :-]+")


def lock_together(save_dir: str, is_first: bool) -> io.FileIO | None:
    """Have the first process of a run hold its folder; all of them call this, and all fail if it does.

    Returns:
        in the first process a file, which holds the lock until it is closed, or the process ends; else None.

    Raises:
        UserError: another training holds the lock.
    """
    held, sentence = None, None
    if is_first:
        try:
            held = lock(save_dir)
        except UserError as error:
            sentence = str(error)
    if failures.several_processes():
        box = [sentence]
        dist.broadcast_object_list(box, src=0, group=failures.made_between_hosts())
        sentence = box[0]
    if sentence is not None:
        raise UserError(sentence)
    return held


def lock(save_dir: str) -> io.FileIO | None:
    """Lock a folder for this process; None, with a warning, where that cannot be done: training does not need it.

    Raises:
        UserError: another process holds the lock.
    """
    path = Path(save_dir) / FILE_NAME
    try:
        file = io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666), "r+")
    except OSError as error:
        _warn(path, error)
        return None
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.truncate(0)
        file.write(f"process {os.getpid()} of {socket.gethostname()} since {datetime.now():%Y-%m-%d %H:%M}".encode())
    except OSError as error:
        holder = _holder(file)
        file.close()
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise UserError(
                f"`--save-dir` must be a folder that no other training uses, but `{save_dir}` is used by {holder}: "
                "wait for its end, or choose another folder."
            ) from error
        _warn(path, error)
        return None
    return file


def _warn(path: Path, error: OSError) -> None:
    logger.warning(f"`{path}` cannot be locked ({error.strerror}): a second training here would not be noticed")


def _holder(file: io.FileIO) -> str:
    """Who holds the lock, as that process has written it."""
    try:
        written = _HOLDER.fullmatch((file.read(300) or b"").decode(errors="replace"))
    except OSError:
        written = None
    return written[0] if written else "another process"
