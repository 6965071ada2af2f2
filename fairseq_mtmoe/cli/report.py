"""`mtmoe report`: one HTML page on runs, which opens without a server and follows runs while they train."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from fairseq_mtmoe.cli._shared import PATH, check_drawing, stopped_by_sigterm
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.io.files import check_writable, output_file, write_text

if TYPE_CHECKING:
    from fairseq_mtmoe.analysis.report.gathering import Facts, Gatherer

SUFFIXES = (".html", ".htm")


@click.command("report")
@click.argument("runs", nargs=-1, required=True, type=PATH, metavar="RUN…")
@click.argument("out", type=PATH, metavar="OUT.html")
@click.option("--scores", multiple=True, type=PATH, metavar="FOLDER",
              help="Output folder of mtmoe evaluate or fairseq-validate, given once for each RUN; by default the one "
              "in RUN/scores.")  # fmt: skip
@click.option("--watch", type=click.FloatRange(min=1), metavar="SECONDS",
              help="Check the runs at this interval until interrupted, and rewrite the page when they have new data; "
              "an open page updates itself.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace OUT.html if it exists.")
def command(runs: tuple[Path, ...], out: Path, scores: tuple[Path, ...], watch: float | None, overwrite: bool) -> None:
    """Show training runs on one HTML page, which needs no server and no network.

    RUN is the --save-dir of a run of the tasks translation_heated, glue or text_to_text. The page has the run's
    settings; loss, perplexity and metrics over updates, tokens and minutes; sampling; the use of experts; speed; scores
    with confidence intervals; sample translations. It warns of unused experts, collapsed routing, languages that get
    worse, skipped updates and padding.

    For several RUNs with the same test sets, the page shows each difference to the first run and its significance.
    """
    check_drawing()
    if out.suffix.lower() not in SUFFIXES:
        raise_invalid("OUT.html", "a file name that ends in .html", str(out))
    if scores and len(scores) != len(runs):
        raise_invalid("--scores", f"given once for each of the {len(runs)} RUN, or not at all", len(scores))
    if watch is not None and not math.isfinite(watch):
        raise_invalid("--watch", "a number of seconds", watch)
    paths = list(map(os.path.realpath, runs))
    if twice := {str(run) for run, path in zip(runs, paths, strict=True) if paths.count(path) > 1}:
        raise_invalid("RUN…", "different runs", ", ".join(sorted(twice)))
    output_file("OUT.html", out, overwrite, **{f"RUN `{run}`": run for run in runs})
    check_writable(out.parent)
    from fairseq_mtmoe.analysis.report.gathering import Gatherer

    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("")
        say_pair = partial(progress.update, bar)
        gatherer = Gatherer(runs, scores, lambda pair: say_pair(description=f"confidence of scores: {pair}"))
        write_page(gatherer.gather(watch), out)
        click.echo(str(out))
        if watch is not None:
            with stopped_by_sigterm():
                keep_fresh(gatherer, out, watch)


def write_page(facts: Facts, out: Path) -> None:
    """Write the page (UserError: it cannot be written)."""
    from fairseq_mtmoe.analysis.report.page import page_of  # imports jinja2

    write_text(out, page_of(facts))


def keep_fresh(gatherer: Gatherer, out: Path, seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """Rewrite the page when the runs change, until interrupted; then write it once more, without updating itself.

    If the runs cannot be read, the next check tries again; at the end the page has the data read last.
    """
    shown, said = gatherer.stamp(), ""
    try:
        while True:
            sleep(seconds)
            stamp = gatherer.stamp()
            if stamp != shown:
                try:
                    write_page(gatherer.gather(seconds), out)
                    shown, said = stamp, ""
                except UserError as error:
                    if str(error) != said:
                        click.echo(f"page not updated: {error}", err=True)
                    said = str(error)
    except KeyboardInterrupt:
        pass
    finally:
        try:
            write_page(gatherer.gather(), out)
        except UserError:
            if gatherer.latest is not None:
                write_page(replace(gatherer.latest, watched=None), out)
            raise
