"""Work of `mtmoe prepare corpora`: making a data directory and showing its report."""

import itertools
import shlex
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

import click
from rich.console import Console

from fairseq_mtmoe.cli._shared import cores
from fairseq_mtmoe.core.errors import nearest, visible
from fairseq_mtmoe.core.tiers import TIER_RULE
from fairseq_mtmoe.corpora.blocks import HARMLESS
from fairseq_mtmoe.corpora.engine.pipeline import prepare
from fairseq_mtmoe.corpora.engine.state import BAD_LINES
from fairseq_mtmoe.corpora.engine.workers import cluster, local_workers
from fairseq_mtmoe.corpora.findings import (
    findings,
    fine_tuning_command,
    pair_table,
    shards_of,
)
from fairseq_mtmoe.corpora.recipes.codes import PLAIN_CODES, is_known
from fairseq_mtmoe.corpora.recipes.recipe import Recipe
from fairseq_mtmoe.corpora.report import Report
from fairseq_mtmoe.corpora.vocabulary.pieces import GivenVocabulary
from fairseq_mtmoe.translation.data.file_names import read_side_name

FEW = 8  # files or warnings that are printed


def prepare_corpora(
    raw: Path,
    data: Path,
    recipe: Recipe,
    given_vocabulary: AbstractContextManager[GivenVocabulary | None],
    workers: int | None,
    scheduler: str | None,
    overwrite: bool,
) -> None:
    """Make `data` from the recipe's corpora below `raw`.

    Print the report's first figures, and how to train.
    """
    with given_vocabulary as vocabulary:
        vocabulary_of = None if vocabulary is None else vocabulary.translator
        if vocabulary is not None:
            recipe = vocabulary.of_recipe(recipe if vocabulary_of is None else recipe.found_in(raw))
        _say_unread(recipe, raw)
        _say_unknown(recipe.found_in(raw))
        with cluster(scheduler) if scheduler else local_workers(workers or cores()) as pool:
            made = prepare(raw, data, recipe, pool, overwrite)
    if made is None:
        click.echo(f"{data} is up to date.")
        return
    Console().print(pair_table(made).on_screen())
    click.echo(TIER_RULE)
    _warn(made)
    click.echo(f"Wrote {data}; dropped lines, with reasons: {data / 'report.html'}")
    quoted = shlex.quote(str(data))
    if vocabulary_of is None:
        # The script of the vocabulary's first directory is `train.sh`.
        script = "train.sh" if vocabulary is None else shlex.quote(f"train_{data.name}.sh")
        click.echo(f"To train on it: `mtmoe suggest {quoted} > {script}`, then `bash {script}`.")
    if vocabulary is not None:
        if vocabulary_of is not None and not vocabulary.num_experts:
            command_line = fine_tuning_command(quoted, shlex.quote(str(vocabulary_of)))
            click.echo(
                f"To train on it:\n\n{command_line}\n\nIt trains all weights, and the model loses "
                "in its other languages: docs/guides/new_language.md."
            )
        click.echo(vocabulary.how_to_go_on(data))
    if shards := shards_of(made, quoted):
        click.echo(f"For fairseq's own tasks, replace the first {quoted} by {shards}.")


def _say_unread(recipe: Recipe, raw: Path) -> None:
    """Print which files look like a side of a pair's text, such as `dev.en-de.de`.

    Only recipes that read all pairs need this.
    """
    if not raw.is_dir() or not any(corpus.is_open for corpus in recipe.corpora):
        return
    read = {file for corpus in recipe.found_in(raw).corpora for file in corpus.files}
    unread = []
    for path in sorted(filter(Path.is_file, raw.iterdir())):
        side = read_side_name(path.name.removesuffix(".gz"))
        if path.name not in read and side and side.lang in (side.source, side.target):
            unread.append(path.name)
    if unread:
        more = f" and {len(unread) - FEW} more" if len(unread) > FEW else ""
        shown = visible(", ".join(unread[:FEW]))
        click.echo(f"Not read, because the recipe has no such files: {shown}{more}.", err=True)


def _say_unknown(recipe: Recipe) -> None:
    """Print which language codes may be misspelt: ISO 639 has no such language."""
    langs = sorted({lang for pair in recipe.pairs for lang in pair.split("-")})
    unknown = list(itertools.filterfalse(is_known, langs))
    if unknown:
        similar = [f"{lang} (most similar: {nearest(lang, PLAIN_CODES)})" for lang in unknown]
        click.echo(
            f"ISO 639 has no language {', '.join(similar)}: if this is misspelt, correct the names "
            "of the files or the recipe; codes of your own may stay.",
            err=True,
        )


def without_missing(recipe: Recipe, raw: Path) -> Recipe:
    """Return the recipe without corpora whose files are missing; print their names."""
    resolved = recipe.found_in(raw)
    missing = [corpus.name for corpus in resolved.missing(raw)]
    if missing:
        shown = visible(", ".join(missing))
        click.echo(f"Left out, because files are missing below {raw}: {shown}.", err=True)
    return resolved.without(missing)


def _warn(made: Report) -> None:
    """Print the unreadable lines and the first findings of the report's page."""
    bad = sum((Counter(corpus["bad"]) for corpus in made["corpora"].values()), Counter[str]())
    del bad[HARMLESS]
    if bad:
        said = ", ".join(f"{number:,} {reason}" for reason, number in sorted(bad.items()))
        click.echo(f"Unreadable lines are left out ({said}); {BAD_LINES} lists them.", err=True)
    sentences = [visible(sentence) for sentence in findings(made)]
    more = [f"… and {len(sentences) - FEW} more in report.html"] if len(sentences) > FEW else []
    for sentence in [*sentences[:FEW], *more]:
        click.echo(f"- {sentence}", err=True)
