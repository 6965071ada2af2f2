"""Work of `mtmoe prepare`: corpora, catalogs or text become a data directory, and its report is shown."""

import os
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from fairseq_mtmoe.cli._shared import cores, say, stopped_by_sigterm
from fairseq_mtmoe.data.corpora import build, data_dir, report
from fairseq_mtmoe.data.corpora.blocks import HARMLESS, OnBadLine
from fairseq_mtmoe.data.corpora.catalogs import find_catalogs
from fairseq_mtmoe.data.corpora.data_dir import FORMAT, content_hash, fingerprint, write_manifest, written_once
from fairseq_mtmoe.data.corpora.engine import pipeline
from fairseq_mtmoe.data.corpora.engine.jobs import LIST
from fairseq_mtmoe.data.corpora.engine.store import WorkFolder
from fairseq_mtmoe.data.corpora.engine.workers import Tools, cluster, local_workers, shown
from fairseq_mtmoe.data.corpora.harvest import describe_sources, harvest_and_split
from fairseq_mtmoe.data.corpora.page.figures import findings, shards_of, training_command
from fairseq_mtmoe.data.corpora.page.pages import FEW
from fairseq_mtmoe.data.corpora.recipes.recipe import Recipe
from fairseq_mtmoe.data.corpora.recipes.schema import OF_TRAINED, BuildOptions
from fairseq_mtmoe.data.corpora.report import Report
from fairseq_mtmoe.data.corpora.vocabulary.pieces import GivenVocabulary
from fairseq_mtmoe.data.translation.file_names import read_side_name
from fairseq_mtmoe.data.translation.tiers import FILE_NAME as TIERS_FILE
from fairseq_mtmoe.data.translation.tiers import TIER_RULE
from fairseq_mtmoe.errors import visible
from fairseq_mtmoe.io.tables import Table

BYTES_FOR_A_PROCESS = 4 << 20  # raw bytes per process: with fewer, starting a process costs more than it saves

_Given = AbstractContextManager[GivenVocabulary | None]


# ---- a recipe's corpora ----


def prepare_corpora(
    raw: Path, data: Path, recipe: Recipe, given_vocabulary: _Given, workers: int | None, scheduler: str | None,
    on_bad_line: OnBadLine, allow_unequal: bool, overwrite: bool,
) -> None:  # fmt: skip
    """Make `data` from the recipe's corpora below `raw`, and show the report's first figures and how to train."""
    with given_vocabulary as given:
        vocabulary_of = None if given is None else given.translator
        if given is not None:
            recipe = given.of_recipe(recipe if vocabulary_of is None else recipe.found_in(raw))
        _say_unread(recipe, raw)
        with stopped_by_sigterm(), cluster(scheduler) if scheduler else local_workers(workers or cores()) as hands:
            made = pipeline.prepare(raw, data, recipe, on_bad_line, hands, overwrite, allow_unequal)
    if made is None:
        click.echo(f"{data} is up to date.")
        return
    head, rows = report.pair_table(made)
    Console().print(Table(head, rows[:-1], rows[-1:], texts=2, bold=False).on_screen())
    click.echo(TIER_RULE)
    _warn(made)
    click.echo(f"Wrote {data}; dropped lines, with reasons: {data / 'report.html'}")
    quoted = shlex.quote(str(data))
    has_experts = given is not None and given.num_experts > 0
    if not has_experts:
        command_line = training_command(made, quoted, shlex.quote(str(vocabulary_of)))
        click.echo(f"To train on it:\n\n{command_line}\n")
    if vocabulary_of is None:
        click.echo(f"`mtmoe suggest {quoted}` prints a command for this amount of data and this machine.")
    elif not has_experts:
        click.echo("It trains all weights, and the model loses in its other languages: docs/how_to/pretrained.md.")
    if given is not None:
        click.echo(given.how_to_go_on(data))
    if shards := shards_of(made, quoted):
        click.echo(f"For fairseq's own tasks, replace the first {quoted} by {shards}.")


def _say_unread(recipe: Recipe, raw: Path) -> None:
    """Print which files look like a side of a pair's text, such as `dev.en-de.de`, where a recipe reads all pairs."""
    if not raw.is_dir() or not any(corpus.is_open for corpus in recipe.corpora):
        return
    read = {file for corpus in recipe.found_in(raw).corpora for file in corpus.files}
    sides = ((path.name, read_side_name(path.name)) for path in sorted(raw.iterdir()) if path.is_file())
    unread = [name for name, side in sides if name not in read and side and side.lang in (side.source, side.target)]
    if unread:
        more = f" and {len(unread) - FEW} more" if len(unread) > FEW else ""
        shown = visible(", ".join(unread[:FEW]))
        click.echo(f"Not read, as the recipe has no such files: {shown}{more}.", err=True)


def without_missing(recipe: Recipe, raw: Path) -> Recipe:
    """Return the recipe without corpora whose files are missing below `raw`, and print their names."""
    found = recipe.found_in(raw)
    missing = [corpus.name for corpus in found.missing(raw)]
    if missing:
        shown = visible(", ".join(missing))
        click.echo(f"Left out, as files are missing below {raw}: {shown}.", err=True)
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


def prepare_catalogs(
    out: Path, packages: Sequence[str], folders: Sequence[Path], wanted: list[str], max_langs: int | None,
    sizes: Mapping[str, int], options: BuildOptions, given_vocabulary: _Given, overwrite: bool,
) -> None:  # fmt: skip
    """Make `out` from the gettext catalogs of packages and folders; `sizes` are those of validation and test sets."""
    catalogs = find_catalogs(list(packages), folders, wanted)
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


def prepare_text(
    raw: Path, out: Path, tiers_file: Path | None, allow_unequal: bool, options: BuildOptions,
    given_vocabulary: _Given, overwrite: bool,
) -> None:  # fmt: skip
    """Make `out` from the text files below `raw`; without `tiers_file`, tiers are those of `raw` or by size."""
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
    click.echo(TIER_RULE)
    say(report.hints(made))
    click.echo(f"Wrote {out}; dropped lines, with reasons: {out / 'report.md'}")
    if given is not None:
        click.echo(given.how_to_go_on(out))
