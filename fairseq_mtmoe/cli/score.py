"""`mtmoe score`: the log-probability of each translation, by forced decoding."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairseq_mtmoe.cli._lines import Files, Screen, expect_output, read, survey, writing
from fairseq_mtmoe.cli._shared import (
    PATH,
    as_file,
    batch_options,
    expect_checkpoints,
    overwrite_option,
    precision_options,
    quiet_fairseq,
    workers_option,
)
from fairseq_mtmoe.cli._workers import done_by, load
from fairseq_mtmoe.core.errors import UserError

if TYPE_CHECKING:
    from fairseq_mtmoe.translation.decode.lines import Lines


@click.command("score")
@click.argument("model", metavar="MODEL")
@click.argument("sources", type=PATH, metavar="SOURCES")
@click.argument("targets", type=PATH, metavar="TARGETS")
@click.option(
    "--from",
    "source",
    required=True,
    metavar="LANG",
    help="Language of SOURCES, as the model names it.",
)
@click.option("--to", "target", required=True, metavar="LANG", help="Language of TARGETS.")
@click.option("--out", type=PATH, help="File for the scores; by default standard output.")
@click.option(
    "--tsv", is_flag=True, help="Write tab-separated score, number of tokens, source and target."
)
@batch_options
@workers_option
@overwrite_option
@precision_options
@quiet_fairseq()
def command(
    model: str,
    sources: Path,
    targets: Path,
    source: str,
    target: str,
    out: Path | None,
    tsv: bool,
    workers: int,
    overwrite: bool,
    **computing: Any,
) -> None:
    """Score lines of TARGETS as MODEL's translations of the same lines of SOURCES.

    MODEL can be an ensemble, FILE:FILE. A score is the natural logarithm of the translation's
    probability, summed over its tokens, its end and the initial language token. Divided by ln 2 and
    the number of tokens, it equals the score of fairseq-generate --score-reference and mtmoe
    translate --scores.

    \b
    mtmoe score nllb.pt in.en out.sw --from eng_Latn --to swh_Latn > scores.txt
    mtmoe score model.pt in.en out.sw --from en --to sw --tsv | awk -F'\\t' '$1 / $2 > -1.5'
    """
    total, _ = survey(sources)
    targets_lines, _ = survey(targets)
    if targets_lines != total:
        rule = f"as many lines as `{sources}`, {total:,}"
        raise UserError(f"`{targets}` must have {rule}, but has {targets_lines:,} instead.")
    expect_output(out)
    sink: Screen | Files
    if out is None:
        sink = Screen(sys.stdout.buffer)
    else:
        inputs = [sources, targets, *map(Path, model.split(":"))]
        sink = Files({target: out}, None, overwrite, inputs)
    expect_checkpoints(model)
    from fairseq_mtmoe.translation.decode.decode import Decoding

    decoding = Decoding.of(computing)
    with contextlib.redirect_stdout(sys.stderr):  # keeps libraries' output apart from the scores
        translator = load(model, decoding, workers)
        with done_by(workers, translator.score_batch) as score_all:
            forced = translator.forced(source, target)
            for side, path in enumerate((sources, targets)):
                for group in read(path):
                    forced.expect_short(side, group)
            with writing(sink, "scoring", total) as (progress, bar):
                advance = partial(progress.advance, bar)
                for groups in zip(read(sources), read(targets), strict=True):
                    scores = forced.scores(*groups, decoding, score_all, advance)
                    sink.write(target, _text(scores, *groups, tsv))
                    progress.update(bar, completed=groups[0].first - 1 + len(scores))


def _text(
    scores: Sequence[Sequence[tuple[int, float]]], sources: Lines, targets: Lines, tsv: bool
) -> str:
    """Return a line with the score of each pair, and with `tsv` its length and texts."""
    lines = []
    for tokens, source, target in zip(scores, sources.lines, targets.lines, strict=True):
        score = f"{sum((value for _, value in tokens), start=0.0):.4f}"
        if tsv:
            columns = score, str(len(tokens)), source.replace("\t", " "), target.replace("\t", " ")
            score = "\t".join(columns)
        lines.append(score)
    return as_file(lines)
