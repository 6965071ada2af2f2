"""`mtmoe prepare`: data directories for fairseq, from corpora, gettext catalogs or plain text."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from fairseq_mtmoe.cli._prepare_corpora import corpora_command
from fairseq_mtmoe.cli._steps import shown_steps, stopped_by_sigterm
from fairseq_mtmoe.data.corpora.bitext import Bitext, Track
from fairseq_mtmoe.data.corpora.build import BuildOptions, build, complete_tiers
from fairseq_mtmoe.data.corpora.catalogs import describe_sources, find_catalogs, harvest
from fairseq_mtmoe.data.corpora.directory import fingerprint, write_once
from fairseq_mtmoe.data.corpora.report import Report, hints, make_report, report_table, write_report
from fairseq_mtmoe.data.corpora.selection import select_languages
from fairseq_mtmoe.data.corpora.split import split_by_message
from fairseq_mtmoe.data.corpora.text import find_text_files, lone_carriage_returns, read_bitexts, read_ranked_tiers
from fairseq_mtmoe.data.translation.tiers import FILE_NAME as TIERS_FILE
from fairseq_mtmoe.errors import must_be

DEFAULT_PACKAGES = ("pycountry", "django", "sphinx")

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
    """
    options = BuildOptions(**build_options)
    sizes = {"valid": valid_size, "test": test_size}
    for split, size in sizes.items():
        if size < 1:
            must_be(f"--{split}-size", "at least 1", size)
    names = _names(packages) if packages is not None else [] if folders else list(DEFAULT_PACKAGES)
    wanted = _names(langs)
    catalogs = find_catalogs(names, folders, wanted)
    made_from = {"command": "catalogs", **asdict(options), **sizes, "langs": wanted, "max_langs": max_langs}
    key = fingerprint(made_from, [(f"{catalog.source}/{catalog.name}", catalog.path) for catalog in catalogs])

    def fill(folder: Path, track: Track) -> Report:
        crop = harvest(catalogs, track)
        messages = crop.count_messages()
        chosen = select_languages(messages, valid_size + test_size, wanted, max_langs)
        pairs = {lang: crop.pairs[lang] for lang in chosen}
        bitexts, reserved = split_by_message(pairs, crop.groups, sizes, options.seed)
        dropped = {
            bitext.name: {**crop.dropped.get(bitext.target_lang, {}), "reserved": reserved[bitext.name]}
            for bitext in bitexts
        }
        left_out = {lang: count for lang, count in messages.items() if lang not in chosen}
        report = _build(folder, "catalogs", bitexts, dropped, options, track)
        return {**report, "sources": describe_sources(catalogs, crop.damaged), "left_out": left_out}

    _write(out, key, fill, made_from, overwrite)


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
@_build_options
def text_command(raw: Path, out: Path, tiers_file: Path | None, overwrite: bool, **build_options: Any) -> None:
    """Make OUT from the folder RAW of plain text, split already: {train,valid,test}.en-xx.{en,xx}.

    One sentence per line, UTF-8. Lines end in line feeds. Control and invisible characters are removed, from validation
    and test files, too; OUT's report.md counts them.
    """
    options = BuildOptions(**build_options)
    files = [path for pair in find_text_files(raw).values() for sides in pair.values() for path in sides]
    made_from: dict[str, object] = {"command": "text", **asdict(options)}
    if broken := lone_carriage_returns(files):  # 0.1.0 took these for line ends, and made other data of such files
        made_from["files with carriage returns inside lines"] = broken
    if tiers_file is None and os.path.lexists(raw / TIERS_FILE):
        tiers_file = raw / TIERS_FILE
    named_tiers = {} if tiers_file is None else read_ranked_tiers(tiers_file)
    files += [] if tiers_file is None else [tiers_file]
    key = fingerprint(made_from, [(path.name, path) for path in files])

    def fill(folder: Path, track: Track) -> Report:
        bitexts, dropped, changes = read_bitexts(raw, track)
        report = _build(folder, "text", bitexts, dropped, options, track, named_tiers)
        return {**report, "files": {name: asdict(found) for name, found in sorted(changes.items())}}

    _write(out, key, fill, made_from, overwrite)


def _build(
    folder: Path,
    name: str,
    bitexts: Sequence[Bitext],
    dropped: Mapping[str, Mapping[str, int]],
    options: BuildOptions,
    track: Track,
    named_tiers: Mapping[str, Sequence[str]] | None = None,
) -> Report:
    tiers = complete_tiers(bitexts, named_tiers or {})
    counts = build(folder, bitexts, tiers, options, track)
    return make_report(name, options, bitexts, tiers, dropped, counts)


def _write(
    out: Path, key: str, fill: Callable[[Path, Track], Report], made_from: Mapping[str, object], overwrite: bool
) -> None:
    """Fill `out` and show its report, unless it is up to date."""
    reports: list[Report] = []

    def fill_and_report(folder: Path) -> None:
        with shown_steps() as track:
            reports.append(fill(folder, track))
        write_report(folder, reports[0])

    with stopped_by_sigterm():
        written = write_once(out, key, fill_and_report, made_from, overwrite)
    if written:
        _show(reports[0])
        click.echo(f"Wrote {out}; what was dropped and why: {out / 'report.md'}")
    else:
        click.echo(f"{out} is up to date.")


def _show(report: Report) -> None:
    head, rows = report_table(report)
    table = Table(*head[:2])
    for name in head[2:]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row, end_section=row is rows[-2])
    console = Console()
    console.print(table)
    for hint in hints(report):
        console.print(hint, soft_wrap=True, highlight=False, markup=False)
