"""A checkpoint's model and settings, for commands that use it with data of their own: nothing in it is executed."""

from __future__ import annotations

import copy
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import DictConfig, open_dict

from fairseq_mtmoe.checkpoints import loading, rebuild
from fairseq_mtmoe.data.indexed_files import check_ids
from fairseq_mtmoe.data.translation.file_names import find_side
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.io.files import regular_file
from fairseq_mtmoe.moe.parallel.placement import whole_models

# Tasks that translate one pair at a time at inference.
TASKS = ("translation_heated", "translation_multi_simple_epoch", "translation")
# Tasks of the table of tasks, which are scored by their own metrics.
OF_BENCHMARKS = ("glue", "text_to_text")


def existing(path: str) -> str:
    """The path of a checkpoint, which is there: fairseq would look a relative one up elsewhere too."""
    return str(regular_file(path, "a checkpoint file"))


def read(path: str) -> dict[str, Any]:
    """Return a checkpoint with all experts, without the optimizer's state, most of the file's size.

    Raises:
        UserError: it is missing or damaged; see `loading.load_checkpoint_to_cpu`.
    """
    with whole_models():
        # The task is looked at below, and the model when it is built.
        state = loading.load(existing(path), loading.LoadContext(kinds=()))
    state.pop("last_optimizer_state", None)
    return state


def task_settings(
    state: dict[str, Any], path: str, tasks: Sequence[str] = TASKS, what: str = "a task that translates"
) -> Any:
    """Return a copy of the settings of a checkpoint's task, for `change` and fairseq's `setup_task`.

    Raises:
        UserError: it is of another task than `tasks`, which are `what` in a sentence for users.
    """
    cfg = convert_namespace_to_omegaconf(state["args"]) if state.get("args") is not None else state.get("cfg")
    task = cfg.get("task") if cfg is not None else None
    name = getattr(task, "task", None) if isinstance(task, Namespace) else (task or {}).get("_name")
    rule = f"a checkpoint of {what} ({', '.join(tasks)})"
    if name not in tasks and name in OF_BENCHMARKS:
        advice = "`mtmoe evaluate` scores it, and `mtmoe predict` writes its answers"
        raise UserError(f"`{path}` must be {rule}, but is one of {name}: {advice}.")
    if name not in tasks:
        raise_invalid(path, rule, name)
    rebuild.check_name(path, state, "task")  # fairseq may find another name in it
    settings = copy.deepcopy(task)
    for side in ("left_pad_source", "left_pad_target"):
        if isinstance(settings, Namespace) and hasattr(settings, side):
            # fairseq's multilingual task evaluates a string, and takes what it made of it for False the next time.
            setattr(settings, side, str(getattr(settings, side)))
    return settings


def build_model(task: Any, state: dict[str, Any], path: str) -> Any:
    """Return the model of a checkpoint that was read.

    Raises:
        UserError: it is of an unknown model, or does not fit the task's data.
    """
    models, _, _ = checkpoint_utils.load_model_ensemble_and_task([path], task=task, state=state)
    return models[0]


def placed(model: Any, fp16: bool, bf16: bool, use_cuda: bool) -> Any:
    """A model in the precision and on the device that it is to compute in."""
    if fp16:
        model.half()
    if bf16:
        model.bfloat16()
    return model.cuda() if use_cuda else model


def setting(settings: Any, name: str) -> Any:
    """A value of settings of either of fairseq's two kinds; None where there is none."""
    return settings.get(name) if isinstance(settings, DictConfig) else getattr(settings, name, None)


def change(settings: Any, **values: Any) -> None:
    """Give settings other values."""
    if isinstance(settings, DictConfig):
        with open_dict(settings):
            settings.update(values)
    else:
        vars(settings).update(values)


def check_pair(folder: str, subset: str, pair: str, dictionaries: Sequence[Dictionary]) -> bool:
    """Return whether both files of a pair are there; stock fairseq's tasks take any number for an id.

    Raises:
        UserError: one of them is damaged, or holds ids beyond its dictionary, source's or target's.
    """
    source, target = pair.split("-")
    prefixes = [find_side(folder, subset, source, target, lang) for lang in (source, target)]
    for prefix, dictionary in zip(prefixes, dictionaries, strict=True):
        if prefix is not None:
            check_ids(prefix, len(dictionary))
    return None not in prefixes
