"""Checkpoints of several processes that hold different experts: each writes and reads its own.

fairseq saves in the first process alone. Where experts are exchanged, the others wait in `save_checkpoint` for what the
first one decides to save, and write their experts when it does; the first one writes the rest last, which makes the
checkpoint a whole. Whatever fails in one of them fails in all, with the same sentence, and leaves the checkpoints that
there were: a process that fails still comes to where the others wait for it, and says so there.

One training at a time saves in a folder: two would replace each other's checkpoints and remove each other's experts.
The lock is of the kind that belongs to a process and no child of it (POSIX's, `fcntl.lockf`): however the process ends,
the system takes it back, as does the server of a network file system, and workers that load data cannot keep it.
"""

from __future__ import annotations

import errno
import fcntl
import io
import logging
import os
import re
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils, utils
from fairseq.file_io import PathManager
from torch import distributed as dist

from fairseq_mtmoe.checkpoints import assemble, file_io, layout
from fairseq_mtmoe.checkpoints.copying import copy_with_experts, remove_orphans
from fairseq_mtmoe.checkpoints.sharding import content_of, split
from fairseq_mtmoe.errors import UserError, first_line, raise_invalid
from fairseq_mtmoe.protocols import LeavesFile
from fairseq_mtmoe.slots.slot import unwrapped
from fairseq_mtmoe.training import failures, retention, screen
from fairseq_mtmoe.training.resuming import placement_of, trained_shapes

LOCK_NAME = ".training.lock"  # it may stay for ever: the file locks nothing

_HOLDER = re.compile(r"process \d+ of [\w.-]+ since [\d :-]+")

logger = logging.getLogger(__name__)


def save_checkpoint(cfg: Any, trainer: Any, epoch_itr: Any, val_loss: float | None) -> Any:
    """Takes the place of fairseq's `save_checkpoint`: what is due is saved, by all processes together.

    Args:
        cfg: fairseq's options of checkpoints.
        trainer: ours; all processes call this.
        epoch_itr: where in the data the run is.
        val_loss: what the last validation came to, if there was one.

    Returns:
        the path of the first file that was written, in the process that wrote it; else None.

    Raises:
        UserError: a process could not write its part; the checkpoints are then what they were before.
    """
    trainer.expect_finite_weights()
    placement = placement_of(trainer)
    if placement is None or not placement.is_sharded:
        saved = _save(cfg, trainer, epoch_itr, val_loss)
    elif trainer.is_data_parallel_master:
        saved = _lead(lambda: _save(cfg, trainer, epoch_itr, val_loss))
    else:
        saved = _save(cfg, trainer, epoch_itr, val_loss)  # nothing here, but the best loss is remembered
        _follow(trainer)
    if trainer.is_data_parallel_master and saved is not None:
        remove_orphans(cfg.save_dir)
    return saved


def _save(cfg: Any, trainer: Any, epoch_itr: Any, val_loss: float | None) -> Any:
    """fairseq's part of a save: the files that are due now, the first from the trainer and others as copies of it."""
    if trainer.data_parallel_rank == 0:
        os.makedirs(cfg.save_dir, exist_ok=True)
    remembered = vars(checkpoint_utils.save_checkpoint)  # where fairseq's functions look for the best loss
    if val_loss is not None:
        remembered["best"] = retention.better(cfg, val_loss, remembered.get("best", val_loss))
    if cfg.no_save:
        return None
    trainer.consolidate_optimizer()
    if not trainer.should_save_checkpoint_on_current_rank:
        if trainer.always_call_state_dict_during_save_checkpoint:
            trainer.state_dict()
        return None
    moment = retention.Moment(epoch_itr.epoch, trainer.get_num_updates(), epoch_itr.end_of_epoch(), val_loss)
    logger.info(f"Preparing to save checkpoint for epoch {moment.epoch} @ {moment.updates} updates")
    best = remembered.get("best")
    paths = retention.files_to_save(cfg, moment, trainer.checkpoint_suffix, best)
    saved = None
    if paths:
        begin = time.perf_counter()
        model = unwrapped(trainer.get_model())
        if isinstance(model, LeavesFile) and moment.val_loss == best:
            # first: a run that is killed now goes on to this moment, and leaves it again
            left = model.leave_file(cfg.save_dir)
            if left is not None:
                logger.info(f"wrote {left} ({left.stat().st_size / 1e3:,.0f} kB)", extra=screen.FOR_SCREEN)
        saved = trainer.save_checkpoint(paths[0], _beside_the_model(trainer, epoch_itr, val_loss, remembered))
        _copy_to(paths[1:], paths[0], cfg)
        took = f"writing took {time.perf_counter() - begin} seconds"
        at = f"epoch {moment.epoch} @ {moment.updates} updates, score {val_loss}"
        logger.info(f"Saved checkpoint {paths[0]} ({at}) ({took})")
    retention.remove_old(cfg, moment, trainer.checkpoint_suffix)
    return saved


def _beside_the_model(trainer: Any, epoch_itr: Any, val_loss: float | None, remembered: Any) -> dict[str, Any]:
    """What a checkpoint has in its `extra_state` by fairseq's rules."""
    of_task = trainer.task.get_checkpoint_dict() if hasattr(trainer.task, "get_checkpoint_dict") else {}
    best = {"best": remembered["best"]} if "best" in remembered else {}
    return {"train_iterator": epoch_itr.state_dict(), "val_loss": val_loss, **of_task, **best}


def _copy_to(paths: list[str], source: str, cfg: Any) -> None:
    """Copy a checkpoint over others, with its experts, each completely or not at all."""
    for path in paths:
        if cfg.write_checkpoints_asynchronously:
            logger.warning(f"{path} is not written: with --write-checkpoints-asynchronously {source} alone is")
        elif not any(PathManager.path_requires_pathmanager(place) for place in (source, path)):
            copy_with_experts(source, path)
        elif not PathManager.copy(source, path, overwrite=True):
            raise UserError(f"`{path}` cannot be written.")


def _lead(save: Callable[[], Any]) -> Any:
    """Save what fairseq wants to be saved, then let the other processes go on."""
    try:
        saved = save()
    except Exception as error:  # whatever it is, the others must not wait for more
        failures.tell(error)  # they may wait elsewhere, where the first process did not come to
        with suppress(RuntimeError):
            _tell(("failed", _words(error), ""))
        raise
    _tell(("done", "", ""))
    return saved


def _follow(trainer: Any) -> None:
    """Take part in every save until the first process is done.

    Raises:
        UserError: it failed, or had to give up because another process did.
    """
    own: Exception | None = None
    while True:
        what, value, save_id = _tell(None)
        if what == "done":
            return
        if what == "failed":
            raise own or UserError(value)
        try:
            write_share(trainer, value, save_id, {})
        except Exception as error:  # the first process learns of it, and says so next
            own = error


def _tell(message: tuple[str, str, str] | None) -> tuple[str, str, str]:
    """Send a message from the first process to all others, which call this with None; returns it."""
    box = [message]
    dist.broadcast_object_list(box, src=0, group=failures.between_hosts())
    assert box[0] is not None
    return box[0]


def _words(error: Exception) -> str:
    """What other processes say of this one's error."""
    if isinstance(error, UserError):
        return str(error)
    return f"Process {dist.get_rank()} could not save: {type(error).__name__}: {first_line(error)}"


def save_leading(trainer: Any, filename: str, extra_state: dict[str, Any]) -> str:
    """The first process's part of a save that the others follow; returns the checkpoint's path.

    Raises:
        UserError: a process could not write its part; the checkpoint is then what it was before.
    """
    save_id = layout.new_id()
    _tell(("save", filename, save_id))
    path: str = write_share(trainer, filename, save_id, extra_state)
    return path


def save_alone(trainer: Any, filename: str, extra_state: dict[str, Any]) -> str | None:
    """Save a checkpoint of which one process has all; returns its path, in that process."""
    if not trainer.should_save_checkpoint_on_current_rank:
        return None
    path = os.path.abspath(filename)
    logger.info(f"Saving checkpoint to {path}")
    state = utils.move_to_cpu(trainer.state_dict())
    state["extra_state"].update(extra_state)
    file_io.save_anywhere(state, filename, trainer.cfg.checkpoint.write_checkpoints_asynchronously)
    logger.info(f"Finished saving checkpoint to {path}")
    return path


def write_share(trainer: Any, filename: str, save_id: str, extra_state: dict[str, Any]) -> str:
    """Write this process's experts, and in the first process, when all others have written theirs, the rest.

    Raises:
        UserError: another process could not write its experts; what keeps this one from it, is raised as it is.
    """
    leads, own = trainer.is_data_parallel_master, None
    written: dict[str, Any] | str | None
    try:
        folder = layout.expert_folder(filename) / save_id
        shared_part, content = _parts(trainer, extra_state)
        written = None if content is None else assemble.write_shard(folder, content)
    except Exception as error:  # running out of memory, say: the others must not wait for this process
        own, written = error, _words(error)
    everything: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everything, written, group=failures.between_hosts())
    failed = [entry for entry in everything if isinstance(entry, str)]
    try:
        if failed:
            raise own or UserError(failed[0])
        if leads:
            entries = [entry for entry in everything if entry is not None]
            _expect_files(folder, entries, trainer.cfg.checkpoint.save_dir)
            file_io.save_anywhere(layout.with_shard_list(shared_part, save_id, entries), filename)
    except Exception:
        if leads:
            remove_orphans(filename)
        raise
    return str(Path(filename).absolute())


def _parts(trainer: Any, extra_state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The shared part, in the first process, and this process's experts, where it writes them; no more leaves a GPU."""
    placement, shapes = placement_of(trainer), trained_shapes(trainer)
    assert placement is not None
    if trainer.is_data_parallel_master:
        state = utils.move_to_cpu(trainer.state_dict())
        state["extra_state"].update(extra_state)
        return split(state, placement, shapes)
    if placement.replica > 0:
        return {}, None
    return {}, utils.move_to_cpu(content_of(trainer.state_dict(), placement, shapes))


def _expect_files(folder: Path, entries: list[dict[str, Any]], save_dir: str) -> None:
    """Raise a `UserError` if the first process does not see what the others wrote."""
    for entry in entries:
        if not (folder / entry["name"]).is_file():
            shutil.rmtree(folder, ignore_errors=True)
            raise_invalid("--save-dir", "one folder that all machines of the run share", save_dir)


# ---- the lock of the folder ----


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
    path = Path(save_dir) / LOCK_NAME
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
