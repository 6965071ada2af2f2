"""What fairseq's own commands read: whole models, wherever their experts lie.

`install` lets `fairseq-generate`, `fairseq-interactive`, `fairseq-validate` and our commands find the experts of a
checkpoint in parts, and build models that hold all of them: each process of these commands has batches of its own, and
nobody to exchange tokens with. A training process reads its own share instead, inside `reading_with`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fairseq_mtmoe.checkpoints import expert_files, file_io, mismatch
from fairseq_mtmoe.checkpoints.expert_states import AVERAGES, PARTS
from fairseq_mtmoe.checkpoints.key_maps import rename_criterions
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.moe.share import are_whole, whole_models

Read = Callable[[str], dict[str, Any]]

_read: ContextVar[Read | None] = ContextVar("read_checkpoint", default=None)


@contextmanager
def reading_with(read: Read) -> Iterator[None]:
    """Inside, fairseq gets from a checkpoint's path what `read` returns, with fairseq's upgrades of old ones."""
    token = _read.set(read)
    try:
        yield
    finally:
        _read.reset(token)


def install() -> None:
    """Put these functions in the place of fairseq's, around those of `file_io`. Safe to call twice."""
    from fairseq import checkpoint_utils

    file_io.install()
    if hasattr(checkpoint_utils.load_model_ensemble_and_task, "installed_by"):
        return
    checkpoint_utils.load_checkpoint_to_cpu = _with_experts(checkpoint_utils.load_checkpoint_to_cpu)
    checkpoint_utils.load_model_ensemble_and_task = _whole(checkpoint_utils.load_model_ensemble_and_task)
    checkpoint_utils.load_ema_from_checkpoint = load_ema
    checkpoint_utils.PathManager = _copying_checkpoints(checkpoint_utils.PathManager)
    mismatch.install()


def _copying_checkpoints(paths: Any) -> Any:
    """fairseq's `PathManager` for those who copy nothing but checkpoints."""

    class CheckpointPaths(paths):  # type: ignore[misc]
        """Copies a checkpoint with its experts, completely or not at all."""

        @staticmethod
        def copy(src_path: str, dst_path: str, overwrite: bool = False) -> Any:
            if any(paths.path_requires_pathmanager(path) for path in (src_path, dst_path)):
                return paths.copy(src_path, dst_path, overwrite)
            if os.path.exists(dst_path) and not overwrite:
                return False
            expert_files.copy_with_experts(src_path, dst_path)
            return True

    return CheckpointPaths


def _with_experts(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load_checkpoint_to_cpu(path: str, arg_overrides: Any = None, load_on_all_ranks: bool = False) -> Any:
        read = _read.get()
        if read is not None:
            state = _upgraded(read(path), arg_overrides)
        else:
            parts = ("model", *AVERAGES) if are_whole() else PARTS  # moments are for training
            state = _whole_state(path, lambda: original(path, arg_overrides, load_on_all_ranks), parts)
        rename_criterions(state)
        return state

    return load_checkpoint_to_cpu


def load_ema(path: str) -> dict[str, Any]:
    """A checkpoint with its moving average as the model. Takes the place of fairseq's `load_ema_from_checkpoint`."""
    parts = ("model", *AVERAGES)
    return file_io.average_as_model(path, _whole_state(path, lambda: file_io.load(path), parts))


def _whole_state(path: str, load: Callable[[], Any], parts: tuple[str, ...]) -> Any:
    """A checkpoint with all experts; read once more if a run has replaced it meanwhile, experts first."""
    state = load()
    try:
        return expert_files.whole(path, state, parts)
    except UserError:
        again = load()
        if again.get("experts", {}).get("id") == state["experts"]["id"]:
            raise
        return expert_files.whole(path, again, parts)


def _upgraded(state: dict[str, Any], arg_overrides: Any) -> Any:
    """A state that was read without fairseq, as fairseq's `load_checkpoint_to_cpu` hands it out."""
    from fairseq import checkpoint_utils
    from fairseq.dataclass.utils import overwrite_args_by_name
    from omegaconf import OmegaConf

    if state.get("cfg") is not None:
        state["cfg"] = OmegaConf.create(state["cfg"], flags={"allow_objects": True})
        if arg_overrides is not None:
            overwrite_args_by_name(state["cfg"], arg_overrides)
    return checkpoint_utils._upgrade_state_dict(state)


def _whole(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load_model_ensemble_and_task(*args: Any, **kwargs: Any) -> Any:
        with whole_models():
            return original(*args, **kwargs)

    load_model_ensemble_and_task.installed_by = __name__  # type: ignore[attr-defined]
    return load_model_ensemble_and_task
