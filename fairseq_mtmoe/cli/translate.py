"""`mtmoe translate`: translation of text files, or a web page for trying models."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from rich.console import Console

from fairseq_mtmoe.checkpoints import checksum
from fairseq_mtmoe.cli._lines import Files, Screen, Sink, output_paths, read, survey
from fairseq_mtmoe.cli._shared import (
    PATH,
    expect_checkpoints,
    list_option,
    of_batches,
    of_precision,
    of_text,
    progress_bar,
    quiet_fairseq,
)
from fairseq_mtmoe.cli._workers import Here, Models, Processes, workers_of
from fairseq_mtmoe.errors import UserError, flag, raise_invalid

if TYPE_CHECKING:
    from fairseq_mtmoe.evaluation.text_batches import Forms, Group, Hypothesis, Row
    from fairseq_mtmoe.evaluation.translator import Decoding

    Translating = Here[Row, list[Hypothesis]] | Processes[Row, list[Hypothesis]]


@click.command("translate")
@click.argument("models", nargs=-1, required=True, metavar="MODEL")
@click.option("--from", "source", metavar="LANG", help="Language of the text, as the model names it.")
@list_option("--to", "targets", metavar="LANG,…", help="Languages to translate into.")
@click.option("--input", "inputs", multiple=True, type=PATH, metavar="FILE",
              help="Text in UTF-8, one or more sentences per line; by default standard input. Repeatable: files are "
              "translated in order.")  # fmt: skip
@click.option("--out", type=PATH,
              help="File for the translations, a name with {lang}, or a folder for in.txt.LANG; by default standard "
              "output. Start an interrupted translation of --input again to continue it.")  # fmt: skip
@click.option("--beam", type=click.IntRange(1), default=5, show_default=True, help="Beam size; 1 is greedy.")
@click.option("--lenpen", type=float, default=1.0, show_default=True, help="Length penalty: > 1 favours longer output.")
@click.option("--max-len-a", type=float, default=0.0, show_default=True,
              help="Largest length of output: a·source + b tokens.")  # fmt: skip
@click.option("--max-len-b", type=int, default=200, show_default=True, help="See --max-len-a.")
@click.option("--n-best", type=click.IntRange(1), default=1, show_default=True,
              help="Lines of output per line of input, the best first.")  # fmt: skip
@click.option("--sampling", is_flag=True,
              help="Sample translations from the model's distribution instead of beam search, as for back-translation. "
              "--beam is then the number of samples, by default --n-best; the most probable are written.")  # fmt: skip
@click.option("--sampling-topk", type=click.IntRange(1), metavar="K",
              help="Sample each token from the K most probable.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), help="Seed for --sampling; a sentence has the same translation in any "
              "batch, process or run.  [default: 1]")  # fmt: skip
@click.option("--scores", is_flag=True, help="Write fairseq-generate's score and a tab before each translation.")
@of_batches
@of_text
@click.option("--web", is_flag=True, help="Serve a web page that shows the translations of all MODELs side by side.")
@click.option("--port", type=click.IntRange(0, 65535), default=8765, show_default=True,
              help="Port for --web; 0 takes a free one.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace the --out files if they exist.")
@of_precision
@quiet_fairseq()
def command(
    models: tuple[str, ...], source: str | None, targets: tuple[str, ...], inputs: tuple[Path, ...], out: Path | None,
    n_best: int, scores: bool, workers: int, data: str | None, web: bool, port: int, overwrite: bool, **search: Any,
) -> None:  # fmt: skip
    """Translate text with MODEL, a checkpoint or a file of mtmoe import-hf (FILE:FILE is an ensemble).

    Each line of input gives one line of output; an empty line stays empty. Lines that are too long for the model are
    split at the ends of sentences. MODEL contains the vocabulary: no data directory is needed.

    \b
    mtmoe translate nllb.pt --from eng_Latn --to swh_Latn < in.txt > out.txt
    mtmoe translate run/checkpoint_best.pt --from en --to sw,ig --input in.txt --out translations
    mtmoe translate before.pt after.pt --web
    """
    _complete_sampling(search, n_best)
    _check(models, source, targets, inputs, out, web, n_best, search["beam"])
    from fairseq_mtmoe import register

    register()
    from fairseq_mtmoe.evaluation.translator import Decoding

    decoding = Decoding.of(search)
    if workers > 1 and decoding.use_cuda:
        raise_invalid("--workers", "1 on a GPU; `--cpu` translates on the CPU", workers)
    each = [Models(tuple(model.split(":")), decoding, data, n_best) for model in models]
    if web:
        from fairseq_mtmoe.cli._web import serve

        serve([model.load() for model in each], models, port, lambda address: click.echo(address, err=True))
        return
    assert source is not None
    stdout = None if sys.stdout is None else sys.stdout.buffer
    with contextlib.redirect_stdout(sys.stderr):  # keeps libraries' output apart from the translations
        job = _Job(each[0], source, list(dict.fromkeys(targets)), inputs, scores)
        job.run(out, stdout, workers, overwrite)


def _complete_sampling(search: dict[str, Any], n_best: int) -> None:
    """Set defaults of sampling options (UserError: one is given without `--sampling`)."""
    for name in () if search["sampling"] else ("sampling_topk", "seed"):
        if search[name] is not None:
            raise_invalid(flag(name), "absent without `--sampling`", search[name])
    search["seed"] = 1 if search["seed"] is None else search["seed"]
    if search["sampling"] and click.get_current_context().get_parameter_source("beam") is ParameterSource.DEFAULT:
        search["beam"] = n_best


def _check(
    models: Sequence[str], source: str | None, targets: Sequence[str], inputs: Sequence[Path], out: Path | None,
    web: bool, n_best: int, beam: int,
) -> None:  # fmt: skip
    """Raise `UserError` if options conflict or a file is missing; called before torch is imported."""
    expect_checkpoints(*models)
    if n_best > beam:
        raise_invalid("--n-best", f"at most --beam, {beam}", n_best)
    if web:
        from fairseq_mtmoe.cli._web import expect_server

        expect_server()
        return
    if len(models) > 1:
        raise_invalid("MODEL", "one model, or FILE:FILE for an ensemble; only --web takes several", " ".join(models))
    for option, value in (("--from", source), ("--to", targets)):
        if not value:
            raise UserError(f"`{option}` must be given, such as `--from en --to sw,ig`, but is not.")
    if out is not None and not out.name:
        raise_invalid("--out", "a file, a name with {lang}, or a folder", str(out))
    if not inputs and sys.stdin is None:
        raise UserError("`--input` must be given if the standard input is closed, but is not.")
    if out is None and sys.stdout is None:
        raise UserError("`--out` must be given if the standard output is closed, but is not.")
    if out is None and len(targets) > 1:
        raise_invalid("--to", "one language for the standard output; `--out` takes several", ",".join(targets))


class _Job:
    """Translation of inputs from one language into others."""

    def __init__(
        self, models: Models, source: str, targets: Sequence[str], inputs: Sequence[Path], scores: bool
    ) -> None:
        self._models, self._source, self._targets = models, source, targets
        self._inputs, self._scores = inputs, scores
        self._cut = 0  # translations that reached the length limit

    def run(self, out: Path | None, stdout: Any, workers: int, overwrite: bool) -> None:
        """Check all lines, then translate them in groups and write each to `out`, or else to `stdout`."""
        found = [survey(path) for path in self._inputs]
        files: Files | None = None
        if out is not None:
            settings = self._settings([digest for _, digest in found]) if found else None
            models = [("MODEL", Path(path)) for path in self._models.checkpoints]
            kept = [*(("--input", path) for path in self._inputs), *models]
            files = Files(output_paths(out, self._targets, self._inputs), settings, overwrite, kept)
        translator = self._models.load(workers)
        forms, decoding, n_best = translator.forms, self._models.decoding, self._models.n_best
        work = partial(translator.translate_batch, decoding=decoding, n_best=n_best)
        with closing(workers_of(work, workers)) as translating:
            forms.check(self._source, self._targets)
            for some in (some for path in self._inputs for some in read(path)):
                forms.expect_short(some.lines, self._source, some.name, some.first)
            sink: Sink = Screen(stdout)
            if files is not None:
                files.begin()
                sink = files
            total = sum(count for count, _ in found) * len(self._targets) if found else None
            console = Console(stderr=True, quiet=out is None and bool(stdout.isatty()))
            with closing(sink), progress_bar("lines", console, transient=True) as progress:
                bar = progress.add_task("translating", total=total)
                for number, (group, lines) in enumerate(self._groups(forms)):
                    if number >= sink.groups:
                        self._translate(group, translating, sink, lambda count: progress.advance(bar, count))
                        sink.write({lang: self._written(group, lang) for lang in self._targets})
                    progress.update(bar, completed=lines * len(self._targets))
                sink.finish()
            if self._cut:
                click.echo(
                    f"translations that may lack their end: {self._cut:,}; they reached the length limit of "
                    "--max-len-a, --max-len-b or the model", err=True,
                )  # fmt: skip

    def _groups(self, forms: Forms) -> Any:
        """Yield the groups of all inputs, each with the number of lines up to its end."""
        lines, decoding = 0, self._models.decoding
        for path in self._inputs or (None,):
            for some in read(path):
                lines += len(some.lines)
                yield (
                    forms.group(
                        some.lines, self._source, self._targets, decoding, self._models.n_best, some.name, some.first
                    ),
                    lines,
                )

    @staticmethod
    def _translate(group: Group, translating: Translating, sink: Sink, advance: Any) -> None:
        for number, hypotheses in sink.known.items():
            group.add(number, hypotheses)
        left = {number: rows for number, rows in enumerate(group.batches) if number not in sink.known}
        for number, found in translating.done(left):
            group.add(number, found)
            sink.note(number, found)
            advance(sum(row.part == 0 for row in group.batches[number]))

    def _written(self, group: Group, lang: str) -> str:
        start = "{:.4f}\t" if self._scores else ""
        lines = group.finished(lang)
        self._cut += sum(best.is_cut for best, *_ in lines)
        return "".join(f"{start.format(one.score)}{one.text}\n" for hypotheses in lines for one in hypotheses)

    def _settings(self, digests: Sequence[str]) -> dict[str, object]:
        """Return the settings that determine the translations; a continued one must have the same."""
        from fairseq_mtmoe import __version__

        decoding: Decoding = self._models.decoding
        return {
            "MODEL": [checksum.identity(path) for path in self._models.checkpoints], "--input": digests,
            "--from": self._source, "--to": self._targets, **asdict(decoding), "--n-best": self._models.n_best,
            "--scores": self._scores, "--data": self._models.data, "version": __version__,
        }  # fmt: skip
