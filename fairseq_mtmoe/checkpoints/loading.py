"""What fairseq's own commands read: whole models, wherever their experts lie.

With these functions `fairseq-generate`, `fairseq-interactive`, `fairseq-validate` and our commands find the experts
of a checkpoint in parts, and build models that hold all of them: each process of these commands has batches of its own,
and nobody to exchange tokens with. A training process reads its own share instead, inside `reading_with`.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from torch import distributed as dist

from fairseq_mtmoe.checkpoints import assemble, building, file_io
from fairseq_mtmoe.checkpoints.copying import copy_with_experts
from fairseq_mtmoe.checkpoints.key_maps import rename_criterions
from fairseq_mtmoe.checkpoints.reader import readable
from fairseq_mtmoe.checkpoints.states import AVERAGES, PARTS
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import regular_file
from fairseq_mtmoe.moe.gates import base_gates
from fairseq_mtmoe.moe.parallel.placement import are_whole, whole_models

Read = Callable[[str], dict[str, Any]]

logger = logging.getLogger(__name__)

_read: ContextVar[Read | None] = ContextVar("read_checkpoint", default=None)


@contextmanager
def reading_with(read: Read) -> Iterator[None]:
    """Inside, fairseq gets from a checkpoint's path what `read` returns, with fairseq's upgrades of old ones."""
    token = _read.set(read)
    try:
        yield
    finally:
        _read.reset(token)


def copying_checkpoints(paths: Any) -> Any:
    """fairseq's `PathManager` for those who copy nothing but checkpoints."""

    class CheckpointPaths(paths):  # type: ignore[misc]
        """Copies a checkpoint with its experts, completely or not at all."""

        @staticmethod
        def copy(src_path: str, dst_path: str, overwrite: bool = False) -> Any:
            if any(paths.path_requires_pathmanager(path) for path in (src_path, dst_path)):
                return paths.copy(src_path, dst_path, overwrite)
            if os.path.exists(dst_path) and not overwrite:
                return False
            copy_with_experts(src_path, dst_path)
            return True

    return CheckpointPaths


def load_checkpoint_to_cpu(path: str, arg_overrides: Any = None, load_on_all_ranks: bool = False) -> Any:
    """A checkpoint with its experts and upgrades of old ones. Takes the place of fairseq's function of that name.

    Raises:
        UserError: see `contents.read`, and inside `building.choosing` also `building.admit`.
    """
    read = _read.get()
    if read is not None:
        state = _upgraded(path, read(path), arg_overrides)
    else:
        parts = ("model", *AVERAGES) if are_whole() else PARTS  # moments are for training
        local = _local(path, load_on_all_ranks)
        state = _whole_state(path, lambda: _upgraded(path, file_io.load(local), arg_overrides), parts)
    rename_criterions(state)
    _keep_options_with_place(state)
    return state


def _keep_options_with_place(state: dict[str, Any]) -> None:
    """Beside the place in the data of version 0.1.0, which does not say how it was reached, put the task's options."""
    place, cfg = (state.get("extra_state") or {}).get("train_iterator"), state.get("cfg")
    if cfg is None or not isinstance(place, dict) or "sampling" in place or "batches_in_epoch" not in place:
        return
    from omegaconf import OmegaConf

    place["options"] = OmegaConf.to_container(cfg.task) if OmegaConf.is_config(cfg.get("task")) else {}


def _local(path: str, load_on_all_ranks: bool) -> str:
    """The file to read; of one that is elsewhere a fresh copy, as in fairseq."""
    from fairseq.file_io import PathManager

    local: str = PathManager.get_local_path(path)
    if local != path and PathManager.path_requires_pathmanager(path):
        with suppress(FileNotFoundError):  # several processes may remove it
            os.remove(local)
        if load_on_all_ranks:
            dist.barrier()
        local = PathManager.get_local_path(path)
    return local


def load_ema(path: str) -> dict[str, Any]:
    """A checkpoint with its moving average as the model. Takes the place of fairseq's `load_ema_from_checkpoint`."""
    parts = ("model", *AVERAGES)
    return file_io.average_as_model(path, _whole_state(path, lambda: file_io.load(path), parts))


def _whole_state(path: str, load: Callable[[], Any], parts: tuple[str, ...]) -> Any:
    """A checkpoint with all experts; read once more if a run has replaced it meanwhile, experts first."""
    state = load()
    try:
        return assemble.whole(path, state, parts)
    except UserError:
        again = load()
        if again.get("experts", {}).get("id") == state["experts"]["id"]:
            raise
        return assemble.whole(path, again, parts)


def _upgraded(path: str, state: dict[str, Any], arg_overrides: Any) -> Any:
    """A state that was read without fairseq, as fairseq's `load_checkpoint_to_cpu` hands it out."""
    from fairseq import checkpoint_utils
    from fairseq.dataclass.utils import overwrite_args_by_name
    from omegaconf import OmegaConf

    with readable(path):
        building.admit(path, state)
        if state.get("args") is not None:
            vars(state["args"]).update(arg_overrides or {})
        if state.get("cfg") is not None:
            state["cfg"] = OmegaConf.create(state["cfg"], flags={"allow_objects": True})
            if arg_overrides is not None:
                overwrite_args_by_name(state["cfg"], arg_overrides)
        return checkpoint_utils._upgrade_state_dict(state)


def _say_without_prices(path: str, model: Any) -> None:
    gates = [gate for gate in base_gates(model) if gate.routing.evaluation == "prices"]
    if gates and not any(gate.prices.known for gate in gates):
        logger.warning(
            f"`{path}` has no prices for its BASE layers, which therefore choose experts by scores alone, otherwise "
            f"than in training; `mtmoe calibrate {path} OUT DATA` gives it some."
        )


def whole_models_of_files(original: Callable[..., Any]) -> Callable[..., Any]:
    """Models of files: whole, and no others than `building.py` lets them be."""
    from fairseq.file_io import PathManager

    signature = inspect.signature(original)

    @functools.wraps(original)
    def load_model_ensemble_and_task(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        kinds = ("model",) if given.get("task") is not None else building.EVERYTHING
        holds_all = given.get("num_shards", 1) == 1
        for path in given["filenames"] if holds_all and not given.get("suffix") else ():
            if not PathManager.path_requires_pathmanager(path):
                regular_file(path, "a checkpoint file")
        with whole_models(), building.choosing(*kinds, holds_all=holds_all):
            if given.get("state") is not None:
                building.admit(given["filenames"][0], given["state"])
            loaded = original(*args, **kwargs)
        for path, model in zip(given["filenames"], loaded[0], strict=True):
            _say_without_prices(path, model)
        return loaded

    return load_model_ensemble_and_task
