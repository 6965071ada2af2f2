"""Checkpoints with sharded experts: each rank writes its own experts.

fairseq saves on rank 0 alone. With sharded experts, the other ranks wait in `save_checkpoint` for
rank 0's decision, and write their experts when it saves. Rank 0 writes the rest last, which
completes the checkpoint. An error on one rank is raised on all ranks, with the same sentence, and
existing checkpoints stay.

Only one training at a time saves in a folder. The lock (`fcntl.lockf`) ends with its process.
"""

import errno
import fcntl
import functools
import io
import logging
import os
import re
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fairseq import checkpoint_utils, utils
from fairseq.file_io import PathManager
from torch import distributed as dist

from fairseq_mtmoe.checkpoints import assemble, file_io, sharding
from fairseq_mtmoe.checkpoints.rewriting import copy_with_experts, remove_orphans
from fairseq_mtmoe.checkpoints.sharding import content_of, split
from fairseq_mtmoe.core.errors import UserError, first_line, raise_invalid
from fairseq_mtmoe.core.protocols import training_model
from fairseq_mtmoe.slots.slot import unwrapped
from fairseq_mtmoe.training import failures, screen
from fairseq_mtmoe.training.resuming import placement_of, trained_shapes

LOCK_NAME = ".training.lock"  # may stay: the file without its process locks nothing

logger = logging.getLogger(__name__)


def saving_together(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap fairseq's `save_checkpoint`: all ranks save together what is due, or raise."""

    @functools.wraps(original)
    def save_checkpoint(cfg: Any, trainer: Any, epoch_itr: Any, val_loss: float | None) -> Any:
        trainer.expect_finite_weights()
        placement = placement_of(trainer)
        together = placement is not None and placement.is_sharded
        if together and trainer.is_data_parallel_master:
            saved = _lead(lambda: _save_all(original, cfg, trainer, epoch_itr, val_loss))
        else:
            saved = _save_all(original, cfg, trainer, epoch_itr, val_loss)
            if together:
                _follow(trainer)
        if trainer.is_data_parallel_master and saved is not None:
            remove_orphans(cfg.save_dir, trainer.checkpoint_suffix)
        return saved

    return save_checkpoint


def _save_all(
    original: Callable[..., Any], cfg: Any, trainer: Any, epoch_itr: Any, val_loss: float | None
) -> Any:
    """Save by fairseq's function, at an epoch's end also the checkpoint of the update.

    fairseq saves and removes checkpoints of `--save-interval-updates` only within an epoch. So the
    save at an epoch's end is one within the epoch, and the epoch's checkpoint is a copy. All ranks
    call fairseq's function once.
    """
    interval = cfg.save_interval_updates
    epoch = epoch_itr.epoch
    if not epoch_itr.end_of_epoch() or interval <= 0 or trainer.get_num_updates() % interval:
        return original(cfg, trainer, epoch_itr, val_loss)
    within_epoch = SimpleNamespace(
        epoch=epoch, end_of_epoch=lambda: False, state_dict=epoch_itr.state_dict
    )
    saved = original(cfg, trainer, within_epoch, val_loss)
    if saved is not None and not cfg.no_epoch_checkpoints and epoch % cfg.save_interval == 0:
        suffix = trainer.checkpoint_suffix
        PathManager.copy(
            saved, os.path.join(cfg.save_dir, f"checkpoint{epoch}{suffix}.pt"), overwrite=True
        )
        epochs = checkpoint_utils.checkpoint_paths(
            cfg.save_dir, rf"checkpoint(\d+){re.escape(suffix)}\.pt"
        )
        if cfg.keep_last_epochs > 0:
            for old in epochs[cfg.keep_last_epochs :]:
                os.remove(old)
    return saved


def copying_experts(original: Callable[..., bool]) -> Callable[..., bool]:
    """Wrap fairseq's `PathManager.copy`: copies of checkpoints have their experts."""

    @functools.wraps(original)
    def copy(src_path: str, dst_path: str, overwrite: bool = False) -> bool:
        if not dst_path.endswith(".pt") or any(
            map(PathManager.path_requires_pathmanager, (src_path, dst_path))
        ):
            return original(src_path, dst_path, overwrite)
        copy_with_experts(src_path, dst_path)
        return True

    return copy


def _lead(save: Callable[[], Any]) -> Any:
    """Save on rank 0, then let the other ranks continue."""
    try:
        saved = save()
    except Exception as error:  # in any case, the other ranks must not wait for more
        with suppress(RuntimeError):
            _broadcast(("failed", _words(error), ""))
        raise
    _broadcast(("done", "", ""))
    return saved


def _follow(trainer: Any) -> None:
    """Take part in every save until rank 0 is done, or raise rank 0's error."""
    error_here: Exception | None = None
    while True:
        action, value, save_id = _broadcast(None)
        if action == "done":
            return
        if action == "failed":
            raise error_here or UserError(value)
        try:
            write_share(trainer, value, save_id, {})
        except Exception as error:  # rank 0 gets it, and sends "failed" next
            error_here = error


def _broadcast(message: tuple[str, str, str] | None) -> tuple[str, str, str]:
    """Broadcast a message from rank 0, and return it; other ranks pass None."""
    box = [message]
    dist.broadcast_object_list(box, src=0, group=failures.between_hosts())
    assert box[0] is not None
    return box[0]


def _words(error: Exception) -> str:
    """Return this rank's error as a sentence for all ranks."""
    if isinstance(error, UserError):
        return str(error)
    return f"Process {dist.get_rank()} could not save: {type(error).__name__}: {first_line(error)}"


def save_checkpoint_parts(
    trainer: Any, filename: str, extra_state: dict[str, Any], together: bool
) -> str | None:
    """Save a checkpoint; return its path on the rank that writes it, else None.

    Args:
        together: whether other ranks hold experts. They follow rank 0, which calls this function.
    """
    if not trainer.should_save_checkpoint_on_current_rank:
        return None
    _export_source(trainer, extra_state)
    if together:
        save_id = sharding.new_id()
        _broadcast(("save", filename, save_id))
        return write_share(trainer, filename, save_id, extra_state)
    path = os.path.abspath(filename)
    logger.info(f"Saving checkpoint to {path}")
    state = utils.move_to_cpu(trainer.state_dict())
    state["extra_state"].update(extra_state)
    file_io.save_anywhere(state, filename, trainer.cfg.checkpoint.write_checkpoints_asynchronously)
    logger.info(f"Finished saving checkpoint to {path}")
    return path


def _export_source(trainer: Any, extra_state: dict[str, Any]) -> None:
    """Write a model's source file before its best checkpoint.

    A run that is killed in between writes it again when it resumes.
    """
    if "val_loss" in extra_state and extra_state["val_loss"] == extra_state.get("best"):
        model = training_model(unwrapped(trainer.get_model()))
        path = model.export_source(trainer.cfg.checkpoint.save_dir)
        if path is not None:
            logger.info(
                f"wrote {path} ({path.stat().st_size / 1e3:,.0f} kB)", extra=screen.FOR_SCREEN
            )


def write_share(trainer: Any, filename: str, save_id: str, extra_state: dict[str, Any]) -> str:
    """Write this rank's experts; rank 0 writes the rest after all ranks are done."""
    leads = trainer.is_data_parallel_master
    error_here: Exception | None = None
    written: dict[str, Any] | str | None
    try:
        folder = sharding.expert_folder(filename) / save_id
        shared_part, content = _parts(trainer, extra_state)
        written = None if content is None else assemble.write_shard(folder, content)
    # Whatever the error, such as running out of memory, the others must not wait for this rank.
    except Exception as error:
        error_here = error
        written = _words(error)
    everything: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everything, written, group=failures.between_hosts())
    failed = [entry for entry in everything if isinstance(entry, str)]
    try:
        if failed:
            raise error_here or UserError(failed[0])
        if leads:
            entries = [entry for entry in everything if entry is not None]
            if not all((folder / entry["name"]).is_file() for entry in entries):
                shutil.rmtree(folder, ignore_errors=True)
                rule = "one folder that all machines of the run share"
                raise_invalid("--save-dir", rule, trainer.cfg.checkpoint.save_dir)
            file_io.save_anywhere(sharding.with_shard_list(shared_part, save_id, entries), filename)
    except Exception:
        if leads:
            remove_orphans(filename)
        raise
    return str(Path(filename).absolute())


def _parts(
    trainer: Any, extra_state: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the shared part (on rank 0) and this rank's experts (if it writes them).

    Only these are copied from a GPU.
    """
    placement = placement_of(trainer)
    shapes = trained_shapes(trainer)
    assert placement is not None
    if trainer.is_data_parallel_master:
        state = utils.move_to_cpu(trainer.state_dict())
        state["extra_state"].update(extra_state)
        return split(state, placement, shapes)
    if placement.replica > 0:
        return {}, None
    return {}, utils.move_to_cpu(content_of(trainer.state_dict(), placement, shapes))


# ---- the lock of the folder ----


def lock_together(save_dir: str, is_first: bool) -> io.FileIO | None:
    """Lock a folder on rank 0; a collective call (UserError on all ranks)."""
    held = None
    box = [""]
    try:
        held = lock(save_dir) if is_first else None
    except UserError as error:
        box = [str(error)]
    if failures.several_processes():
        dist.broadcast_object_list(box, src=0, group=failures.between_hosts(make=False))
    if box[0]:
        raise UserError(box[0])
    return held


def lock(save_dir: str) -> io.FileIO | None:
    """Lock a folder until the returned file is closed; None, with a warning, if not."""
    path = Path(save_dir) / LOCK_NAME
    file = None
    try:
        file = io.FileIO(
            os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666), "r+"
        )
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.truncate(0)
        process = f"process {os.getpid()} of {socket.gethostname()}"
        file.write(f"{process} since {datetime.now():%Y-%m-%d %H:%M}".encode())
        return file
    except OSError as error:
        if file is not None and error.errno in (errno.EACCES, errno.EAGAIN):
            holder = ""
            with file, suppress(OSError):
                holder = (file.read(100) or b"").decode(errors="replace")
            raise UserError(
                f"`--save-dir` (`{save_dir}`) is in use by {holder or 'another process'}; "
                "wait for its end, or choose another folder."
            ) from error
        if file is not None:
            file.close()
        logger.warning(
            f"`{path}` cannot be locked ({error.strerror}): a second training here would not be "
            "noticed"
        )
    return None
