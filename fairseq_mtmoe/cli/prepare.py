"""`mtmoe prepare`: data directories for fairseq, from gettext catalogs or from plain text."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fairseq_mtmoe.data.corpora.bitext import Bitext, Item, Track
from fairseq_mtmoe.data.corpora.build import BuildOptions, build, complete_tiers
from fairseq_mtmoe.data.corpora.catalogs import describe_sources, find_catalogs, harvest
from fairseq_mtmoe.data.corpora.directory import fingerprint, write_once
from fairseq_mtmoe.data.corpora.report import Report, make_report, report_table, write_report
from fairseq_mtmoe.data.corpora.selection import select_languages
from fairseq_mtmoe.data.corpora.split import split_by_message
from fairseq_mtmoe.data.corpora.text import find_text_files, read_bitexts, read_tiers
from fairseq_mtmoe.data.tiers import FILE_NAME as TIERS_FILE
from fairseq_mtmoe.errors import must_be

DEFAULT_PACKAGES = ("pycountry", "django", "sphinx")

command = click.Group("prepare", help="Make a data directory that fairseq-train reads.")

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
    return function


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

    _write(out, key, fill)


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
def text_command(raw: Path, out: Path, tiers_file: Path | None, **build_options: Any) -> None:
    """Make OUT from the folder RAW of plain text, split already: {train,valid,test}.en-xx.{en,xx}.

    One sentence per line, UTF-8.
    """
    options = BuildOptions(**build_options)
    files = [path for pair in find_text_files(raw).values() for sides in pair.values() for path in sides]
    if tiers_file is None and (raw / TIERS_FILE).is_file():
        tiers_file = raw / TIERS_FILE
    named_tiers = {} if tiers_file is None else read_tiers(tiers_file)
    files += [] if tiers_file is None else [tiers_file]
    key = fingerprint({"command": "text", **asdict(options)}, [(path.name, path) for path in files])

    def fill(folder: Path, track: Track) -> Report:
        bitexts, dropped, _ = read_bitexts(raw, track)
        return _build(folder, "text", bitexts, dropped, options, track, named_tiers)

    _write(out, key, fill)


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


def _write(out: Path, key: str, fill: Callable[[Path, Track], Report]) -> None:
    """Fill `out` and show its report, unless it is up to date."""
    reports: list[Report] = []

    def fill_and_report(folder: Path) -> None:
        with _Steps() as steps:
            reports.append(fill(folder, steps.show))
        write_report(folder, reports[0])

    before = signal.signal(signal.SIGTERM, _stop)
    try:
        written = write_once(out, key, fill_and_report)
    finally:
        signal.signal(signal.SIGTERM, before)
    if written:
        _show(reports[0])
        click.echo(f"Wrote {out}; what was dropped and why: {out / 'report.md'}")
    else:
        click.echo(f"{out} is up to date.")


def _stop(signum: int, frame: FrameType | None) -> NoReturn:
    """Leave through every `finally`, so that a terminated run cleans up as an interrupted one does."""
    sys.exit(128 + signum)


class _Steps(Progress):
    """One progress bar per step."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        super().__init__(*columns, console=Console(stderr=True))

    def show(self, items: Sequence[Item], label: str) -> Iterable[Item]:
        return self.track(items, description=label)


def _show(report: Report) -> None:
    head, rows = report_table(report)
    table = Table(*head[:2])
    for name in head[2:]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row, end_section=row is rows[-2])
    Console().print(table)
