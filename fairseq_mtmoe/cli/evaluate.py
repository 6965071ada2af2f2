"""`mtmoe evaluate`: scores of every language pair, or of benchmark tasks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from fairseq_mtmoe.cli._shared import (
    PATH,
    batch_options,
    expect_checkpoints,
    length_options,
    list_option,
    overwrite_option,
    precision_options,
    quiet_fairseq,
)
from fairseq_mtmoe.core.errors import UserError

BENCHMARK_BATCH = 32
# Options that apply to benchmark tasks; the others are for translation.
BENCHMARK_OPTIONS = ("data", "models", "outs", "subset", "batch_size", "max_tokens", "fp16", "cpu")


@click.command("evaluate")
@click.argument("data", metavar="DATA")
@click.option(
    "--path",
    "models",
    multiple=True,
    required=True,
    metavar="FILE[:FILE…]",
    help="Checkpoint; join several with colons for an ensemble. Repeatable: each is evaluated.",
)
@click.option(
    "--subset",
    "--gen-subset",
    default="test",
    help="Subset of DATA to score; by default test, or valid, "
    "which has labels, for benchmark tasks.",
)
@list_option(
    "--lang-pairs",
    metavar="A-B,…",
    help="Pairs to evaluate; by default the pairs of DATA that the model was trained on.",
)
@click.option(
    "--out",
    "outs",
    multiple=True,
    type=PATH,
    help="Folder for the results, one for each --path; by default scores/CHECKPOINT-SUBSET beside "
    "the checkpoint.",
)
@click.option(
    "--tiers",
    metavar="NAME|FILE",
    help="Recipe, or file such as tiers.json, with tiers: groups of pairs or languages to average "
    "over, such as low-resource ones; by default DATA's tiers.json, else tiers by training size.",
)
@click.option(
    "--spm",
    type=PATH,
    metavar="FILE",
    help="Also compute spBLEU with this SentencePiece model, such as that of Flores-200.",
)
@click.option(
    "--comet",
    type=PATH,
    metavar="FILE",
    help="Also compute COMET with this checkpoint (…/model.ckpt); needs unbabel-comet.",
)
@click.option("--beam", type=click.IntRange(1), default=5, help="Beam size.")
@length_options
@batch_options
@click.option(
    "--post-process",
    metavar="NAME",
    help="Subword segmentation to undo: sentencepiece, subword_nmt or none; by default detected "
    "from DATA.",
)
@click.option(
    "--references",
    type=click.Choice(["text", "fairseq"]),
    default="text",
    help="text: compare with the text in DATA/raw, if it exists. fairseq: compare as "
    "fairseq-generate does: binarized words, <unk> for unknown ones, and no sentences too long for "
    "the model.",
)
@click.option(
    "--base-evaluation",
    type=click.Choice(["prices", "greedy"]),
    help="Routing of BASE layers (mtmoe options base_moe); by default as in the checkpoint.",
)
@overwrite_option
@precision_options
@quiet_fairseq()
@click.pass_context
def command(
    ctx: click.Context, /, data: str, models: tuple[str, ...], subset: str,
    outs: tuple[Path, ...], overwrite: bool, **settings: Any,
) -> None:  # fmt: skip
    """Translate the test set of every language pair of DATA and score it.

    Task settings are taken from the checkpoint. Prints a table, and writes scores.json, scores.md,
    scores.tex and the compared texts, en-de.hyp and en-de.ref, to the output folder. Existing
    scores of the same settings are shown again; an interrupted evaluation continues with the
    remaining pairs.

    BLEU equals that of sacrebleu on the two text files; with --references fairseq it equals that of
    fairseq-generate --scoring sacrebleu. Additional references are read from
    DATA/raw/test.en-de.de.1, .2 and so on. A sentence that is too long for the model gets an empty
    translation.

    For a checkpoint of --task glue or text_to_text, DATA is the benchmarks' folder. Each task's own
    metric is printed and written, as by fairseq-validate --results-path; options for translation
    are refused.

    \b
    mtmoe evaluate DATA --path run/checkpoint_best.pt --tiers wmt15
    mtmoe evaluate DATA --path a.pt --path b.pt --out results/a --out results/b
    mtmoe evaluate GLUE_DIR --path rte/checkpoint_best.pt --batch-size 64
    """
    if outs and len(outs) != len(models):
        raise UserError(
            f"`--out` is given {len(outs)} times, and --path {len(models)} times: give one --out "
            "for each --path, or none."
        )
    expect_checkpoints(*models)
    benchmark = _benchmark_of(models)
    if benchmark is not None:
        _evaluate_benchmark(benchmark, ctx)
        return
    from fairseq_mtmoe.cli._evaluating import evaluate

    folders = _result_folders(models, subset, outs)
    evaluate(data, folders, subset, overwrite, settings)


def _benchmark_of(models: Sequence[str]) -> str | None:
    """Return the benchmark task of all checkpoints, `glue` or `text_to_text`.

    None for translation.
    """
    from fairseq_mtmoe.checkpoints.file_io import peek
    from fairseq_mtmoe.checkpoints.rebuild import plain
    from fairseq_mtmoe.translation.decode.stored import OF_BENCHMARKS

    names = set()
    for model in models:
        cfg = plain((peek(model.split(":")[0]) or {}).get("cfg"))
        names.add(plain(cfg.get("task")).get("_name", ""))
    if not names & set(OF_BENCHMARKS):
        return None
    if len(names) > 1:
        raise UserError(f"`--path` gives checkpoints of several tasks: {', '.join(models)}.")
    return str(names.pop())


def _evaluate_benchmark(task: str, ctx: click.Context) -> None:
    """Score each checkpoint on its tasks, print a table, and write the scores."""
    for parameter in ctx.command.params:
        is_given = ctx.get_parameter_source(str(parameter.name)) is not ParameterSource.DEFAULT
        if is_given and parameter.name not in BENCHMARK_OPTIONS:
            raise UserError(
                f"`{parameter.opts[0]}` cannot be combined with checkpoints of `--task {task}`, "
                "which are scored as in `fairseq-validate`."
            )
    options = ctx.params
    for model in options["models"]:
        if ":" in model:
            raise UserError(f"`--path` {model} is an ensemble, which `--task {task}` cannot score.")
    subset = options["subset"]
    if ctx.get_parameter_source("subset") is ParameterSource.DEFAULT:
        subset = "valid"  # which has labels
    folders = _result_folders(options["models"], subset, options["outs"])
    for out, model in folders.items():
        _validate(task, model, out, subset, options)


def _result_folders(models: Sequence[str], subset: str, outs: Sequence[Path]) -> dict[Path, str]:
    """Return each model by its output folder, given or beside its first checkpoint.

    Raises:
        UserError: two are the same.
    """
    folders = list(outs)
    if not outs:
        for model in models:
            path = Path(model.split(":")[0])
            folders.append(path.parent / "scores" / f"{path.stem}-{subset}")
    if len(set(map(os.path.realpath, folders))) < len(folders):
        raise UserError(f"`--out` must differ for each --path: {', '.join(map(str, folders))}.")
    return dict(zip(folders, models, strict=True))


def _validate(task: str, model: str, out: Path, subset: str, options: Mapping[str, Any]) -> None:
    """Run `fairseq-validate` in this process, with the same options."""
    from fairseq import options as fairseq_options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq_cli import validate

    arguments = [options["data"], "--task", task, "--path", model, "--valid-subset", subset]
    arguments += ["--results-path", str(out), "--distributed-world-size", "1"]
    if options["max_tokens"]:
        arguments += ["--max-tokens", str(options["max_tokens"])]
    if options["batch_size"] or not options["max_tokens"]:
        arguments += ["--batch-size", str(options["batch_size"] or BENCHMARK_BATCH)]
    arguments += [f"--{name}" for name in ("fp16", "cpu") if options[name]]
    parser = fairseq_options.get_validation_parser()
    parsed = fairseq_options.parse_args_and_arch(parser, arguments)
    parser = fairseq_options.get_validation_parser()
    named = fairseq_options.parse_args_and_arch(parser, arguments, suppress_defaults=True)
    validate.main(convert_namespace_to_omegaconf(parsed), override_args=named)
