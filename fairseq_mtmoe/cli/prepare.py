"""`mtmoe prepare`: data directories for fairseq from corpora, gettext catalogs or plain text."""

import os
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console

from fairseq_mtmoe.analysis.tables import Table
from fairseq_mtmoe.cli._shared import PATH, cores, names, say, split_names, stopped_by_sigterm
from fairseq_mtmoe.cli._vocabulary import given_by_model
from fairseq_mtmoe.data.corpora import build, data_dir, report
from fairseq_mtmoe.data.corpora.blocks import HARMLESS
from fairseq_mtmoe.data.corpora.build import BuildOptions
from fairseq_mtmoe.data.corpora.catalogs import find_catalogs
from fairseq_mtmoe.data.corpora.data_dir import FORMAT, content_hash, fingerprint, write_manifest, written_once
from fairseq_mtmoe.data.corpora.engine import pipeline
from fairseq_mtmoe.data.corpora.engine.jobs import LIST
from fairseq_mtmoe.data.corpora.engine.store import WorkFolder
from fairseq_mtmoe.data.corpora.engine.workers import Tools, cluster, local_workers, shown
from fairseq_mtmoe.data.corpora.harvest import describe_sources, harvest_and_split
from fairseq_mtmoe.data.corpora.page.figures import findings, shards_of, training_command
from fairseq_mtmoe.data.corpora.page.pages import FEW
from fairseq_mtmoe.data.corpora.recipes.recipe import Recipe, load_recipe
from fairseq_mtmoe.data.corpora.recipes.schema import CODE, LARGEST_SIZE, LEAST_COVERAGE, HeldOut
from fairseq_mtmoe.data.corpora.report import Report
from fairseq_mtmoe.data.corpora.vocabulary.pieces import OF_TRAINED, GivenVocabulary, vocabulary_of_data
from fairseq_mtmoe.data.corpora.vocabulary.training import SIZE_RULE
from fairseq_mtmoe.data.translation.tiers import FILE_NAME as TIERS_FILE
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.io.pages import visible

DEFAULT_PACKAGES = ("pycountry", "django", "sphinx")
BYTES_FOR_A_PROCESS = 4 << 20  # raw bytes per process: with fewer, starting a process costs more than it saves

command = click.Group("prepare", help="Make a data directory that fairseq-train reads.")
_DEFAULTS = BuildOptions()

_vocabulary_option = click.option(
    "--vocabulary-from", type=PATH, metavar="DATA",
    help="Use the vocabulary of this data directory instead of a new one, for a model that was trained on it.",
)  # fmt: skip
_vocabulary_of_option = click.option(
    "--vocabulary-of", type=PATH, metavar="MODEL",
    help="Use the vocabulary and language codes of this translator: a file of `mtmoe import-hf` or `mtmoe extend`, or "
    "a checkpoint. Start training from it with --init-model.",
)  # fmt: skip
_codes_option = click.option(
    "--codes", callback=names, metavar="LANG=CODE[,LANG=CODE…]",
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
    recipe = _with_settings(load_recipe(recipe_name), recipe_name, vocabulary_from or vocabulary_of, **settings)
    if skip_missing:
        recipe = _without_missing(recipe, raw)
    with _given(vocabulary_from, vocabulary_of, codes) as given:
        recipe = recipe if given is None else given.of_recipe(recipe if vocabulary_of is None else recipe.found_in(raw))
        with stopped_by_sigterm(), cluster(scheduler) if scheduler else local_workers(workers or cores()) as hands:
            made = pipeline.prepare(raw, data, recipe, on_bad_line, hands, overwrite, allow_unequal)
    if made is None:
        click.echo(f"{data} is up to date.")
        return
    head, rows = report.pair_table(made)
    Console().print(Table(head, rows[:-1], rows[-1:], texts=2, bold=False).on_screen())
    _warn(made)
    click.echo(f"Wrote {data}; dropped lines, with reasons: {data / 'report.html'}")
    quoted = shlex.quote(str(data))
    command_line = training_command(made, quoted, shlex.quote(str(vocabulary_of)))
    click.echo(f"To train on it:\n\n{command_line}\n")
    if vocabulary_of is None:
        click.echo(f"`mtmoe suggest {quoted}` prints a command for this amount of data and this machine.")
    else:
        click.echo("It trains all weights, and the model loses in its other languages: docs/how_to/pretrained.md.")
    if given is not None:
        click.echo(given.how_to_go_on(data))
    if shards := shards_of(made, quoted):
        click.echo(f"For fairseq's own tasks, replace the first {quoted} by {shards}.")


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


def _without_missing(recipe: Recipe, raw: Path) -> Recipe:
    found = recipe.found_in(raw)
    missing = [corpus.name for corpus in found.missing(raw)]
    if missing:
        click.echo(f"Left out, as files are missing below {raw}: {', '.join(missing)}.", err=True)
    return found.without(missing)


def _warn(made: Report) -> None:
    """Print the unreadable lines and the first findings of the report's page."""
    bad = sum((Counter(corpus["bad"]) for corpus in made["corpora"].values()), Counter[str]())
    faults = {reason: number for reason, number in sorted(bad.items()) if reason not in HARMLESS}
    if faults:
        said = ", ".join(f"{number:,} {reason}" if number else reason for reason, number in faults.items())
        click.echo(f"Unreadable lines are left out ({said}); {LIST} lists them.", err=True)
    found = [visible(sentence) for sentence in findings(made)]
    more = [f"… and {len(found) - FEW} more in report.html"] if len(found) > FEW else []
    for sentence in [*found[:FEW], *more]:
        click.echo(f"- {sentence}", err=True)


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
@click.option("--packages", help=f"Installed packages to read, by comma.  [default: {','.join(DEFAULT_PACKAGES)}]")
@click.option("--folder", "folders", multiple=True, type=PATH, help="Folder to read instead; repeatable.")
@click.option("--langs", callback=names, help="Target languages, by comma.  [default: all that are large enough]")
@click.option("--max-langs", type=click.IntRange(1), help="Number of languages to keep, evenly spaced by size.")
@click.option("--valid-size", default=100, show_default=True, help="Validation messages per language.")
@click.option("--test-size", default=200, show_default=True, help="Test messages per language.")
@_build_options
def catalogs_command(
    out: Path, packages: str | None, folders: tuple[Path, ...], langs: tuple[str, ...], max_langs: int | None,
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
    chosen, wanted = default if packages is None else split_names(packages), list(langs)
    catalogs = find_catalogs(list(chosen), folders, wanted)
    hashes = [content_hash(catalog.path) for catalog in catalogs]

    def fill(folder: Path, tools: Tools, given: GivenVocabulary | None) -> Report:
        corpora, split = harvest_and_split(tools, catalogs, hashes, sizes, options.seed, wanted, max_langs)
        pairs = build.build(folder, corpora, {}, options, tools, given, split["dropped"])["pairs"]
        sources = describe_sources(catalogs, split["damaged"])
        return {"pairs": pairs, "sources": sources, "left_out": split["left_out"]}

    files = [(one.source, f"{one.source}/{one.name}", one.path, sha) for one, sha in zip(catalogs, hashes, strict=True)]
    further = {**sizes, "langs": wanted, "max_langs": max_langs}
    with given_vocabulary as given:
        _write(out, "catalogs", options, further, files, fill, overwrite, given)


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
    given_vocabulary = _given_vocabulary(build_options)
    options = BuildOptions(**build_options)
    found = build.find_text_files(raw)
    files = [path for pair in found.values() for sides in pair.values() for path in sides]
    if tiers_file is None and os.path.lexists(raw / TIERS_FILE):
        tiers_file = raw / TIERS_FILE
    named_tiers = {} if tiers_file is None else build.read_ranked_tiers(tiers_file)
    hashes = {path: content_hash(path) for path in (*files, *([] if tiers_file is None else [tiers_file]))}
    corpora = build.corpora_of(found, hashes, allow_unequal)
    further: dict[str, object] = {"allow_unequal": True} if allow_unequal else {}
    if broken := [path.name for path in files if build.has_lone_carriage_return(path)]:
        further["files with carriage returns inside lines"] = broken  # 0.1.0 split lines at them

    def fill(folder: Path, tools: Tools, given: GivenVocabulary | None) -> Report:
        return build.build(folder, corpora, named_tiers, options, tools, given)

    inputs = [("tiers" if path == tiers_file else "text", path.name, path, sha) for path, sha in hashes.items()]
    with given_vocabulary as given:
        if given is not None:
            given.codes_for({lang for pair in found for lang in pair.split("-")})
        _write(out, "text", options, further, inputs, fill, overwrite, given)


def _given_vocabulary(build_options: dict[str, Any]) -> AbstractContextManager[GivenVocabulary | None]:
    """Pop the options of a given vocabulary (UserError: options of a trained one are also given)."""
    folder, model, codes = (build_options.pop(name) for name in ("vocabulary_from", "vocabulary_of", "codes"))
    for name in OF_TRAINED if folder or model else ():
        if click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE:
            rule = "absent with `--vocabulary-from` or `--vocabulary-of`"
            raise_invalid(f"--{name.replace('_', '-')}", rule, build_options[name])
    return _given(folder, model, codes)


@contextmanager
def _given(folder: Path | None, model: Path | None, codes: Sequence[str]) -> Iterator[GivenVocabulary | None]:
    """Yield the vocabulary of `--vocabulary-from` or `--vocabulary-of`; None without."""
    if folder is not None and model is not None:
        raise_invalid("--vocabulary-from", "absent with `--vocabulary-of`", str(folder))
    if codes and model is None:
        raise_invalid("--codes", "absent without `--vocabulary-of`", ",".join(codes))
    chosen = {lang: code for lang, _, code in (entry.partition("=") for entry in codes)}
    if not all(map(CODE.fullmatch, chosen)) or not all(chosen.values()):
        raise_invalid("--codes", "a list such as en=eng_Latn,sw=swh_Latn", ",".join(codes))
    if model is None:
        yield None if folder is None else vocabulary_of_data(folder)
        return
    with given_by_model(model, chosen) as given:
        yield given


def _write(
    out: Path, command: str, options: BuildOptions, further: Mapping[str, object],
    files: Sequence[tuple[str, str, Path, str]], fill: Callable[[Path, Tools, GivenVocabulary | None], Report],
    overwrite: bool, given: GivenVocabulary | None,
) -> None:  # fmt: skip
    """Fill `out` and show its report, unless it is up to date; finished steps are in `.OUT.work` until then.

    `options` and `further` are the settings; `files` the inputs: kind, name, path and hash.
    """
    deciding = asdict(options)
    if given is not None:
        deciding = {name: value for name, value in deciding.items() if name not in OF_TRAINED}
        deciding["known languages"] = list(given.langs)
        if given.translator is not None:
            deciding["codes"] = dict(sorted(given.codes.items()))
        files = [*files, *(("vocabulary", name, path, content_hash(path)) for name, path in given.files.items())]
    made_from = {"command": command, **deciding, **further}
    hashes = [(name, sha) for _, name, _, sha in files]
    key, *earlier = (fingerprint(made_from, hashes, form) for form in range(FORMAT, 0, -1))
    if data_dir.is_up_to_date(out, key, earlier):  # without writing anything beside it
        click.echo(f"{out} is up to date.")
        return
    raw: dict[str, dict[str, str]] = {}
    for source, name, _, sha in files:
        raw.setdefault(source, {})[name] = sha
    size = sum(path.stat().st_size for *_, path, _ in files if path.is_file())
    work = WorkFolder(out)
    with stopped_by_sigterm(), work.held():
        with written_once(out, key, made_from, overwrite, earlier) as folder:
            if folder is None:  # made by another run meanwhile
                return
            processes = min(cores(), 1 + size // BYTES_FOR_A_PROCESS)
            with shown(work.path / "log.txt") as progress, local_workers(processes) as workers:
                filled = fill(folder, Tools(work, workers, progress), given)
            made = {"command": command, "options": deciding, **filled}
            report.write(folder, made)
            write_manifest(folder, raw)
        shutil.rmtree(work.path)
    head, rows = report.text_table(made)
    Console().print(Table(head, rows[:-1], rows[-1:], texts=2, bold=False).on_screen())
    say(report.hints(made))
    click.echo(f"Wrote {out}; dropped lines, with reasons: {out / 'report.md'}")
    if given is not None:
        click.echo(given.how_to_go_on(out))
