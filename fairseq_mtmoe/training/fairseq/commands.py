"""Additions to fairseq's commands.

`--help` lists the options of the chosen task, model, criterion and optimizer. There is
`--log-format rich`, and our trainer, which `--user-dir` cannot name.
"""

import argparse
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from fairseq.logging import progress_bar
from fairseq.model_parallel.megatron_trainer import MegatronTrainer
from fairseq.trainer import Trainer

from fairseq_mtmoe.core.errors import flag, raise_invalid
from fairseq_mtmoe.core.protocols import TrainingTask
from fairseq_mtmoe.training import stopping
from fairseq_mtmoe.training.fairseq.patch import apply_to_commands
from fairseq_mtmoe.training.option_check import refuse_what_cannot_work
from fairseq_mtmoe.training.screen import NAME, RichProgressBar, is_rich
from fairseq_mtmoe.training.trainer import SparseTrainer

_HELP = {"-h", "--help"}
_EPILOG = (
    "`mtmoe options` lists the options that fairseq_mtmoe adds, with the defaults of each "
    "architecture."
)


def with_chosen_options(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `parse_args_and_arch`: help with chosen options, and a generation's shard."""

    @functools.wraps(original)
    def parse_args_and_arch(
        parser: argparse.ArgumentParser,
        input_args: list[str] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        arguments = sys.argv[1:] if input_args is None else input_args
        if _HELP.intersection(arguments):
            without_help = [argument for argument in arguments if argument not in _HELP]
            _add_chosen(parser, vars(parser.parse_known_args(without_help)[0]))
            parser.epilog = _EPILOG
            parser.parse_args(["--help"])
        parsed = original(parser, input_args, *args, **kwargs)
        options = parsed[0] if isinstance(parsed, tuple) else parsed
        _check_given(parser, arguments, options)
        is_interactive = hasattr(options, "buffer_size")
        if hasattr(options, "beam") and hasattr(options, "num_shards") and not is_interactive:
            _choose_shard(options)
        return parsed

    return parse_args_and_arch


def _choose_shard(options: argparse.Namespace) -> None:
    """Give a generation its share by `--num-shards` and `--shard-id` (UserError).

    fairseq reads neither, but divides the batches by the number of processes, which is 1.
    """
    shards = options.num_shards
    if not 0 <= options.shard_id < shards:
        raise_invalid("--shard-id", f"from 0 and below `--num-shards` {shards}", options.shard_id)
    if shards > 1:
        options.distributed_world_size = shards
        options.distributed_rank = options.shard_id


def _check_given(
    parser: argparse.ArgumentParser, arguments: list[str], options: argparse.Namespace
) -> None:
    """Let a task check the options on the command line (UserError).

    Later, given options cannot be told from defaults.
    """
    from fairseq.tasks import TASK_REGISTRY

    task = TASK_REGISTRY.get(getattr(options, "task", None), object)
    if issubclass(task, TrainingTask):
        # A namespace with all names keeps argparse from setting defaults.
        nothing = argparse.Namespace(**dict.fromkeys(vars(options)))
        values = vars(parser.parse_known_args(arguments, nothing)[0])
        task.check_given(
            options, {name: value for name, value in values.items() if value is not None}
        )


def _add_chosen(parser: argparse.ArgumentParser, chosen: Mapping[str, Any]) -> None:
    from fairseq.dataclass.utils import gen_parser_from_dataclass
    from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_REGISTRY

    registries = {"task": TASK_REGISTRY, "arch": {**MODEL_REGISTRY, **ARCH_MODEL_REGISTRY}}
    registries.update({name: registry["registry"] for name, registry in REGISTRIES.items()})
    for option, registered in registries.items():
        kind = registered.get(chosen.get(option))
        if kind is None:
            continue
        group = parser.add_argument_group(f"options of {flag(option)} {chosen[option]}")
        if hasattr(kind, "add_args"):
            kind.add_args(group)
        elif getattr(kind, "__dataclass", None) is not None:
            gen_parser_from_dataclass(group, kind.__dataclass())


# ---- `--log-format rich`, see `training/screen.py` ----


def with_choice(choices: type[Enum]) -> type[Enum]:
    """Add `rich` to the enum in place, to which fairseq's configurations refer."""
    if NAME not in choices.__members__:
        member = object.__new__(choices)
        member._name_ = member._value_ = NAME
        choices._member_names_.append(NAME)
        choices._member_map_[NAME] = choices._value2member_map_[NAME] = member
    return choices


def with_rich(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap fairseq's `progress_bar`, whose wrappers (TensorBoard, …) also wrap ours."""

    @functools.wraps(original)
    def make(iterator: Any, log_format: Any = None, log_interval: int = 100, **kwargs: Any) -> Any:
        if not is_rich(log_format):
            return original(iterator, log_format, log_interval, **kwargs)
        simple = progress_bar.SimpleProgressBar
        progress_bar.SimpleProgressBar = RichProgressBar
        try:
            return original(iterator, "simple", log_interval, **{**kwargs, "log_file": None})
        finally:
            progress_bar.SimpleProgressBar = simple

    return make


# ---- the trainer ----


def with_our_trainer(wrap: Callable[..., Any]) -> Callable[..., Any]:
    """Return `wrap` for a function of `(cfg, trainer, …)`.

    Other trainers call the function as it was.
    """

    def wrap_for_ours(original: Callable[..., Any]) -> Callable[..., Any]:
        wrapped = wrap(original)

        @functools.wraps(original)
        def call(cfg: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
            chosen = wrapped if isinstance(trainer, SparseTrainer) else original
            return chosen(cfg, trainer, *args, **kwargs)

        return call

    return wrap_for_ours


def choosing_ours(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `Trainer.__new__` that makes a `SparseTrainer`.

    Another subclass of fairseq's trainer does not end by our signal handlers.
    """

    def __new__(cls: type[Trainer], *args: Any, **kwargs: Any) -> Any:
        apply_to_commands()  # the training command is imported by now, however it was started
        if cls is Trainer:
            cls = SparseTrainer
        elif not issubclass(cls, SparseTrainer):
            stopping.end_watch()
        if issubclass(cls, MegatronTrainer):
            named = inspect.signature(cls.__init__).bind(None, *args, **kwargs).arguments
            refuse_what_cannot_work(named["cfg"], named["model"])
        return object.__new__(cls)

    return __new__
