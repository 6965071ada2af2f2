"""`mtmoe prepare`: data directories for fairseq from corpora, gettext catalogs or plain text."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from fairseq_mtmoe.cli._shared import PATH, list_option, split_names
from fairseq_mtmoe.cli._vocabulary import given_by_model
from fairseq_mtmoe.data.corpora.recipes.schema import (
    CODE,
    LARGEST_SIZE,
    LEAST_COVERAGE,
    OF_TRAINED,
    SIZE_RULE,
    BuildOptions,
    HeldOut,
)
from fairseq_mtmoe.errors import UserError, flag, raise_invalid

if TYPE_CHECKING:
    from fairseq_mtmoe.data.corpora.recipes.recipe import Recipe
    from fairseq_mtmoe.data.corpora.vocabulary.pieces import GivenVocabulary

DEFAULT_PACKAGES = ("pycountry", "django", "sphinx")

command = click.Group("prepare", help="Make a data directory that fairseq-train reads.")
_DEFAULTS = BuildOptions()

_vocabulary_option = click.option(
    "--vocabulary-from", type=PATH, metavar="DATA",
    help="Use the vocabulary of this data directory instead of a new one, for a model that was trained on it.",
)  # fmt: skip
_vocabulary_of_option = click.option(
    "--vocabulary-of", type=PATH, metavar="MODEL",
    help="Use the vocabulary and language codes of this translator: a file of `mtmoe import-hf` or `mtmoe extend`, or "
    "a checkpoint. Start training from it with --init-model, or, if it has experts, --finetune-from-model.",
)  # fmt: skip
_codes_option = list_option(
    "--codes", metavar="LANG=CODE[,LANG=CODE…]",
    help="Codes of the text's languages in that translator, such as sw=swh_Latn.  [default: by BCP 47]",
)  # fmt: skip
_allow_unequal_option = click.option(
    "--allow-unequal", is_flag=True,
    help="Accept two training files of unequal length and read as many lines as the shorter one has. Without this "
    "option they are an error: after a missing line all sentence pairs are shifted.",
)  # fmt: skip


# ---- a recipe's corpora ----


@command.command("corpora")
@click.argument("raw", type=PATH)
@click.argument("data", type=PATH)
@click.option("--recipe", "recipe_name", required=True,
              help="Recipe: wmt15, ml50, catalogs, folder, or a file (docs/reference/recipes.md). A file may take test "
              "sets from flores200 and ntrex.")  # fmt: skip
@click.option("--vocab-size", type=click.IntRange(8, LARGEST_SIZE),
              help=f"Size of the vocabulary, with `--recipe folder`.  [default: {SIZE_RULE}]")  # fmt: skip
@click.option("--character-coverage", type=float,
              help=f"Share of the text's characters in the vocabulary, from {LEAST_COVERAGE} to 1, with `--recipe "
              "folder`.  [default: 0.9995]")  # fmt: skip
@click.option("--held-out", type=click.IntRange(1),
              help="Sentence pairs to take from the training text for validation, and as many for test, if a language "
              "pair has no such files; with `--recipe folder`.  [default: 1000]")  # fmt: skip
@click.option("--workers", type=click.IntRange(1), help="Processes that clean and encode.  [default: one per core]")
@click.option("--scheduler", metavar="ADDRESS", help="Address of a Dask cluster to use instead: tcp://host:8786.")
@_vocabulary_option
@_vocabulary_of_option
@_codes_option
@click.option("--on-bad-line", type=click.Choice(["stop", "drop", "salvage"]), default="drop", show_default=True,
              help="Handling of training lines that cannot be read as pairs. stop: fail. drop: leave them out and list "
              "them in DATA/bad_lines.tsv, but fail at truncated or damaged files. salvage: also keep the part before "
              "the damage. Errors in validation and test sets always fail.")  # fmt: skip
@_allow_unequal_option
@click.option("--skip-missing", is_flag=True, help="Leave out corpora whose files are missing below RAW.")
@click.option("--overwrite", is_flag=True, help="Replace DATA if it was made from another input; only steps whose "
              "input changed are repeated.")  # fmt: skip
def corpora_command(
    raw: Path, data: Path, recipe_name: str, workers: int | None, scheduler: str | None, vocabulary_from: Path | None,
    vocabulary_of: Path | None, codes: Sequence[str], on_bad_line: Any, allow_unequal: bool, skip_missing: bool,
    overwrite: bool, **settings: Any,
) -> None:  # fmt: skip
    """Make DATA from a recipe's corpora in the folder RAW: read, clean, split, train a vocabulary, binarize, shard.

    Finished steps and a log are kept in .DATA.work beside DATA: run an interrupted command again to continue it. With
    other corpora or another recipe, --overwrite repeats the steps that depend on them. Remove .DATA.work once DATA is
    as you want it.
    """
    if not raw.is_dir():
        raise UserError(f"`{raw}` must be the folder RAW with the recipe's corpora, but is no folder.")
    if scheduler is not None and workers is not None:
        raise_invalid("--workers", "absent with `--scheduler`, which has its own workers", workers)
    from fairseq_mtmoe.data.corpora.recipes.recipe import load_recipe

    recipe = _with_settings(load_recipe(recipe_name), recipe_name, vocabulary_from or vocabulary_of, **settings)
    given_vocabulary = _given(vocabulary_from, vocabulary_of, codes)
    from fairseq_mtmoe.cli import _preparing as preparing

    if skip_missing:
        recipe = preparing.without_missing(recipe, raw)
    preparing.prepare_corpora(
        raw, data, recipe, given_vocabulary, workers, scheduler, on_bad_line, allow_unequal, overwrite
    )


def _with_settings(
    recipe: Recipe, name: str, vocabulary_from: Path | None, vocab_size: int | None, character_coverage: float | None,
    held_out: int | None,
) -> Recipe:  # fmt: skip
    """Return the recipe with the command line's values in place of its defaults."""
    vocabulary = {"vocab-size": vocab_size, "character-coverage": character_coverage}
    for option, value in {**vocabulary, "held-out": held_out}.items():
        if value is not None and name != "folder":
            rule = "absent with a recipe that sets it: only `--recipe folder` takes it"
            raise_invalid(f"--{option}", rule, value)
        if value is not None and vocabulary_from is not None and option in vocabulary:
            raise_invalid(f"--{option}", "absent with `--vocabulary-from` or `--vocabulary-of`", value)
    coverage = recipe.vocabulary.character_coverage if character_coverage is None else character_coverage
    if not LEAST_COVERAGE <= coverage <= 1:
        raise_invalid("--character-coverage", f"from {LEAST_COVERAGE} to 1", coverage)
    size = vocab_size or recipe.vocabulary.size
    recipe = replace(recipe, vocabulary=replace(recipe.vocabulary, size=size, character_coverage=coverage))
    return recipe if held_out is None else replace(recipe, held_out=HeldOut(held_out, held_out))


# ---- text that is already split, and catalogs ----


def _build_options(function: Any) -> Any:
    """Add the options that `catalogs` and `text` share."""
    options = {
        "--vocab-size": "Size of the vocabulary that all languages share.",
        "--character-coverage": "Share of the text's characters in the vocabulary.",
        "--temperature": "Sampling temperature of the text for SentencePiece: 1 samples by size, higher values favour "
        "small languages.",
        "--seed": "Random seed.",
        "--shards": "Number of data directories (shard0, shard1, …) over which training pairs are distributed.",
    }
    for name, text in reversed(options.items()):
        default = getattr(_DEFAULTS, name[2:].replace("-", "_"))
        function = click.option(name, default=default, show_default=True, help=text)(function)
    overwrite = click.option("--overwrite", is_flag=True, help="Replace OUT if it was made from another input.")
    return overwrite(_vocabulary_option(_vocabulary_of_option(_codes_option(function))))


@command.command("catalogs")
@click.argument("out", type=PATH)
@click.option(
    "--packages", multiple=True, help=f"Installed packages to read, by comma.  [default: {','.join(DEFAULT_PACKAGES)}]"
)
@click.option("--folder", "folders", multiple=True, type=PATH, help="Folder to read instead; repeatable.")
@list_option("--langs", help="Target languages, by comma.  [default: all that are large enough]")
@click.option("--max-langs", type=click.IntRange(1), help="Number of languages to keep, evenly spaced by size.")
@click.option("--valid-size", default=100, show_default=True, help="Validation messages per language.")
@click.option("--test-size", default=200, show_default=True, help="Test messages per language.")
@_build_options
def catalogs_command(
    out: Path, packages: tuple[str, ...], folders: tuple[Path, ...], langs: tuple[str, ...], max_langs: int | None,
    valid_size: int, test_size: int, overwrite: bool, **build_options: Any,
) -> None:  # fmt: skip
    """Make OUT from human translations in gettext catalogs, English to many languages.

    Catalogs are read from installed packages, from folders such as /usr/share/locale, or from both if both are given.
    Run an interrupted command again to continue it: finished steps are in .OUT.work until OUT is complete.
    """
    given_vocabulary = _given_vocabulary(build_options)
    options = BuildOptions(**build_options)
    sizes = {"valid": valid_size, "test": test_size}
    for split, size in sizes.items():
        if size < 1:
            raise_invalid(f"--{split}-size", "at least 1", size)
    default = () if folders else DEFAULT_PACKAGES
    chosen, wanted = split_names(",".join(packages)) if packages else default, list(langs)
    from fairseq_mtmoe.cli import _preparing as preparing

    preparing.prepare_catalogs(out, chosen, folders, wanted, max_langs, sizes, options, given_vocabulary, overwrite)


@command.command("text")
@click.argument("raw", type=PATH)
@click.argument("out", type=PATH)
@click.option("--tiers", "tiers_file", type=PATH, help='File such as {"high": ["de"], "low": ["et"]}.  '
              "[default: RAW/tiers.json if there is one, else by size]")  # fmt: skip
@_allow_unequal_option
@_build_options
def text_command(
    raw: Path, out: Path, tiers_file: Path | None, allow_unequal: bool, overwrite: bool, **build_options: Any
) -> None:
    """Make OUT from plain text in the folder RAW that is already split: {train,valid,test}.en-xx.{en,xx}.

    One sentence per line, UTF-8; lines end in line feeds. Control and invisible characters are removed, also from
    validation and test files; OUT's report.md counts them. Run an interrupted command again to continue it: finished
    steps are in .OUT.work until OUT is complete.
    """
    if not raw.is_dir():
        raise UserError(f"`{raw}` must be a folder of text files such as `train.en-de.de`, but is no folder.")
    given_vocabulary = _given_vocabulary(build_options)
    options = BuildOptions(**build_options)
    from fairseq_mtmoe.cli import _preparing as preparing

    preparing.prepare_text(raw, out, tiers_file, allow_unequal, options, given_vocabulary, overwrite)


def _given_vocabulary(build_options: dict[str, Any]) -> AbstractContextManager[GivenVocabulary | None]:
    """Pop the options of a given vocabulary (UserError: options of a trained one are also given)."""
    folder, model, codes = (build_options.pop(name) for name in ("vocabulary_from", "vocabulary_of", "codes"))
    for name in OF_TRAINED if folder or model else ():
        if click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE:
            rule = "absent with `--vocabulary-from` or `--vocabulary-of`"
            raise_invalid(flag(name), rule, build_options[name])
    return _given(folder, model, codes)


def _given(
    folder: Path | None, model: Path | None, codes: Sequence[str]
) -> AbstractContextManager[GivenVocabulary | None]:
    """Return the vocabulary of `--vocabulary-from` or `--vocabulary-of`, to be entered; None without."""
    if folder is not None and model is not None:
        raise_invalid("--vocabulary-from", "absent with `--vocabulary-of`", str(folder))
    if codes and model is None:
        raise_invalid("--codes", "absent without `--vocabulary-of`", ",".join(codes))
    chosen = {lang: code for lang, _, code in (entry.partition("=") for entry in codes)}
    if not all(map(CODE.fullmatch, chosen)) or not all(chosen.values()):
        raise_invalid("--codes", "a list such as en=eng_Latn,sw=swh_Latn", ",".join(codes))
    if model is not None:
        return given_by_model(model, chosen)
    if folder is None:
        return nullcontext()
    from fairseq_mtmoe.data.corpora.vocabulary.pieces import vocabulary_of_data

    return nullcontext(vocabulary_of_data(folder))
