"""The options of a run: those that all ranks must share, and those that are not the defaults.

Processes make the same steps in the same order, of parts of the same batches: with other options they would wait for
each other, or learn something else.
"""

from __future__ import annotations

import dataclasses
import os
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fairseq.dataclass.configs import FairseqConfig
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import OmegaConf, open_dict

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import regular_file

Options = dict[str, Any]  # by name, as they are written on the command line; plain values

# In the order in which they are compared.
_GROUPS = (
    "distributed_training", "model", "task", "criterion", "optimizer", "lr_scheduler", "optimization", "common",
    "dataset", "ema", "bmuf", "checkpoint",
)  # fmt: skip
_NAMES = {"model": "arch"}  # of what a group's `_name` is
_NOT_OF_TRAINING = ("interactive", "generation", "eval_lm", "common_eval", "scoring")
# What is a process's or a machine's own, and what only the first process acts on.
_OWN = {
    "distributed_rank", "device_id", "distributed_init_method", "distributed_port", "distributed_num_procs",
    "distributed_no_spawn", "nprocs_per_node", "user_dir", "data", "save_dir", "num_workers", "num_workers_valid",
    "data_buffer_size", "dataset_impl", "plasma_path", "use_plasma_view", "log_format", "log_interval", "log_file",
    "log_nvtx", "aim_repo", "aim_run_hash", "tensorboard_logdir", "wandb_project", "azureml_logging", "no_progress_bar",
    "profile", "suppress_crashes", "reset_logging", "empty_cache_freq", "all_gather_list_size", "no_epoch_checkpoints",
    "no_last_checkpoints", "keep_interval_updates", "keep_interval_updates_pattern", "keep_last_epochs",
    "keep_best_checkpoints", "write_checkpoints_asynchronously", "log_expert_comm",
}  # fmt: skip


def shared_options(cfg: Any) -> Options:
    """The options of fairseq's configuration that must be the same in all processes.

    Of a path the last part, since machines can have the same folder in different places; and whether this process finds
    the checkpoint there that the run will go on from.
    """
    found: Options = {}
    for group in _GROUPS:
        values = getattr(cfg, group, None)
        if values is not None:
            for name, value in _leaves(values, group):
                found.setdefault(name, value)
    return found | _restored(getattr(cfg, "checkpoint", None))


def first_difference(one: Options, other: Options) -> str | None:
    """The name of the first option that differs; None if there is no such."""
    return next((name for name in [*one, *other] if one.get(name) != other.get(name)), None)


def differing(name: str, first: Any, rank: int, value: Any) -> str:
    """What to say of an option that is `first` in process 0 and `value` in process `rank`."""
    return f"`{name}` must be the same in all processes, but is {first!r} in process 0 and {value!r} in process {rank}."


def _leaves(values: Any, group: str) -> Iterator[tuple[str, Any]]:
    for name, value in _values_of(values).items():
        if name == "_name":
            yield _option(_NAMES.get(group, group)), value
        elif isinstance(value, Mapping):
            for inner, leaf in _leaves(value, group):
                yield f"{group}.{name}.{inner.lstrip('-')}", leaf
        elif name not in _OWN:
            yield _option(name), value if value is None or isinstance(value, int | float) else _last_part(value)


def _values_of(group: Any) -> dict[str, Any]:
    """Plain values of a group, which is fairseq's, or an architecture's that keeps all options as they came."""
    if isinstance(group, Namespace):
        return vars(group)
    if OmegaConf.is_config(group):
        group = OmegaConf.to_container(group, resolve=True, enum_to_str=True)
    return dict(group) if isinstance(group, Mapping) else {}


def _last_part(value: Any) -> str:
    return str(value).rsplit(os.sep, 1)[-1]


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _restored(options: Any) -> Options:
    """Whether this process can read the checkpoint that the run will go on from, under the name of the option."""
    if options is None:
        return {}
    name, path = "--restore-file", options.restore_file
    if path == "checkpoint_last.pt":
        name, path = "--save-dir", os.path.join(options.save_dir, path)
    try:
        with open(regular_file(path), "rb"):  # a network's file system asks its server when a file is opened
            return {name: f"a place with {os.path.basename(path)}"}
    except (UserError, OSError):
        return {name: f"a place without {os.path.basename(path)}"}


# ---- what is not the default ----


def changed_options(cfg: Any) -> dict[str, Any]:
    """Return the options of a run's configuration that are not the defaults, by name with underscores, plain values.

    Of a model also those that its architecture set.
    """
    found: dict[str, Any] = {}
    for group in (name for name in cfg if name not in _NOT_OF_TRAINING):
        for name, value in _changed(group, _values_of(cfg[group])):
            found.setdefault(name, value)
    return found


def _changed(group: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    chosen = values.get("_name")
    if chosen is not None:
        yield _NAMES.get(group, group), chosen
    known = _defaults(_dataclass_of(group, chosen))
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _nested(name, value)
        elif name != "_name" and not _is_default(value, known.get(name)):
            yield name, _plain(value)


def _nested(group: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Groups in groups, of which nobody says the defaults."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _nested(f"{group}.{name}", value)
        elif value is not None:
            yield f"{group}.{name}", _plain(value)


def _dataclass_of(group: str, chosen: str | None) -> Any:
    """Whose fields a group's options are; None where nobody says."""
    if chosen is None:
        field = FairseqConfig.__dataclass_fields__.get(group)
        return field.type if field is not None else None
    if group == "model":
        return MODEL_DATACLASS_REGISTRY.get(ARCH_MODEL_NAME_REGISTRY.get(chosen, chosen))
    if group == "task":
        return TASK_DATACLASS_REGISTRY.get(chosen)
    return REGISTRIES.get(group, {}).get("dataclass_registry", {}).get(chosen)


def _defaults(of: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(of):
        return {}
    return {
        field.name: field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        for field in dataclasses.fields(of)
    }


def _is_default(value: Any, default: Any) -> bool:
    """Whether it is, or nothing, or another option's value, which is shown there."""
    refers = isinstance(default, str) and default.startswith("${")
    return value is None or refers or value == default or str(value) == str(default)


def _plain(value: Any) -> Any:
    """A value that any JSON has and any reader of run logs expects."""
    if isinstance(value, list) and all(isinstance(one, bool | int | float | str) for one in value):
        return value
    return value if isinstance(value, bool | int | float) else str(value)


@contextmanager
def with_option(options: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, one of fairseq's options has this value."""
    with open_dict(options):
        before, options[name] = options[name], value
        try:
            yield
        finally:
            options[name] = before
