"""`mtmoe prepare`: data directories for fairseq, from corpora, gettext catalogs or plain text."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console

from fairseq_mtmoe.cli._long_runs import cores, stopped_by_sigterm
from fairseq_mtmoe.cli._prepare_corpora import allow_unequal_option, corpora_command, vocabulary_option
from fairseq_mtmoe.cli._tables import show_table
from fairseq_mtmoe.data.corpora.build import BuildOptions, Tools, build
from fairseq_mtmoe.data.corpora.catalogs import describe_sources, find_catalogs
from fairseq_mtmoe.data.corpora.data_dir import FORMAT, content_hash, fingerprint, is_up_to_date, write_once
from fairseq_mtmoe.data.corpora.engine.digests import write_manifest
from fairseq_mtmoe.data.corpora.engine.progress import shown
from fairseq_mtmoe.data.corpora.engine.store import WorkFolder
from fairseq_mtmoe.data.corpora.engine.workers import local_workers
from fairseq_mtmoe.data.corpora.harvest import Choice, harvest_and_split
from fairseq_mtmoe.data.corpora.report import Report, hints, make_report, report_table, write_report
from fairseq_mtmoe.data.corpora.text import corpora_of, find_text_files, lone_carriage_returns, read_ranked_tiers
from fairseq_mtmoe.data.corpora.vocabulary.given import OF_TRAINED, GivenVocabulary, vocabulary_of
from fairseq_mtmoe.data.translation.tiers import FILE_NAME as TIERS_FILE
from fairseq_mtmoe.errors import raise_invalid

DEFAULT_PACKAGES = ("pycountry", "django", "sphinx")

BYTES_FOR_A_PROCESS = 4 << 20
"""Of raw files: with fewer, to start another process takes longer than it saves."""

command = click.Group("prepare", help="Make a data directory that fairseq-train reads.")
command.add_command(corpora_command)

_DEFAULTS = BuildOptions()


def _build_options(function: Any) -> Any:
    """The options that every subcommand has."""
    options = {
        "--vocab-size": "Pieces in the vocabulary that all languages share.",
        "--character-coverage": "Share of the characters, by frequency, that the vocabulary has.",
        "--temperature": "Of the text for SentencePiece: 1 takes it by size, more favours small languages.",
        "--seed": "Decides about every draw.",
        "--shards": "Data directories (shard0, shard1, …) that training pairs are dealt out to.",
    }
    for name, text in reversed(options.items()):
        default = getattr(_DEFAULTS, name[2:].replace("-", "_"))
        function = click.option(name, default=default, show_default=True, help=text)(function)
    function = vocabulary_option(function)
    return click.option("--overwrite", is_flag=True, help="Replace OUT although it was made from something else.")(
        function
    )


@command.command("catalogs")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--packages", help=f"Installed packages to read, by comma.  [default: {','.join(DEFAULT_PACKAGES)}]")
@click.option(
    "--folder", "folders", multiple=True, type=click.Path(path_type=Path), help="Folder to read instead; repeatable."
)
@click.option("--langs", default="", help="Target languages, by comma.  [default: all that are large enough]")
@click.option("--max-langs", type=click.IntRange(1), help="Keep so many languages, evenly along their sizes.")
@click.option("--valid-size", default=100, show_default=True, help="Validation messages of each language.")
@click.option("--test-size", default=200, show_default=True, help="Test messages of each language.")
@_build_options
def catalogs_command(
    out: Path,
    packages: str | None,
    folders: tuple[Path, ...],
    langs: str,
    max_langs: int | None,
    valid_size: int,
    test_size: int,
    overwrite: bool,
    **build_options: Any,
) -> None:
    """Make OUT from human translations in gettext catalogs: English to many languages.

    The catalogs are those of installed packages, or of folders such as /usr/share/locale, or of both if both are given.
    Run again after whatever end, it goes on from there: what is done is in .OUT.work until OUT is.
    """
    given = _given_vocabulary(build_options)
    options = BuildOptions(**build_options)
    deciding = _deciding(options, given)
    sizes = {"valid": valid_size, "test": test_size}
    for split, size in sizes.items():
        if size < 1:
            raise_invalid(f"--{split}-size", "at least 1", size)
    names = _names(packages) if packages is not None else [] if folders else list(DEFAULT_PACKAGES)
    wanted = _names(langs)
    catalogs = find_catalogs(names, folders, wanted)
    hashes = [content_hash(catalog.path) for catalog in catalogs]
    made_from = {"command": "catalogs", **deciding, **sizes, "langs": wanted, "max_langs": max_langs}

    def fill(folder: Path, tools: Tools) -> Report:
        choice = Choice(sizes, options.seed, wanted, max_langs)
        parts = harvest_and_split(tools.work, catalogs, hashes, choice, tools.workers, tools.shown)
        built = build(folder, parts.corpora, {}, options, tools, given)
        report = make_report("catalogs", deciding, built, parts.dropped)
        return {**report, "sources": describe_sources(catalogs, parts.damaged), "left_out": parts.left_out}

    inputs = Inputs(made_from)
    for catalog, sha in zip(catalogs, hashes, strict=True):
        inputs.add(catalog.source, f"{catalog.source}/{catalog.name}", catalog.path, sha)
    _write(out, inputs, fill, overwrite, given)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@command.command("text")
@click.argument("raw", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--tiers",
    "tiers_file",
    type=click.Path(path_type=Path),
    help='File such as {"high": ["de"], "low": ["et"]}.  [default: RAW/tiers.json if there is one, else by size]',
)
@allow_unequal_option
@_build_options
def text_command(
    raw: Path, out: Path, tiers_file: Path | None, allow_unequal: bool, overwrite: bool, **build_options: Any
) -> None:
    """Make OUT from the folder RAW of plain text, split already: {train,valid,test}.en-xx.{en,xx}.

    One sentence per line, UTF-8. Lines end in line feeds. Control and invisible characters are removed, from validation
    and test files, too; OUT's report.md counts them. Run again after whatever end, it goes on from there: what is done
    is in .OUT.work until OUT is.
    """
    given = _given_vocabulary(build_options)
    options = BuildOptions(**build_options)
    deciding = _deciding(options, given)
    found = find_text_files(raw)
    files = [path for pair in found.values() for sides in pair.values() for path in sides]
    made_from: dict[str, object] = {"command": "text", **deciding}
    if allow_unequal:
        made_from["allow_unequal"] = True
    if broken := lone_carriage_returns(files):  # 0.1.0 took these for line ends, and made other data of such files
        made_from["files with carriage returns inside lines"] = broken
    if tiers_file is None and os.path.lexists(raw / TIERS_FILE):
        tiers_file = raw / TIERS_FILE
    named_tiers = {} if tiers_file is None else read_ranked_tiers(tiers_file)
    hashes = {path: content_hash(path) for path in (*files, *([] if tiers_file is None else [tiers_file]))}
    corpora = corpora_of(found, hashes, allow_unequal)

    def fill(folder: Path, tools: Tools) -> Report:
        built = build(folder, corpora, named_tiers, options, tools, given)
        return {**make_report("text", deciding, built), "files": dict(sorted(built.changes.items()))}

    inputs = Inputs(made_from)
    for path, sha in hashes.items():
        inputs.add("text" if path in files else "tiers", path.name, path, sha)
    _write(out, inputs, fill, overwrite, given)


@dataclass
class Inputs:
    """What a data directory is made from.

    Attributes:
        made_from: options, by names that a user knows.
        files: names and hashes of all files, in their order.
        raw: the same by what they are from.
        size: of all files, in bytes.
    """

    made_from: Mapping[str, object]
    files: list[tuple[str, str]] = field(default_factory=list)
    raw: dict[str, dict[str, str]] = field(default_factory=dict)
    size: int = 0

    def add(self, source: str, name: str, path: Path, sha: str) -> None:
        """A file."""
        self.files.append((name, sha))
        self.raw.setdefault(source, {})[name] = sha
        self.size += path.stat().st_size if path.is_file() else 0


def _given_vocabulary(build_options: dict[str, Any]) -> GivenVocabulary | None:
    """Take the vocabulary that `--vocabulary-from` names out of a command's options.

    Raises:
        UserError: it is none, or there are options of a vocabulary that is trained.
    """
    folder = build_options.pop("vocabulary_from")
    if folder is None:
        return None
    for name in OF_TRAINED:
        if click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise_invalid(f"--{name.replace('_', '-')}", "absent with `--vocabulary-from`", build_options[name])
    return vocabulary_of(folder)


def _deciding(options: BuildOptions, given: GivenVocabulary | None) -> dict[str, object]:
    """Return the options that decide about a data directory."""
    values = asdict(options)
    if given is None:
        return values
    return {**{name: values[name] for name in values if name not in OF_TRAINED}, "known languages": list(given.langs)}


def _write(
    out: Path,
    inputs: Inputs,
    fill: Callable[[Path, Tools], Report],
    overwrite: bool,
    given: GivenVocabulary | None,
) -> None:
    """Fill `out` and show its report, unless it is up to date. Until it is there, what was done is in `.OUT.work`."""
    for name, path in {} if given is None else given.files.items():
        inputs.add("vocabulary", name, path, content_hash(path))
    key, *earlier = (fingerprint(inputs.made_from, inputs.files, form) for form in range(FORMAT, 0, -1))

    if is_up_to_date(out, key, earlier):  # of what is there already nothing is written, not even for a moment
        click.echo(f"{out} is up to date.")
        return
    work, reports = WorkFolder(out), list[Report]()

    def fill_and_report(folder: Path) -> None:
        processes = min(cores(), 1 + inputs.size // BYTES_FOR_A_PROCESS)
        with shown(work.path / "log.txt") as progress, local_workers(processes) as workers:
            reports.append(fill(folder, Tools(work, workers, progress)))
        write_report(folder, reports[0])
        write_manifest(folder, inputs.raw)

    with stopped_by_sigterm(), work.held():
        write_once(out, key, fill_and_report, inputs.made_from, overwrite, earlier)
        work.remove()
    _show(reports[0])
    click.echo(f"Wrote {out}; what was dropped and why: {out / 'report.md'}")
    if given is not None:
        click.echo(given.how_to_go_on(out))


def _show(report: Report) -> None:
    show_table(*report_table(report))
    for hint in hints(report):
        Console().print(hint, soft_wrap=True, highlight=False, markup=False)
