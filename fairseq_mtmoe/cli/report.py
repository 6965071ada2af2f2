"""`mtmoe report`: pictures of runs, or one HTML page that needs no server."""

from __future__ import annotations

import importlib.util
import math
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from fairseq_mtmoe.cli._shared import PATH, overwrite_option
from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.core.files import check_writable, output_file, write_text

SUFFIXES = (".html", ".htm")


@click.command("report")
@click.argument("runs", nargs=-1, required=True, type=PATH, metavar="RUN… [OUT.html]")
@click.option(
    "--png",
    type=PATH,
    metavar="FOLDER",
    help="Also, or only, write each chart as a picture to FOLDER.",
)
@click.option(
    "--scores",
    multiple=True,
    type=PATH,
    metavar="FOLDER",
    help="Output folder of mtmoe evaluate or fairseq-validate, given once for each RUN; by default "
    "the one in RUN/scores.",
)
@click.option(
    "--watch",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="Rewrite the page at this interval until interrupted; an open page loads itself again.",
)
@overwrite_option
def command(
    runs: tuple[Path, ...],
    png: Path | None,
    scores: tuple[Path, ...],
    watch: float | None,
    overwrite: bool,
) -> None:
    """Show training runs on one HTML page, which needs no server and no network.

    \b
    mtmoe report runs/base runs/base/report.html
    mtmoe report runs/base runs/dense both.html --png pictures

    RUN is the --save-dir of a run of the tasks translation_heated, glue or text_to_text. The page
    has warnings, progress and settings, and scores with their significance. It has charts of
    perplexity and metrics, training, sampling, the use of experts, gates, task embeddings and
    speed; each can be saved as SVG. Gates and embeddings come from RUN's best checkpoint,
    or else its last; a page with --watch lacks them.

    For several RUNs with the same test sets, the page shows each difference to the first run and
    its significance.
    """
    _check_drawing()
    *paths, last = runs
    out: Path | None = last
    if last.suffix.lower() not in SUFFIXES or not paths:
        paths = [*runs]
        out = None
    _check_options(paths, out, png, scores, watch)
    if out is not None:
        output_file("OUT.html", out, overwrite, **{f"RUN `{run}`": run for run in paths})
        check_writable(out.parent)
    states = {} if watch is not None else checkpoints_of(paths)
    if png is not None:
        write_pictures(paths, scores, states, png)
    if out is None:
        return
    write = partial(write_page, paths, scores, states, out)
    write(watch)
    click.echo(str(out))
    if watch is not None:
        keep_fresh(write, watch)


def _check_drawing() -> None:
    """Raise `UserError` if Altair, or the package that renders its charts, is missing."""
    for module, package in {"altair": "altair", "vl_convert": "vl-convert-python"}.items():
        if importlib.util.find_spec(module) is None:
            raise UserError(f"Charts need {package}: install it with `pip install {package}`.")


def _check_options(
    runs: Sequence[Path],
    out: Path | None,
    png: Path | None,
    scores: Sequence[Path],
    watch: float | None,
) -> None:
    if out is None and png is None:
        raise_invalid("OUT.html", "a file name that ends in .html, or --png FOLDER", str(runs[-1]))
    if scores and len(scores) != len(runs):
        raise UserError(
            f"`--scores` is given {len(scores)} times for {len(runs)} runs: give one for each RUN, "
            "or none."
        )
    if watch is not None and (out is None or not math.isfinite(watch)):
        raise_invalid("--watch", "a number of seconds, with OUT.html", watch)
    paths = [os.path.realpath(run) for run in runs]
    if len(set(paths)) < len(paths):
        raise UserError(f"`RUN…` names a run twice: {', '.join(map(str, runs))}.")


def checkpoints_of(paths: Sequence[Path]) -> dict[str, Any]:
    """Return the content of runs' best or last checkpoints, where they exist, by name."""
    from fairseq_mtmoe.checkpoints.file_io import peek
    from fairseq_mtmoe.report.rows import run_names

    states = {}
    for path, name in zip(paths, run_names(paths), strict=True):
        state = peek(path / "checkpoint_best.pt") or peek(path / "checkpoint_last.pt")
        if state is not None:
            states[name] = state
    return states


def write_page(
    paths: Sequence[Path],
    scores: Sequence[Path],
    states: dict[str, Any],
    out: Path,
    refresh: float | None,
) -> None:
    """Write the page of the runs as they are now (UserError: a file is damaged)."""
    from fairseq_mtmoe.core.pages import page_of
    from fairseq_mtmoe.report import page

    shown = page.read_shown(paths, scores)
    sections = page.sections_of(shown, states)
    title = " · ".join(run.name for run in shown.runs)
    write_text(out, page_of(title, sections, page.about_this_page(), refresh))


def write_pictures(
    paths: Sequence[Path], scores: Sequence[Path], states: dict[str, Any], folder: Path
) -> None:
    """Write each chart of the page to `folder` (UserError: there is none yet)."""
    from fairseq_mtmoe.report import page
    from fairseq_mtmoe.report.charts.look import save

    charts = page.charts_of(page.read_shown(paths, scores), states)
    if not charts:
        raise UserError(
            f"The run log of {paths[0]} has no values to draw yet: wait for its first epoch."
        )
    for name, chart in charts.items():
        path = folder / f"{name}.png"
        save(chart, path)
        click.echo(f"{name}: {path}")


def keep_fresh(
    write: Callable[[float | None], None],
    seconds: float,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Rewrite the page until interrupted; then write it once more, without reloading.

    If the runs cannot be read, the next turn tries again.
    """
    reported = ""
    try:
        while True:
            sleep(seconds)
            try:
                write(seconds)
                reported = ""
            except UserError as error:
                if str(error) != reported:
                    click.echo(f"page not updated: {error}", err=True)
                reported = str(error)
    except KeyboardInterrupt:
        pass
    finally:
        write(None)
