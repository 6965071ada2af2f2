"""`mtmoe prepare corpora`: its options; the work is that of `data.corpora.engine`."""

from __future__ import annotations

import shlex
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from fairseq_mtmoe.cli._long_runs import cores, stopped_by_sigterm
from fairseq_mtmoe.cli._tables import show_table
from fairseq_mtmoe.data.corpora.recipes.schema import LARGEST_SIZE, LEAST_COVERAGE
from fairseq_mtmoe.data.corpora.vocabulary.training import SIZE_RULE
from fairseq_mtmoe.errors import UserError, raise_invalid

vocabulary_option = click.option(
    "--vocabulary-from",
    type=click.Path(path_type=Path),
    metavar="DATA",
    help="Take the vocabulary of this data directory, for a model that was trained on it, in the place of a new one.",
)
allow_unequal_option = click.option(
    "--allow-unequal",
    is_flag=True,
    help="Take the first lines of two training files of which one has more lines, as many as both have. Without it such"
    " files end the run: where a line is missing, all pairs after it are shifted.",
)


@click.command("corpora")
@click.argument("raw", type=click.Path(path_type=Path))
@click.argument("data", type=click.Path(path_type=Path))
@click.option(
    "--recipe",
    required=True,
    help="wmt15, ml50, catalogs or folder, or a file (docs/recipes.md): what DATA is made of.",
)
@click.option(
    "--vocab-size",
    type=click.IntRange(8, LARGEST_SIZE),
    help=f"Pieces of the vocabulary, with `--recipe folder`.  [default: {SIZE_RULE}]",
)
@click.option(
    "--character-coverage",
    type=float,
    help=f"Share of the characters, by frequency, that the vocabulary has, from {LEAST_COVERAGE} to 1, with `--recipe"
    " folder`.  [default: 0.9995]",
)
@click.option(
    "--held-out",
    type=click.IntRange(1),
    help="Pairs for each of validation and test that are taken from the training text of pairs without such files, with"
    " `--recipe folder`.  [default: 1000]",
)
@click.option("--workers", type=click.IntRange(1), help="Processes that clean and encode.  [default: one per core]")
@click.option("--scheduler", metavar="ADDRESS", help="Of a Dask cluster that does so instead: tcp://host:8786.")
@vocabulary_option
@click.option(
    "--on-bad-line",
    type=click.Choice(["stop", "drop", "salvage"]),
    default="drop",
    show_default=True,
    help="What to do about training lines that cannot be read as pairs: end the run, or leave them out and list them in"
    " DATA/bad_lines.tsv. A file that is cut short or damaged ends the run, too, unless what is before that is to be"
    " salvaged. Validation and test sets are read whole, or end the run.",
)
@allow_unequal_option
@click.option("--skip-missing", is_flag=True, help="Leave out the corpora whose files are not below RAW.")
@click.option(
    "--overwrite",
    is_flag=True,
    help="Replace DATA although it was made from something else; what that leaves as it is, is not done again.",
)
def corpora_command(
    raw: Path,
    data: Path,
    recipe: str,
    vocab_size: int | None,
    character_coverage: float | None,
    held_out: int | None,
    workers: int | None,
    scheduler: str | None,
    vocabulary_from: Path | None,
    on_bad_line: Any,
    allow_unequal: bool,
    skip_missing: bool,
    overwrite: bool,
) -> None:
    """Make DATA from the corpora of a recipe below the folder RAW: read, clean, split, vocabulary, binarize, shard.

    What was done stays in .DATA.work beside DATA, with a log. Run again after whatever end, it goes on from there. With
    other corpora or another recipe, --overwrite does again what depends on these. Once DATA is what you want, the
    folder can be removed.
    """
    if not raw.is_dir():
        raise UserError(f"`{raw}` must be the folder RAW with a recipe's corpora, but there is none.")
    if scheduler is not None and workers is not None:
        raise_invalid("--workers", "absent with `--scheduler`, which has workers of its own", workers)
    try:
        from fairseq_mtmoe.data.corpora.engine import workers as kinds
        from fairseq_mtmoe.data.corpora.engine.pipeline import prepare
        from fairseq_mtmoe.data.corpora.engine.reporting import pair_table
        from fairseq_mtmoe.data.corpora.page import shards_of, training_command
        from fairseq_mtmoe.data.corpora.recipes import load_recipe
        from fairseq_mtmoe.data.corpora.vocabulary.given import vocabulary_of
    except ModuleNotFoundError as error:
        raise UserError(f"`prepare corpora` needs {error.name}: pip install 'fairseq_mtmoe[corpora]'.") from error
    chosen = load_recipe(recipe)
    for option, value in (
        ("vocab-size", vocab_size),
        ("character-coverage", character_coverage),
        ("held-out", held_out),
    ):
        if value is not None and recipe != "folder":
            raise_invalid(
                f"--{option}", "absent with a recipe that says this itself: `--recipe folder` takes it", value
            )
        if value is not None and vocabulary_from is not None and option != "held-out":
            raise_invalid(f"--{option}", "absent with `--vocabulary-from`, whose vocabulary has its own", value)
    chosen = _with_settings(chosen, vocab_size, character_coverage, held_out)
    if skip_missing:
        chosen = _without_missing(chosen, raw)
    given = None if vocabulary_from is None else vocabulary_of(vocabulary_from)
    if given is not None:
        chosen = given.of_recipe(chosen)
    doing: AbstractContextManager[kinds.Workers]
    doing = kinds.cluster(scheduler) if scheduler else kinds.local_workers(workers or cores())
    with stopped_by_sigterm(), doing as hands:
        report = prepare(raw, data, chosen, on_bad_line, hands, overwrite, allow_unequal)
    if report is None:
        click.echo(f"{data} is up to date.")
        return
    show_table(*pair_table(report))
    _warn(report)
    click.echo(f"Wrote {data}; what was dropped and why: {data / 'report.html'}")
    place = shlex.quote(str(data))
    click.echo(f"To train on it:\n\n{training_command(report, place)}\n")
    if given is not None:
        click.echo(given.how_to_go_on(data))
    if shards := shards_of(report, place):
        click.echo(f"fairseq's own tasks are given {shards} in the place of the first {place}.")


def _with_settings(recipe: Any, size: int | None, coverage: float | None, held_out: int | None) -> Any:
    """The recipe with what the command line says in the place of defaults."""
    coverage = recipe.vocabulary.character_coverage if coverage is None else coverage
    if not LEAST_COVERAGE <= coverage <= 1:
        raise_invalid("--character-coverage", f"from {LEAST_COVERAGE} to 1", coverage)
    vocabulary = replace(recipe.vocabulary, size=size or recipe.vocabulary.size, character_coverage=coverage)
    drawn = recipe.held_out if held_out is None else replace(recipe.held_out, valid=held_out, test=held_out)
    return replace(recipe, vocabulary=vocabulary, held_out=drawn)


def _without_missing(recipe: Any, raw: Path) -> Any:
    found = recipe.found_in(raw)
    missing = [corpus.name for corpus in found.missing(raw)]
    if missing:
        click.echo(f"Left out, as their files are not below {raw}: {', '.join(missing)}.", err=True)
    return found.without(missing)


def _warn(report: dict[str, Any]) -> None:
    """Say what could not be read, and what the report's page begins with."""
    from fairseq_mtmoe.data.corpora.engine.bad_lines import LIST
    from fairseq_mtmoe.data.corpora.page import FEW, findings, visible
    from fairseq_mtmoe.data.corpora.readers import HARMLESS

    bad = sum((Counter(corpus["bad"]) for corpus in report["corpora"].values()), Counter[str]())
    faults = {reason: number for reason, number in sorted(bad.items()) if reason not in HARMLESS}
    if faults:
        said = ", ".join(f"{number:,} {reason}" if number else reason for reason, number in faults.items())
        click.echo(f"What could not be read is left out ({said}); {LIST} lists it.", err=True)
    found = findings(report)
    for sentence in found[:FEW]:
        click.echo(f"- {visible(sentence)}", err=True)
    if len(found) > FEW:
        click.echo(f"- … and {len(found) - FEW} more in report.html", err=True)
