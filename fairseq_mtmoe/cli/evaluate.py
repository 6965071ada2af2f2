"""`mtmoe evaluate`: scores of every language pair, or of benchmark tasks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from fairseq_mtmoe.checkpoints import checksum
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
from fairseq_mtmoe.core.errors import UserError, raise_invalid

if TYPE_CHECKING:
    from fairseq_mtmoe.cli._evaluating import Measures, ScoreFolder
    from fairseq_mtmoe.report.score_files import Scores

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
    help="Recipe, or file such as tiers.json, with the tiers of pairs or "
    "languages; by default DATA's tiers.json, else tiers by training size.",
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
    outs: tuple[Path, ...], overwrite: bool,
    tiers: str | None, spm: Path | None, comet: Path | None, **settings: Any,
) -> None:  # fmt: skip
    """Translate the test set of every language pair of DATA and score it.

    Task settings are taken from the checkpoint. Prints a table, and writes scores.json, scores.md,
    scores.tex and the compared texts, en-de.hyp and en-de.ref, to the output folder. Existing
    scores of the same settings are shown again; an interrupted evaluation goes on with the pairs
    that it had not scored.

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
        raise_invalid(
            "--out", f"given once for each of the {len(models)} --path, or not at all", len(outs)
        )
    expect_checkpoints(*models)
    benchmark = _benchmark_of(models)
    if benchmark is not None:
        _evaluate_benchmark(benchmark, ctx)
        return
    from fairseq_mtmoe.cli import _evaluating as evaluating
    from fairseq_mtmoe.report.scores import PieceBleu

    # Loaded first, so that errors come before any translation.
    named = None if tiers is None else evaluating.NamedTiers(tiers)
    pieces = None if spm is None else PieceBleu(spm)
    measures = evaluating.Measures(named, pieces, comet, settings["cpu"])
    folders = _folders(data, models, subset, outs, {**settings, **measures.settings}, overwrite)
    finished = [folder.finished() for folder in folders]
    for model, folder, scores in zip(models, folders, finished, strict=True):
        if scores is None:
            scores = _evaluate(data, model.split(":"), subset, settings, measures, folder)
        else:
            click.echo(
                f"{folder.folder} has the scores of this model, data and settings already.",
                err=True,
            )
        evaluating.show(scores, folder.folder)


def _folders(
    data: str,
    models: Sequence[str],
    subset: str,
    outs: Sequence[Path],
    settings: Mapping[str, Any],
    overwrite: bool,
) -> list[ScoreFolder]:
    """Return the output folder of each model or ensemble."""
    from fairseq_mtmoe import __version__
    from fairseq_mtmoe.cli import _evaluating as evaluating
    from fairseq_mtmoe.translation.decode import test_sets
    from fairseq_mtmoe.translation.decode.decode import Decoding

    test_sets.sizes_of(data, subset)  # raises if DATA has no such subset
    named = ("references", "lang_pairs", "post_process", "tiers", "spm", "comet")
    decided = {
        "data": data,
        "subset": subset,
        **asdict(Decoding.of(settings)),
        **{name: settings[name] for name in named},
        "version": __version__,
        "data_sha256": evaluating.digest_of_data(test_sets.folders(data)[0], subset),
    }
    folders = []
    for model, folder in zip(models, _result_folders(models, subset, outs), strict=True):
        digests = [checksum.identity(path) for path in model.split(":")]
        files = {"checkpoint": model, "checkpoint_sha256": digests}
        folders.append(evaluating.ScoreFolder(folder, {**files, **decided}, overwrite))
    return folders


def _evaluate(
    data: str,
    checkpoints: Sequence[str],
    subset: str,
    settings: Mapping[str, Any],
    measures: Measures,
    folder: ScoreFolder,
) -> Scores:
    """Translate and score all pairs with one model or ensemble."""
    from fairseq_mtmoe.cli import _evaluating as evaluating
    from fairseq_mtmoe.translation.decode import test_sets
    from fairseq_mtmoe.translation.decode.decode import Decoding
    from fairseq_mtmoe.translation.decode.translator import Translator

    sizes = test_sets.sizes_of(data, subset)
    options = {name: settings[name] for name in ("post_process", "references")}
    translator = Translator(data, checkpoints, Decoding.of(settings), **options)
    chosen = test_sets.choose_pairs(sizes, translator.trained_pairs, settings["lang_pairs"])
    pairs = {pair: test_sets.size_of(pair, sizes) or 0 for pair in chosen}
    named = measures.tiers.of(chosen) if measures.tiers else {}
    tiers = test_sets.tiers_of(data, [*translator.trained_pairs, *chosen]) | named
    measures.load()
    return evaluating.translate_and_score(translator, pairs, subset, tiers, measures, folder)


def _benchmark_of(models: Sequence[str]) -> str | None:
    """Return the benchmark task of all checkpoints, `glue` or `text_to_text`.

    None for translation.
    """
    from fairseq_mtmoe.checkpoints.file_io import peek
    from fairseq_mtmoe.translation.decode.stored import OF_BENCHMARKS

    names = set()
    for model in models:
        cfg = (peek(model.split(":")[0]) or {}).get("cfg")
        task = cfg.get("task") if isinstance(cfg, Mapping) else None
        names.add(str(task.get("_name", "")) if isinstance(task, Mapping) else "")
    if not names & set(OF_BENCHMARKS):
        return None
    if len(names) > 1:
        raise_invalid("--path", "checkpoints of one task in one evaluation", ", ".join(models))
    return names.pop()


def _evaluate_benchmark(task: str, ctx: click.Context) -> None:
    """Score each checkpoint on its tasks, print a table, and write the scores."""
    for parameter in ctx.command.params:
        is_given = ctx.get_parameter_source(str(parameter.name)) is not ParameterSource.DEFAULT
        if is_given and parameter.name not in BENCHMARK_OPTIONS:
            raise UserError(
                f"`{parameter.opts[0]}` must be left out with checkpoints of `--task {task}`, "
                "which are scored as by `fairseq-validate`, but was given."
            )
    options = ctx.params
    for model in options["models"]:
        if ":" in model:
            raise_invalid("--path", f"one checkpoint with `--task {task}`, and no ensemble", model)
    is_default = ctx.get_parameter_source("subset") is ParameterSource.DEFAULT
    subset = "valid" if is_default else options["subset"]  # which has labels
    outs = _result_folders(options["models"], subset, options["outs"])
    for model, out in zip(options["models"], outs, strict=True):
        _validate(task, model, out, subset, options)


def _result_folders(models: Sequence[str], subset: str, outs: Sequence[Path]) -> Sequence[Path]:
    """Return each model's output folder, given or beside its first checkpoint.

    Raises:
        UserError: two are the same.
    """
    first = [Path(model.split(":")[0]) for model in models]
    folders = outs or [path.parent / "scores" / f"{path.stem}-{subset}" for path in first]
    if len({os.path.realpath(folder) for folder in folders}) < len(folders):
        raise_invalid("--out", "another folder for each --path", ", ".join(map(str, folders)))
    return folders


def _validate(task: str, model: str, out: Path, subset: str, options: Mapping[str, Any]) -> None:
    """Run `fairseq-validate` in this process, with the same options."""
    from fairseq import options as fairseq_options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq_cli import validate

    batches = {"--max-tokens": options["max_tokens"], "--batch-size": options["batch_size"]}
    if not any(batches.values()):
        batches["--batch-size"] = BENCHMARK_BATCH
    arguments = [options["data"], "--task", task, "--path", model, "--valid-subset", subset]
    arguments += ["--results-path", str(out), "--distributed-world-size", "1"]
    arguments += [text for name, value in batches.items() if value for text in (name, str(value))]
    arguments += [f"--{name}" for name in ("fp16", "cpu") if options[name]]
    parser = fairseq_options.get_validation_parser()
    parsed = fairseq_options.parse_args_and_arch(parser, arguments)
    parser = fairseq_options.get_validation_parser()
    named = fairseq_options.parse_args_and_arch(parser, arguments, suppress_defaults=True)
    validate.main(convert_namespace_to_omegaconf(parsed), override_args=named)
