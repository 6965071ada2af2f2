"""Which options all processes of a run must share, and what is said where they do not.

Processes make the same steps in the same order, of parts of the same batches: with other options they would wait for
each other, or learn something else.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import OmegaConf

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import regular_file

Options = dict[str, Any]  # by name, as they are written on the command line; plain values

# In the order in which they are compared.
_GROUPS = (
    "distributed_training", "model", "task", "criterion", "optimizer", "lr_scheduler", "optimization", "common",
    "dataset", "ema", "bmuf", "checkpoint",
)  # fmt: skip
_NAMES = {"model": "--arch"}  # of what a group's `_name` is
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
    """Names and values of a group, which is fairseq's, or an architecture's that keeps all options as they came."""
    if isinstance(values, Namespace):
        values = vars(values)
    elif OmegaConf.is_config(values):
        values = OmegaConf.to_container(values, resolve=True, enum_to_str=True)
    for name, value in values.items():
        if name == "_name":
            yield _NAMES.get(group, _option(group)), value
        elif isinstance(value, Mapping):
            for inner, leaf in _leaves(value, group):
                yield f"{group}.{name}.{inner.lstrip('-')}", leaf
        elif name not in _OWN:
            yield _option(name), _plain(value)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, int | float):
        return value
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
