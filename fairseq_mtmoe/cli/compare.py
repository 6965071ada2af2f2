"""`mtmoe compare`: what systems reach, each over several seeds, in one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from fairseq_mtmoe.analysis.comparison import System, check_comparable, system_of
from fairseq_mtmoe.analysis.comparison_tables import difference_table, mean_table, notes, to_json, to_markdown
from fairseq_mtmoe.analysis.provenance import provenance
from fairseq_mtmoe.analysis.score_reading import expanded, read_scores
from fairseq_mtmoe.errors import must_be
from fairseq_mtmoe.io.files import check_writable, write_text

JSON_FILE, MARKDOWN_FILE = "comparison.json", "comparison.md"
WIDE = 200  # columns, where nobody says how many there are


@click.command("compare")
@click.argument("systems", nargs=-1, required=True, metavar="NAME=RUN,…")
@click.option("--out", type=click.Path(path_type=Path), help=f"Folder for {JSON_FILE} and {MARKDOWN_FILE}.")
def command(systems: tuple[str, ...], out: Path | None) -> None:
    """Compare systems, each of several runs with other seeds.

    \b
    mtmoe compare mt_tag=runs/tag-1,runs/tag-2 mt_dense=runs/dense-1,runs/dense-2
    mtmoe compare 'mt_dense=runs/dense-*' 'mt_tag=runs/tag-*' 'single=runs/single-*' --out results

    RUN is a folder with scores.json, or a run's folder with one below scores/, as fairseq-validate --results-path (of
    --task glue) and mtmoe evaluate write them. Patterns with * and ? stand for all folders that they fit. Runs of a
    system that have the same seed and different tasks complete each other, as those of models that were trained for one
    task each. Prints a row for each system, the mean over seeds with their standard deviation for each task and
    average, beside what papers report of the same system with the same encoder; and how far the other systems are
    above the first, paired by seed where both have it.
    """
    if out is not None:
        check_writable(out)
    compared = read_systems(systems)
    console = Console()
    wide = console if console.is_terminal else Console(width=WIDE)
    for table in (mean_table(compared), difference_table(compared)):
        if table is not None:
            wide.print(table.on_screen())
    for note in notes(compared):
        console.print(note, soft_wrap=True, highlight=False, markup=False)
    if out is not None:
        made_by = provenance()
        write_text(out / MARKDOWN_FILE, to_markdown(compared, made_by))
        write_text(out / JSON_FILE, to_json(compared, made_by))
        for name in (JSON_FILE, MARKDOWN_FILE):
            console.print(str(out / name), soft_wrap=True, highlight=False, markup=False)


def read_systems(arguments: Sequence[str]) -> list[System]:
    """The systems that `NAME=RUN,…` stand for, whose runs can be compared.

    Raises:
        UserError: an argument is none, a run has no scores, or runs cannot be compared.
    """
    systems: list[System] = []
    for argument in arguments:
        name, sign, folders = argument.partition("=")
        patterns = [folder for folder in folders.split(",") if folder]
        if not (name and sign and patterns):
            must_be("NAME=RUN,…", "a name, an equals sign and folders with commas between them", argument)
        if name in [system.name for system in systems]:
            must_be("NAME=RUN,…", "of different names", argument)
        paths = [path for pattern in patterns for path in expanded(pattern)]
        systems.append(system_of(name, [read_scores(path) for path in paths]))
    check_comparable(systems)
    return systems
