"""`mtmoe evaluate`: BLEU, chrF++ and more for every language pair, or the metrics of benchmark tasks."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from rich.console import Console

from fairseq_mtmoe.checkpoints import checksum
from fairseq_mtmoe.cli._shared import PATH, list_option, of_batches, of_precision, quiet_fairseq, say
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.io.files import read_bytes, regular_file

if TYPE_CHECKING:
    from fairseq_mtmoe.analysis.score_files import Scores
    from fairseq_mtmoe.cli._evaluating import Measures, ScoreFolder

BENCHMARK_BATCH = 32
# Options that apply to benchmark tasks; the others are for translation.
BENCHMARK_OPTIONS = ("inputs", "models", "outs", "subset", "batch_size", "max_tokens", "fp16", "cpu")
# Options that apply to output of fairseq-generate; `cpu` is for COMET.
GENERATED_OPTIONS = (
    "inputs", "models", "outs", "subset", "tiers", "spm", "comet", "post_process", "from_generate", "overwrite", "cpu"
)  # fmt: skip


@click.command("evaluate")
@click.argument("inputs", nargs=-1, required=True, metavar="DATA")
@click.option("--path", "models", multiple=True, metavar="FILE[:FILE…]",
              help="Checkpoint; join several with colons for an ensemble. Repeatable: each is evaluated.")  # fmt: skip
@click.option("--subset", "--gen-subset", default="test", help="Subset of DATA to score; by default test, or valid, "
              "which has labels, for benchmark tasks.")  # fmt: skip
@list_option("--lang-pairs", metavar="A-B,…",
              help="Language pairs to evaluate; by default the pairs of DATA that the model was trained on. A pair "
              "without a test set is joined from two sets with the same third-language text: ha-zu from en-ha and "
              "en-zu.")  # fmt: skip
@click.option("--pivot", metavar="LANG", help="Also translate in two steps, through this language.")
@click.option("--pivot-path", metavar="FILE[:FILE…]", help="Checkpoint for the second step; by default --path.")
@click.option("--out", "outs", multiple=True, type=PATH,
              help="Folder for the results, one for each --path; by default scores/CHECKPOINT-SUBSET beside the "
              "checkpoint.")  # fmt: skip
@click.option("--tiers", metavar="NAME|FILE", help="Recipe, or file such as tiers.json, with the tiers of pairs or "
              "languages; by default DATA's tiers.json, else tiers by training size.")  # fmt: skip
@click.option("--spm", type=PATH, metavar="FILE",
              help="Also compute spBLEU with this SentencePiece model, such as that of Flores-200.")  # fmt: skip
@click.option("--comet", type=PATH, metavar="FILE",
              help="Also compute COMET with this checkpoint (…/model.ckpt); needs unbabel-comet.")  # fmt: skip
@click.option("--beam", type=click.IntRange(1), default=5, show_default=True, help="Beam size.")
@click.option("--lenpen", type=float, default=1.0, show_default=True, help="Length penalty: > 1 favours longer output.")
@click.option("--max-len-a", type=float, default=0.0, show_default=True,
              help="Largest length of output: a·source + b tokens, by each sentence's own source length. In "
              "fairseq-generate and with --references fairseq, the longest source of the batch counts.")  # fmt: skip
@click.option("--max-len-b", type=int, default=200, show_default=True, help="See --max-len-a.")
@of_batches
@list_option("--langs", metavar="A,B,…",
              help="The model's languages, if its checkpoint does not list them.")  # fmt: skip
@click.option("--post-process", metavar="NAME",
              help="Subword segmentation to undo: sentencepiece, subword_nmt or none; by default detected from "
              "DATA.")  # fmt: skip
@click.option("--references", type=click.Choice(["text", "fairseq"]), default="text", show_default=True,
              help="text: compare with the text in DATA/raw, if it exists. fairseq: compare as fairseq-generate does: "
              "binarized words, <unk> for unknown ones, no sentences too long for the model, and batches of one "
              "language pair.")  # fmt: skip
@click.option("--base-evaluation", type=click.Choice(["prices", "greedy"]),
              help="Routing of BASE layers (mtmoe options base_moe); by default as in the checkpoint.")  # fmt: skip
@click.option("--from-generate", is_flag=True,
              help="Score output of fairseq-generate: instead of DATA give its files, [PAIR=]FILE[,FILE…]. PAIR= is "
              "needed if neither the folder nor the file alone is named like en-de. Several files are shards of one "
              "pair.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace scores of other settings in the output folder.")
@of_precision
@quiet_fairseq()
@click.pass_context
def command(
    ctx: click.Context, /, inputs: tuple[str, ...], models: tuple[str, ...], subset: str, outs: tuple[Path, ...],
    from_generate: bool, overwrite: bool, tiers: str | None, spm: Path | None, comet: Path | None, **settings: Any,
) -> None:  # fmt: skip
    """Translate the test set of every language pair of DATA and score it.

    Task settings, such as --langs, are taken from the checkpoint. Prints a table, and writes scores.json, scores.md,
    scores.tex and the compared texts, en-de.hyp and en-de.ref, to the output folder. Existing scores of the same
    settings are shown again; an interrupted evaluation is continued.

    BLEU equals that of sacrebleu on the two text files; with --references fairseq it equals that of fairseq-generate
    --scoring sacrebleu. Additional references are read from DATA/raw/test.en-de.de.1, .2 and so on. A sentence that is
    too long for the model gets an empty translation. With --pivot en, the row ha-en-zu is ha-zu in two steps.

    For a checkpoint of --task glue or text_to_text, DATA is the benchmarks' folder. Each task's own metric is printed
    and written, as by fairseq-validate --results-path; options for translation are refused.

    \b
    mtmoe evaluate DATA --path run/checkpoint_best.pt --tiers wmt15
    mtmoe evaluate DATA --path a.pt --path b.pt --out results/a --out results/b
    mtmoe evaluate DATA --path run/checkpoint_best.pt --lang-pairs ha-zu --pivot en
    mtmoe evaluate GLUE_DIR --path rte/checkpoint_best.pt --batch-size 64
    mtmoe evaluate --from-generate results/en-de/generate-test.txt --out results/stock
    """
    _expect_inputs(inputs, models, outs, from_generate, settings)
    if from_generate:
        _expect_options(ctx, GENERATED_OPTIONS, "`--from-generate`, which translates nothing")
    from fairseq_mtmoe import register

    register()
    benchmark = None if from_generate else _benchmark_of(models)
    if benchmark is not None:
        _evaluate_benchmark(benchmark, ctx)
        return
    from fairseq_mtmoe.analysis.scores import PieceBleu
    from fairseq_mtmoe.cli import _evaluating as evaluating
    from fairseq_mtmoe.evaluation.joined_test_sets import with_joined

    # Loaded first, so that errors come before any translation.
    named = None if tiers is None else evaluating.NamedTiers(tiers)
    measures = evaluating.Measures(named, None if spm is None else PieceBleu(spm), comet, settings["cpu"])
    if from_generate:
        _score_generated(inputs, outs[0], subset, settings["post_process"], measures, overwrite)
        return
    folders = _folders(inputs[0], models, subset, outs, {**settings, **measures.settings}, overwrite)
    found = [folder.finished() for folder in folders]
    with with_joined(inputs[0], subset, settings["lang_pairs"]) as (data, said):
        say(said, Console(stderr=True))
        for model, folder, scores in zip(models, folders, found, strict=True):
            if scores is None:
                scores = _evaluate(inputs[0], data, model.split(":"), subset, settings, measures, folder)
            else:
                click.echo(f"{folder.folder} has the scores of this model, data and settings already.", err=True)
            evaluating.show(scores, folder.folder)


def _expect_inputs(
    inputs: Sequence[str], models: Sequence[str], outs: Sequence[Path], from_generate: bool,
    settings: Mapping[str, Any],
) -> None:  # fmt: skip
    """Raise the `UserError` of files that are not there, and of options that exclude each other."""
    if settings["pivot_path"] is not None and settings["pivot"] is None:
        raise_invalid("--pivot-path", "absent without --pivot", settings["pivot_path"])
    if not from_generate:
        _expect_counts(inputs, models, outs)
        for path in [path for several in (*models, settings["pivot_path"]) for path in _files(several)]:
            regular_file(path, "a checkpoint file")
    elif models or len(outs) != 1:
        raise_invalid("--from-generate", "given with one --out and no --path", " ".join([*models, *map(str, outs)]))


def _expect_options(ctx: click.Context, known: Sequence[str], what: str) -> None:
    """Raise the `UserError` of a given option that is not `known`, and so does not apply to `what`."""
    for parameter in ctx.command.params:
        is_given = ctx.get_parameter_source(str(parameter.name)) is not ParameterSource.DEFAULT
        if is_given and parameter.name not in known:
            raise UserError(f"`{parameter.opts[0]}` must be left out with {what}, but was given.")


def _expect_counts(inputs: Sequence[str], models: Sequence[str], outs: Sequence[Path]) -> None:
    if len(inputs) != 1 or not models:
        raise_invalid("the command line", "one DATA and at least one --path", " ".join([*inputs, *models]))
    if outs and len(outs) != len(models):
        raise_invalid("--out", f"given once for each of the {len(models)} --path, or not at all", len(outs))


def _folders(
    data: str, models: Sequence[str], subset: str, outs: Sequence[Path], settings: Mapping[str, Any], overwrite: bool
) -> list[ScoreFolder]:
    """Return the output folder of each model or ensemble."""
    from fairseq_mtmoe import __version__
    from fairseq_mtmoe.cli import _evaluating as evaluating
    from fairseq_mtmoe.evaluation import test_sets
    from fairseq_mtmoe.evaluation.translator import Decoding

    test_sets.sizes_of(data, subset)  # raises if DATA has no such subset
    named = ("references", "lang_pairs", "langs", "post_process", "tiers", "spm", "comet")
    decided = {
        "data": data, "subset": subset, **asdict(Decoding.of(settings)), **{name: settings[name] for name in named},
        "version": __version__, "data_sha256": evaluating.digest_of_data(test_sets.folders(data)[0], subset),
    }  # fmt: skip
    if settings["pivot"] is not None:
        second = settings["pivot_path"]
        digests = [checksum.identity(path) for path in _files(second)]
        decided |= {"pivot": settings["pivot"], "pivot_checkpoint": second, "pivot_checkpoint_sha256": digests}
    found = []
    for model, folder in zip(models, _result_folders(models, subset, outs), strict=True):
        digests = [checksum.identity(path) for path in model.split(":")]
        own = {"checkpoint": model, "checkpoint_sha256": digests}
        found.append(evaluating.ScoreFolder(folder, {**own, **decided}, overwrite))
    return found


def _evaluate(
    given: str, data: str, checkpoints: Sequence[str], subset: str, settings: Mapping[str, Any], measures: Measures,
    folder: ScoreFolder,
) -> Scores:  # fmt: skip
    """Translate and score all pairs with one model or ensemble; `given` has the training data for `data`."""
    from fairseq_mtmoe.cli import _evaluating as evaluating
    from fairseq_mtmoe.evaluation import test_sets
    from fairseq_mtmoe.evaluation.pivot import Pivot
    from fairseq_mtmoe.evaluation.translator import Decoding, Translator

    sizes = test_sets.sizes_of(data, subset)
    how = {name: settings[name] for name in ("langs", "post_process", "references")}
    decoding = Decoding.of(settings)
    translator = Translator(data, checkpoints, decoding, **how)
    pairs = test_sets.choose_pairs(sizes, translator.trained_pairs, settings["lang_pairs"])
    pivot = None
    if settings["pivot"] is not None:
        second = _files(settings["pivot_path"])
        chosen = {pair: test_sets.size_of(pair, sizes) or 0 for pair in pairs}
        pivot = Pivot(settings["pivot"], checkpoints, second, chosen, data, decoding)
    named = measures.tiers.of(pairs) if measures.tiers else {}
    tiers = test_sets.tiers_of(given, [*translator.trained_pairs, *pairs]) | named
    measures.load()
    with closing(folder):
        results = evaluating.translate_and_score(translator, pairs, subset, tiers, measures, folder, pivot)
        return folder.write_scores(results)


def _files(path: str | None) -> list[str]:
    """Return an ensemble's checkpoints; none if there is no path."""
    return [] if path is None else path.split(":")


def _score_generated(
    arguments: Sequence[str], out: Path, subset: str, post_process: str | None, measures: Measures, overwrite: bool
) -> None:
    """Score output files of fairseq-generate; names such as `generate-valid.txt` tell the subset."""
    from fairseq_mtmoe import __version__
    from fairseq_mtmoe.cli import _evaluating as evaluating
    from fairseq_mtmoe.evaluation.generated import named_files, read_generated
    from fairseq_mtmoe.evaluation.translator import Translation

    files = named_files(arguments)
    paths = [path for of_pair in files.values() for path in of_pair]
    found = {pair: read_generated(of_pair, post_process) for pair, of_pair in files.items()}
    for file in dict.fromkeys(file for one in found.values() for file in one.unended):
        click.echo(f"{file} has no last line `Generate … with beam=…`: it may be incomplete.", err=True)
    references = "".join(f"{pair}\n{evaluating.as_file(one.references)}" for pair, one in sorted(found.items()))
    subsets = {name[1] for path in paths if (name := re.fullmatch(r"generate-(.+)\.txt", path.name))}
    settings = {
        "checkpoint": ",".join(map(str, paths)), "data": "",
        "subset": subsets.pop() if len(subsets) == 1 else subset, "references": "fairseq", "from_generate": True,
        "lang_pairs": list(files), "post_process": post_process, **measures.settings, "version": __version__,
        "checkpoint_sha256": [hashlib.sha256(read_bytes(path)).hexdigest() for path in paths],
        "data_sha256": hashlib.sha256(references.encode()).hexdigest(),
    }  # fmt: skip
    folder = evaluating.ScoreFolder(out, settings, overwrite)
    scores = folder.finished()
    if scores is None:
        tiers, results = measures.tiers.of(list(found)) if measures.tiers else {}, []
        measures.load()
        folder.begin()
        with closing(folder):
            for pair, one in found.items():
                names = ", ".join(path.name for path in files[pair])
                text = Translation(pair, one.hypotheses, one.references, names, one.altered, 0,
                                   numbers=range(len(one.hypotheses)), left_out=one.missing)  # fmt: skip
                results.append(measures.write(text, tiers.get(pair, ""), partial(list, one.sources), folder))
            scores = folder.write_scores(results)
    evaluating.show(scores, out)


def _benchmark_of(models: Sequence[str]) -> str | None:
    """Return the benchmark task of all checkpoints, `glue` or `text_to_text`; None for translation."""
    from fairseq_mtmoe.checkpoints.file_io import peek
    from fairseq_mtmoe.evaluation.stored import OF_BENCHMARKS

    found = {}
    for model in models:
        cfg = (peek(model.split(":")[0]) or {}).get("cfg")
        task = cfg.get("task") if isinstance(cfg, Mapping) else None
        found[model] = str(task.get("_name", "")) if isinstance(task, Mapping) else ""
    names = set(found.values())
    if not names & set(OF_BENCHMARKS):
        return None
    if len(names) > 1:
        shown = ", ".join(f"{model} ({name})" for model, name in found.items())
        raise_invalid("--path", "checkpoints of one task in one evaluation", shown)
    return names.pop()


def _evaluate_benchmark(task: str, ctx: click.Context) -> None:
    """Score each checkpoint on its training tasks, print a table, and write `scores.json` and `.md`."""
    given = ctx.params
    scored = f"checkpoints of `--task {task}`, which are scored as by `fairseq-validate`"
    _expect_options(ctx, BENCHMARK_OPTIONS, scored)
    for model in given["models"]:
        if ":" in model:
            raise_invalid("--path", f"one checkpoint with `--task {task}`, and no ensemble", model)
    is_default = ctx.get_parameter_source("subset") is ParameterSource.DEFAULT
    subset = "valid" if is_default else given["subset"]  # which has labels
    outs = _result_folders(given["models"], subset, given["outs"])
    for model, out in zip(given["models"], outs, strict=True):
        _validate(task, model, out, subset, given)


def _result_folders(models: Sequence[str], subset: str, outs: Sequence[Path]) -> Sequence[Path]:
    """Return each model's output folder, given or beside its first checkpoint (UserError: two are the same)."""
    first = [Path(model.split(":")[0]) for model in models]
    folders = outs or [path.parent / "scores" / f"{path.stem}-{subset}" for path in first]
    if len({os.path.realpath(folder) for folder in folders}) < len(folders):
        raise_invalid("--out", "another folder for each --path", ", ".join(map(str, folders)))
    return folders


def _validate(task: str, model: str, out: Path, subset: str, given: Mapping[str, Any]) -> None:
    """Run `fairseq-validate` in this process, with the same options."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq_cli import validate

    batches = {"--max-tokens": given["max_tokens"], "--batch-size": given["batch_size"]}
    if not any(batches.values()):
        batches["--batch-size"] = BENCHMARK_BATCH
    arguments = [given["inputs"][0], "--task", task, "--path", model, "--valid-subset", subset]
    arguments += ["--results-path", str(out), "--distributed-world-size", "1"]
    arguments += [text for name, value in batches.items() if value for text in (name, str(value))]
    arguments += [f"--{name}" for name in ("fp16", "cpu") if given[name]]
    parsed = options.parse_args_and_arch(options.get_validation_parser(), arguments)
    named = options.parse_args_and_arch(options.get_validation_parser(), arguments, suppress_defaults=True)
    validate.main(convert_namespace_to_omegaconf(parsed), override_args=named)
