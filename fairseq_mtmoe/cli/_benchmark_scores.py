"""What `mtmoe evaluate` does with checkpoints of a benchmark's tasks: what `fairseq-validate --results-path` does."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from fairseq_mtmoe.checkpoints.file_io import peek
from fairseq_mtmoe.errors import UserError, raise_invalid

BATCH_SIZE = 32
# The others of the command say how to translate.
OPTIONS = ("places", "models", "outs", "subset", "batch_size", "max_tokens", "fp16", "cpu")


def task_of(models: Sequence[str]) -> str | None:
    """The task of a benchmark, `glue` or `text_to_text`, that checkpoints are of; None where they translate.

    Raises:
        UserError: one is not there, or they are of several tasks.
    """
    from fairseq_mtmoe.evaluation.stored import OF_BENCHMARKS, existing

    found = {model: _task_name(existing(model.split(":")[0])) for model in models}
    names = set(found.values())
    if not names & set(OF_BENCHMARKS):
        return None
    if len(names) > 1:
        shown = ", ".join(f"{model} ({name})" for model, name in found.items())
        raise_invalid("--path", "checkpoints of one task in one evaluation", shown)
    return names.pop()


def evaluate(task: str, ctx: click.Context) -> None:
    """Score each checkpoint on the tasks that it was trained on, print a table, and write `scores.json` and `.md`.

    Raises:
        UserError: an option is of translation alone, or what `fairseq-validate` refuses.
    """
    _refuse_others(task, ctx)
    given = ctx.params
    for model in given["models"]:
        if ":" in model:
            raise_invalid("--path", f"one checkpoint with `--task {task}`, and no ensemble", model)
    subset = given["subset"] if _is_given(ctx, "subset") else "valid"  # which has labels
    outs = result_folders(given["models"], subset, given["outs"])
    for model, out in zip(given["models"], outs, strict=True):
        _validate(task, model, out, subset, given)


def _task_name(model: str) -> str:
    """What the checkpoint's options say; nothing where they do not."""
    cfg = (peek(model) or {}).get("cfg")
    task = cfg.get("task") if isinstance(cfg, Mapping) else None
    return str(task.get("_name", "")) if isinstance(task, Mapping) else ""


def _is_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is not ParameterSource.DEFAULT


def _refuse_others(task: str, ctx: click.Context) -> None:
    for parameter in ctx.command.params:
        if parameter.name is not None and parameter.name not in OPTIONS and _is_given(ctx, parameter.name):
            raise UserError(
                f"`{parameter.opts[0]}` must be left out with checkpoints of `--task {task}`, which are scored as "
                "`fairseq-validate` does, but was given."
            )


def result_folders(models: Sequence[str], subset: str, outs: Sequence[Path]) -> Sequence[Path]:
    """The folder for each model's results, as given or beside its first checkpoint.

    Raises:
        UserError: two are the same.
    """
    first = [Path(model.split(":")[0]) for model in models]
    places = outs or [path.parent / "scores" / f"{path.stem}-{subset}" for path in first]
    if len({os.path.realpath(place) for place in places}) < len(places):
        raise_invalid("--out", "another folder for each --path", ", ".join(map(str, places)))
    return places


def _validate(task: str, model: str, out: Path, subset: str, given: Mapping[str, Any]) -> None:
    """Call what `fairseq-validate` calls, with the same options, in one process."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq_cli import validate

    batches = {"--max-tokens": given["max_tokens"], "--batch-size": given["batch_size"]}
    if not any(batches.values()):
        batches["--batch-size"] = BATCH_SIZE
    arguments = [given["places"][0], "--task", task, "--path", model, "--valid-subset", subset]
    arguments += ["--results-path", str(out), "--distributed-world-size", "1"]
    arguments += [text for name, value in batches.items() if value for text in (name, str(value))]
    arguments += [f"--{name}" for name in ("fp16", "cpu") if given[name]]
    parsed = options.parse_args_and_arch(options.get_validation_parser(), arguments)
    named = options.parse_args_and_arch(options.get_validation_parser(), arguments, suppress_defaults=True)
    validate.main(convert_namespace_to_omegaconf(parsed), override_args=named)
