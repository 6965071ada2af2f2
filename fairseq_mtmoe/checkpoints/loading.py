"""Load whole models for fairseq's commands and ours, wherever their experts lie.

`fairseq-generate`, `fairseq-interactive`, `fairseq-validate` and our commands build models with all
experts by these functions. A training process instead reads its own experts by `LoadContext.read`.
"""

import functools
import inspect
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from fairseq_mtmoe.checkpoints import assemble, file_io, mismatch, rebuild
from fairseq_mtmoe.checkpoints.file_io import are_finite, readable
from fairseq_mtmoe.checkpoints.head_labels import match_labels
from fairseq_mtmoe.checkpoints.key_maps import AVERAGES
from fairseq_mtmoe.checkpoints.sharding import PARTS
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import checkpoint_file
from fairseq_mtmoe.core.protocols import training_task
from fairseq_mtmoe.moe.parallel.placement import are_whole, whole_models

logger = logging.getLogger(__name__)


@dataclass
class LoadContext:
    """A caller's wishes for the checkpoints that it loads, and the loaded checkpoints."""

    # Reads by path; None: by `file_io.load`, with all experts
    read: Callable[[str], dict[str, Any]] | None = None
    # Kinds that files may choose, such as `model`; None: nothing is built
    kinds: Sequence[str] | None = None
    # Gets path and content, and may refuse them
    receive: Callable[[str, mismatch.State], None] | None = None
    loaded: list[tuple[str, mismatch.State]] = field(default_factory=list)  # paths and contents


# fairseq calls `load_checkpoint_to_cpu` without a context.
_context: ContextVar[LoadContext | None] = ContextVar("load_context", default=None)


@contextmanager
def load_context(**changes: Any) -> Iterator[LoadContext]:
    """Let fairseq load checkpoints by the outer context with these fields changed."""
    outer = _context.get()
    context = LoadContext(**changes) if outer is None else replace(outer, **changes)
    token = _context.set(context)
    try:
        yield context
    finally:
        _context.reset(token)


def load_checkpoint_to_cpu(
    path: str, arg_overrides: Any = None, load_on_all_ranks: bool = False
) -> Any:
    """Replace fairseq's function of this name by `load`."""
    return load_for_fairseq(path, _context.get() or LoadContext(), arg_overrides, load_on_all_ranks)


def load_for_fairseq(
    path: str, context: LoadContext, overrides: Any = None, on_all_ranks: bool = False
) -> dict[str, Any]:
    """Return a checkpoint as `context` asks, with current options and `overrides`.

    Raises `UserError` if it is damaged or refused.
    """
    if context.read is not None:
        state = _upgraded(path, context.read(path), context, overrides)
    else:
        parts = ("model", *AVERAGES) if are_whole() else PARTS  # only training needs moments
        local = _local(path, on_all_ranks)
        state = _whole_state(
            path, lambda: _upgraded(path, file_io.load(local), context, overrides), parts
        )
    context.loaded.append((path, state))
    if context.receive is not None:
        context.receive(path, state)
    return state


def _local(path: str, load_on_all_ranks: bool) -> str:
    """Return the local file to read; of a remote file a fresh copy, as in fairseq."""
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
    """Return a checkpoint with its moving average as the model.

    It replaces fairseq's `load_ema_from_checkpoint`.
    """
    parts = ("model", *AVERAGES)
    state: dict[str, Any] = _whole_state(path, lambda: file_io.load(path), parts)
    average = (state.get("extra_state") or {}).get("ema")
    if not average:
        raise UserError(f"`{path}` contains no moving average of the weights (`--store-ema`).")
    # Copies, as in fairseq: some parameters can be one tensor.
    copies: OrderedDict[str, Tensor] = OrderedDict()
    for name, value in average.items():
        copies[name] = value.float() if value.dtype is torch.half else value.clone()
    return {**state, "model": copies}


def _whole_state(path: str, load: Callable[[], Any], parts: tuple[str, ...]) -> Any:
    """Return a checkpoint with all experts; read again if a run replaced it meanwhile."""
    state = load()
    try:
        return assemble.whole(path, state, parts)
    except UserError:
        again = load()
        if again.get("experts", {}).get("id") == state["experts"]["id"]:
            raise
        return assemble.whole(path, again, parts)


def _upgraded(
    path: str, state: dict[str, Any], context: LoadContext, overrides: Any
) -> dict[str, Any]:
    """Return a state as fairseq's `load_checkpoint_to_cpu` does."""
    from fairseq import checkpoint_utils
    from fairseq.dataclass.utils import overwrite_args_by_name
    from omegaconf import OmegaConf

    if not {"optimizer_history", "best_loss"} & state.keys():  # in all versions of fairseq
        raise UserError(
            f"`{path}` is not the checkpoint of a run; a file of `mtmoe import-hf` can only start "
            "a run, and a source's file is for `--pemt-sources`."
        )
    with readable(path):
        if context.kinds is not None:
            rebuild.check(path, state, context.kinds)
        if state.get("args") is not None:
            vars(state["args"]).update(overrides or {})
        if state.get("cfg") is not None:
            state["cfg"] = OmegaConf.create(state["cfg"], flags={"allow_objects": True})
            if overrides is not None:
                overwrite_args_by_name(state["cfg"], overrides)
        upgraded: dict[str, Any] = checkpoint_utils._upgrade_state_dict(state)
        return upgraded


def whole_models_of_files(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap fairseq's `load_model_ensemble_and_task` to build whole, allowed models.

    `rebuild.py` says which models a file may choose. fairseq's own shards are loaded as before.
    """

    @functools.wraps(original)
    def load_model_ensemble_and_task(
        filenames: Sequence[str],
        arg_overrides: dict[str, Any] | None = None,
        task: Any = None,
        strict: bool = True,
        suffix: str = "",
        num_shards: int = 1,
        state: Any = None,
    ) -> tuple[Any, ...]:
        kinds = rebuild.EVERYTHING if task is None else ("model",)
        with whole_models(), load_context(kinds=kinds, loaded=[]) as context:
            if num_shards != 1:
                models, *rest = original(
                    filenames, arg_overrides, task, strict, suffix, num_shards, state
                )
                for model in models:
                    expect_finite(", ".join(filenames), model.parameters())
                return models, *rest
            assert state is None or len(filenames) == 1
            models = []
            options = None
            for path in _files(filenames, suffix):
                if state is not None:
                    rebuild.check(path, state, kinds)
                loaded = load_for_fairseq(path, context, arg_overrides) if state is None else state
                model, options, task = _built(path, loaded, task, strict)
                context.loaded.clear()  # it is large
                expect_finite(path, model.parameters())
                models.append(model)
        return models, options, task

    return load_model_ensemble_and_task


def expect_finite(path: str, weights: Iterable[Tensor]) -> None:
    """Raise a `UserError` if weights of a checkpoint are not finite.

    A search would give an output for any numbers.
    """
    if not are_finite(weights):
        raise UserError(f"`{path}` has weights that are not finite; use an older checkpoint.")


def _files(paths: Sequence[str], suffix: str) -> list[str]:
    """Return the checkpoints' files, with `suffix` before `.pt` (UserError: missing)."""
    from fairseq import checkpoint_utils
    from fairseq.file_io import PathManager

    files = [
        checkpoint_utils.get_maybe_sharded_checkpoint_filename(path, suffix, 0, 1) for path in paths
    ]
    for path in files:
        if not PathManager.path_requires_pathmanager(path):
            checkpoint_file(path)
    return files


def _built(path: str, state: dict[str, Any], task: Any, strict: bool) -> tuple[Any, Any, Any]:
    """Return a checkpoint's model with weights, its options, and the task."""
    from fairseq import tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    if state.get("args") is None and state.get("cfg") is None:
        raise UserError(f"`{path}` contains no options of its model.")
    with readable(path):
        options: Any = state.get("cfg")
        if state.get("args") is not None:
            options = convert_namespace_to_omegaconf(state["args"])
        task = task or tasks.setup_task(options.task, from_checkpoint=True)
        if "task_state" in state:
            task.load_state_dict(state["task_state"])
        knows = "from_checkpoint" in inspect.signature(task.build_model).parameters
        model = task.build_model(options.model, **({"from_checkpoint": True} if knows else {}))
    match_labels(path, state, training_task(task).head_labels)
    last = (state.get("optimizer_history") or [{}])[-1]
    if "num_updates" in last:
        model.set_num_updates(last["num_updates"])
    rebuild.sparsify_like(model, state)
    with mismatch.explained(model, options.model, [(path, state)]):
        model.load_state_dict(state["model"], strict=strict, model_cfg=options.model)
    return model, options, task
