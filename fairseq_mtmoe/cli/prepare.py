"""`mtmoe prepare corpora`: a data directory for fairseq from a recipe's corpora."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairseq_mtmoe.cli._shared import PATH, list_option
from fairseq_mtmoe.cli._vocabulary import given_by_model
from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.corpora.recipes.codes import CODE
from fairseq_mtmoe.corpora.recipes.schema import LARGEST_SIZE, LEAST_COVERAGE, SIZE_RULE

if TYPE_CHECKING:
    from fairseq_mtmoe.corpora.recipes.recipe import Recipe
    from fairseq_mtmoe.corpora.vocabulary.pieces import GivenVocabulary


class _Group(click.Group):
    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args[0] not in self.commands:
            ctx.fail(f"`corpora` must stand before {args[0]}.")
        return super().resolve_command(ctx, args)


command = _Group(
    "prepare",
    options_metavar="",
    subcommand_metavar="corpora RAW DATA --recipe folder",
    help="Make a data directory that fairseq-train reads.",
)


@command.command("corpora", options_metavar="--recipe folder [OPTIONS]")
@click.argument("raw", type=PATH)
@click.argument("data", type=PATH)
@click.option(
    "--recipe",
    "recipe_name",
    help="Recipe: wmt15, ml50, catalogs, folder, or a file (docs/reference/recipes.md). A file may "
    "take test sets from flores200 and ntrex.",
)
@click.option(
    "--vocab-size",
    type=click.IntRange(8, LARGEST_SIZE),
    help=f"Size of the vocabulary, with `--recipe folder`.  [default: {SIZE_RULE}]",
)
@click.option(
    "--character-coverage",
    type=float,
    help=f"Share of the text's characters in the vocabulary, from {LEAST_COVERAGE} to 1, with "
    "`--recipe folder`.  [default: 0.9995]",
)
@click.option(
    "--held-out",
    type=click.IntRange(1),
    help="Sentence pairs to take from the training text for validation, and as many for test, if a "
    "language pair has no such files; with `--recipe folder`.  [default: 1000]",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="Number of processes that clean and encode text.  [default: one per core]",
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Address of a Dask cluster to use instead: tcp://host:8786.",
)
@click.option(
    "--vocabulary-from",
    type=PATH,
    metavar="DATA",
    help="Use the vocabulary of this data directory instead of a new one, for a model that was "
    "trained on it.",
)
@click.option(
    "--vocabulary-of",
    type=PATH,
    metavar="MODEL",
    help="Use the vocabulary and language codes of this translator: a file of `mtmoe import-hf` or "
    "`mtmoe extend`, or a checkpoint. Start training from it with --init-model, or, if it has "
    "experts, --finetune-from-model.",
)
@list_option(
    "--codes",
    metavar="LANG=CODE[,LANG=CODE…]",
    help="Codes of the text's languages in that translator, such as sw=swh_Latn.  [default: by BCP "
    "47]",
)
@click.option(
    "--skip-missing", is_flag=True, help="Leave out corpora whose files are missing below RAW."
)
@click.option(
    "--overwrite",
    is_flag=True,
    help="Replace DATA if it was made from another input; only stages whose "
    "input changed are repeated.",
)
def corpora_command(
    raw: Path,
    data: Path,
    recipe_name: str | None,
    workers: int | None,
    scheduler: str | None,
    vocabulary_from: Path | None,
    vocabulary_of: Path | None,
    codes: Sequence[str],
    skip_missing: bool,
    overwrite: bool,
    **settings: Any,
) -> None:
    """Make DATA from a recipe's corpora in the folder RAW.

    The stages read, clean and split text, train a vocabulary, binarize and shard. Finished stages
    are kept in .DATA.work beside DATA: run an interrupted command again to continue with the stage
    that it was in. With another recipe, --overwrite repeats the stages that depend on the change.
    Remove .DATA.work once DATA is as you want it.

    Training lines that cannot be read as pairs are left out and listed in DATA/bad_lines.tsv. A
    damaged file, or a line of a validation or test set that cannot be read, ends the command.
    """
    if recipe_name is None:
        raise UserError(
            "`mtmoe prepare corpora` requires `--recipe`: wmt15, ml50, catalogs, folder, or a file."
        )
    if not raw.is_dir():
        raise UserError(f"`{raw}` is not a folder; RAW must contain the recipe's corpora.")
    if scheduler is not None and workers is not None:
        raise UserError(
            "`--workers` cannot be combined with `--scheduler`, which has workers of its own."
        )
    from fairseq_mtmoe.corpora.recipes.from_yaml import load_recipe

    recipe = _with_settings(
        load_recipe(recipe_name), recipe_name, vocabulary_from or vocabulary_of, **settings
    )
    given_vocabulary = _given(vocabulary_from, vocabulary_of, codes)
    from fairseq_mtmoe.cli import _preparing as preparing

    if skip_missing:
        recipe = preparing.without_missing(recipe, raw)
    preparing.prepare_corpora(raw, data, recipe, given_vocabulary, workers, scheduler, overwrite)


def _with_settings(
    recipe: Recipe,
    name: str,
    given_vocabulary: Path | None,
    vocab_size: int | None,
    character_coverage: float | None,
    held_out: int | None,
) -> Recipe:
    """Return the recipe with the command line's values in place of its defaults."""
    vocabulary = {"vocab-size": vocab_size, "character-coverage": character_coverage}
    for option, value in {**vocabulary, "held-out": held_out}.items():
        if value is not None and name != "folder":
            raise UserError(
                f"`--{option}` requires `--recipe folder`; other recipes set it themselves."
            )
        if value is not None and given_vocabulary is not None and option in vocabulary:
            raise UserError(
                f"`--{option}` cannot be combined with `--vocabulary-from` or `--vocabulary-of`."
            )
    coverage = (
        recipe.vocabulary.character_coverage if character_coverage is None else character_coverage
    )
    if not LEAST_COVERAGE <= coverage <= 1:
        raise_invalid("--character-coverage", f"from {LEAST_COVERAGE} to 1", coverage)
    size = vocab_size or recipe.vocabulary.size
    recipe = replace(
        recipe, vocabulary=replace(recipe.vocabulary, size=size, character_coverage=coverage)
    )
    if held_out is None:
        return recipe
    return replace(recipe, held_out=replace(recipe.held_out, valid=held_out, test=held_out))


def _given(
    folder: Path | None, model: Path | None, codes: Sequence[str]
) -> AbstractContextManager[GivenVocabulary | None]:
    """Return a context that enters the options' vocabulary, or None without options."""
    if folder is not None and model is not None:
        raise UserError("`--vocabulary-from` cannot be combined with `--vocabulary-of`.")
    if codes and model is None:
        raise UserError("`--codes` requires `--vocabulary-of`.")
    chosen = {}
    for entry in codes:
        lang, _, code = entry.partition("=")
        chosen[lang] = code
    if not all(map(CODE.fullmatch, chosen)) or not all(chosen.values()):
        raise_invalid("--codes", "a list such as en=eng_Latn,sw=swh_Latn", ",".join(codes))
    if model is not None:
        return given_by_model(model, chosen)
    if folder is None:
        return nullcontext()
    from fairseq_mtmoe.corpora.vocabulary.pieces import vocabulary_of_data

    return nullcontext(vocabulary_of_data(folder))
