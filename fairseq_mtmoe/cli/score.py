"""`mtmoe score`: the log-probability of each translation, by forced decoding."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from fairseq_mtmoe.cli._lines import Screen, read, survey
from fairseq_mtmoe.cli._shared import (
    PATH,
    expect_checkpoints,
    of_batches,
    of_precision,
    of_text,
    progress_bar,
    quiet_fairseq,
)
from fairseq_mtmoe.cli._workers import done_by, load
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import check_writable, output_file, replacing

if TYPE_CHECKING:
    from fairseq_mtmoe.evaluation.decode import Decoding
    from fairseq_mtmoe.evaluation.lines import Lines
    from fairseq_mtmoe.evaluation.text_scores import Pairs
    from fairseq_mtmoe.evaluation.text_translator import TextTranslator

Write = Callable[[str], object]


@click.command("score")
@click.argument("model", metavar="MODEL")
@click.argument("sources", type=PATH, metavar="SOURCES")
@click.argument("targets", type=PATH, metavar="TARGETS")
@click.option("--from", "source", required=True, metavar="LANG", help="Language of SOURCES, as the model names it.")
@click.option("--to", "target", required=True, metavar="LANG", help="Language of TARGETS.")
@click.option("--out", type=PATH, help="File for the scores; by default standard output.")
@click.option("--tsv", is_flag=True, help="Write tab-separated score, number of tokens, source and target.")
@of_batches
@of_text
@click.option("--overwrite", is_flag=True, help="Replace the --out file if it exists.")
@of_precision
@quiet_fairseq()
def command(
    model: str, sources: Path, targets: Path, source: str, target: str, out: Path | None, tsv: bool, workers: int,
    data: str | None, overwrite: bool, **computing: Any,
) -> None:  # fmt: skip
    """Score each line of TARGETS as MODEL's translation of the same line of SOURCES (FILE:FILE is an ensemble).

    A score is the natural logarithm of the translation's probability, summed over its tokens, its end and the initial
    language token. Divided by ln 2 and the number of tokens, it equals the score of fairseq-generate --score-reference
    and mtmoe translate --scores.

    \b
    mtmoe score nllb.pt in.en out.sw --from eng_Latn --to swh_Latn > scores.txt
    mtmoe score run/checkpoint_best.pt in.en out.sw --from en --to sw --tsv | awk -F'\\t' '$1 / $2 > -1.5'
    """
    expect_checkpoints(model)
    total, targets_lines = survey(sources)[0], survey(targets)[0]
    if targets_lines != total:
        rule = f"as many lines as `{sources}`, {total:,}"
        raise UserError(f"`{targets}` must have {rule}, but has {targets_lines:,} instead.")
    if out is None and sys.stdout is None:
        raise UserError("`--out` must be given if the standard output is closed, but is not.")
    if out is not None:
        for name, path in (("SOURCES", sources), ("TARGETS", targets), *(("MODEL", Path(m)) for m in model.split(":"))):
            output_file("--out", out, overwrite, **{name: path})
        check_writable(out.parent)
    from fairseq_mtmoe import register

    register()
    from fairseq_mtmoe.evaluation.decode import Decoding

    decoding = Decoding.of(computing)
    stdout = None if out is not None else sys.stdout.buffer
    with contextlib.redirect_stdout(sys.stderr):  # keeps libraries' output apart from the scores
        job = _Job(load(model, decoding, data, workers), decoding, (sources, targets), (source, target), tsv)
        if stdout is not None:
            screen = Screen(stdout)
            job.run(workers, total, lambda text: screen.write({target: text}), quiet=screen.is_terminal)
            return
        assert out is not None
        with replacing(out) as unfinished, open(unfinished, "w", encoding="utf-8", newline="") as file:
            job.run(workers, total, file.write)
            file.flush()


@dataclass(frozen=True)
class _Job:
    """Scoring of one file against another, in two languages."""

    translator: TextTranslator
    decoding: Decoding
    paths: tuple[Path, Path]
    langs: tuple[str, str]
    tsv: bool

    def run(self, workers: int, total: int, write: Write, quiet: bool = False) -> None:
        """Check all lines, then score them in groups and `write` each group's text."""
        with done_by(workers, self.translator.score_batch) as score_all:
            forced = self.translator.forced(*self.langs)
            for side, path in enumerate(self.paths):
                for group in read(path):
                    forced.expect_short(side, group)
            console = Console(stderr=True, quiet=quiet)
            with progress_bar("lines", console, transient=True) as progress:
                bar = progress.add_task("scoring", total=total)
                for sources, targets in zip(*map(read, self.paths), strict=True):
                    pairs = forced.group(sources, targets, self.decoding)
                    for batch, scores in zip(pairs.batches, score_all(pairs.batches), strict=True):
                        pairs.add(batch, scores)
                        progress.advance(bar, len(batch))
                    write(self._text(pairs, sources, targets))
                    progress.update(bar, completed=sources.first - 1 + len(sources.lines))

    def _text(self, pairs: Pairs, sources: Lines, targets: Lines) -> str:
        lines = []
        for tokens, source, target in zip(pairs.finished(), sources.lines, targets.lines, strict=True):
            score = f"{sum((value for _, value in tokens), start=0.0):.4f}"
            texts = (text.replace("\t", " ") for text in (source, target))
            lines.append("\t".join([score, str(len(tokens)), *texts]) if self.tsv else score)
        return "".join(f"{line}\n" for line in lines)
