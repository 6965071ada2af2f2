"""What fairseq's command lines lack: `fairseq-train … --help` with the options of the chosen task, model, criterion and
optimizer, and `fairseq-validate` without `--task`.

fairseq prints its help before it adds these options, whichever are chosen on the same command line, and looks up the
task None where a command has no default.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from typing import Any

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.errors import must_be

_HELP = {"-h", "--help"}
_EPILOG = "`mtmoe options` lists what the plugin fairseq_mtmoe adds, with the defaults of each architecture."


def with_whole_help(original: Callable[..., Any]) -> Callable[..., Any]:
    """fairseq's `parse_args_and_arch`, which adds the chosen options before it prints its help."""

    @functools.wraps(original)
    def parse_args_and_arch(
        parser: argparse.ArgumentParser, input_args: list[str] | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        given = sys.argv[1:] if input_args is None else input_args
        if _HELP.intersection(given):
            _add_chosen(parser, [argument for argument in given if argument not in _HELP])
            parser.epilog = _EPILOG
            parser.parse_args(["--help"])
        return original(parser, input_args, *args, **kwargs)

    return parse_args_and_arch


def with_task_of_checkpoint(original: Callable[..., Any]) -> Callable[..., Any]:
    """fairseq's `parse_args_and_arch`; where no task is chosen, it is that of the checkpoint to validate.

    Raises:
        UserError: no checkpoint is named, or it does not say its task.
    """

    @functools.wraps(original)
    def parse_args_and_arch(
        parser: argparse.ArgumentParser, input_args: list[str] | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        given = sys.argv[1:] if input_args is None else input_args
        known = vars(parser.parse_known_args(given)[0]) if not _HELP.intersection(given) else {}
        if "task" in known and known["task"] is None:
            parser.set_defaults(task=_task_of(known.get("path")))
        return original(parser, input_args, *args, **kwargs)

    return parse_args_and_arch


def _task_of(path: str | None) -> str:
    if path is None:
        must_be("--path", "the checkpoint to validate, or `--task` be given", path)
    state = file_io.load(path, mapped=True)
    task = (state.get("cfg") or {}).get("task")
    name = getattr(task, "_name", None) if isinstance(task, argparse.Namespace) else (task or {}).get("_name")
    name = name or getattr(state.get("args"), "task", None)
    if not isinstance(name, str):
        must_be("--task", f"given for `{path}`, which does not say what it was trained for", None)
    return name


def _add_chosen(parser: argparse.ArgumentParser, given: list[str]) -> None:
    from fairseq.dataclass.utils import gen_parser_from_dataclass
    from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_REGISTRY

    chosen = vars(parser.parse_known_args(given)[0])
    known = {"task": TASK_REGISTRY, "arch": {**MODEL_REGISTRY, **ARCH_MODEL_REGISTRY}}
    known.update({name: registry["registry"] for name, registry in REGISTRIES.items()})
    for option, registered in known.items():
        kind = registered.get(chosen.get(option))
        if kind is None:
            continue
        group = parser.add_argument_group(f"options of --{option.replace('_', '-')} {chosen[option]}")
        if hasattr(kind, "add_args"):
            kind.add_args(group)
        elif getattr(kind, "__dataclass", None) is not None:
            gen_parser_from_dataclass(group, kind.__dataclass())
