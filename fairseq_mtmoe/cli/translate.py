"""`mtmoe translate`: translation of text files, or a web page for trying models."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairseq_mtmoe import __version__
from fairseq_mtmoe.checkpoints import checksum
from fairseq_mtmoe.cli._lines import (
    Files,
    Screen,
    expect_output,
    output_paths,
    read,
    survey,
    writing,
)
from fairseq_mtmoe.cli._shared import (
    PATH,
    as_file,
    batch_options,
    expect_checkpoints,
    length_options,
    list_option,
    overwrite_option,
    precision_options,
    quiet_fairseq,
    workers_option,
)
from fairseq_mtmoe.cli._workers import done_by, load
from fairseq_mtmoe.core.errors import UserError, raise_invalid

if TYPE_CHECKING:
    from fairseq_mtmoe.translation.decode.decode import RowDecoder
    from fairseq_mtmoe.translation.decode.text_translator import TextTranslator


@click.command("translate")
@click.argument("models", nargs=-1, required=True, metavar="MODEL…")
@click.option(
    "--from", "source", metavar="LANG", help="Language of the text, as the model names it."
)
@list_option("--to", "targets", metavar="LANG,…", help="Languages to translate into.")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    type=PATH,
    metavar="FILE",
    help="Text in UTF-8, one or more sentences per line; by default standard input. Repeatable: "
    "files are translated in order.",
)
@click.option(
    "--out",
    type=PATH,
    help="File for the translations, a name with {lang}, or a folder for in.txt.LANG; by default "
    "standard output. To continue an interrupted translation of --input, start it again.",
)
@click.option("--beam", type=click.IntRange(1), show_default="5", help="Beam size; 1: greedy.")
@length_options
@click.option(
    "--n-best",
    type=click.IntRange(1),
    default=1,
    help="Lines of output per line of input, the best first.",
)
@click.option(
    "--sampling",
    is_flag=True,
    help="Sample translations from the model's distribution instead of beam search, as for "
    "back-translation. --beam is then the number of samples, by default --n-best; the most "
    "probable are written.",
)
@click.option(
    "--sampling-topk",
    type=click.IntRange(1),
    metavar="K",
    help="Sample each token from the K most probable.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=1,
    help="Seed for --sampling; samples also depend on the size of batches.",
)
@click.option(
    "--scores",
    is_flag=True,
    help="Write a score and a tab before each translation: its log-probability to the base 2, "
    "divided by length^lenpen, as in fairseq-generate.",
)
@batch_options
@workers_option
@click.option(
    "--web",
    is_flag=True,
    help="Serve a web page that shows the translations of all MODELs side by side.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8765,
    help="Port for --web; 0 picks a free port.",
)
@overwrite_option
@precision_options
@quiet_fairseq()
def command(
    models: tuple[str, ...], source: str | None, targets: tuple[str, ...],
    inputs: tuple[Path, ...], out: Path | None, n_best: int, scores: bool,
    workers: int, web: bool, port: int, overwrite: bool, **search: Any,
) -> None:  # fmt: skip
    """Translate text with MODEL, a checkpoint or a file of mtmoe import-hf.

    MODEL can be an ensemble, FILE:FILE. Each line of input gives one line of output; an empty line
    stays empty. Lines that are too long for the model are split at the ends of sentences. MODEL
    contains the vocabulary: no data directory is needed.

    \b
    mtmoe translate nllb.pt --from eng_Latn --to swh_Latn < in.txt > out.txt
    mtmoe translate run/checkpoint_best.pt --from en --to sw,ig --input in.txt --out translations
    mtmoe translate before.pt after.pt --web
    """
    search["beam"] = search["beam"] or (n_best if search["sampling"] else 5)
    if n_best > search["beam"]:
        raise_invalid("--n-best", f"at most --beam, {search['beam']}", n_best)
    if not web:
        _check(models, source, targets, out)
    expect_checkpoints(*models)
    from fairseq_mtmoe.translation.decode.decode import Decoding

    decoding = Decoding.of(search)
    if web:
        from fairseq_mtmoe.cli._web import serve

        serve([load(model, decoding) for model in models], models, port)
        return
    assert source is not None
    if not inputs and sys.stdin is None:
        raise UserError("`--input` is required, because the standard input is closed.")
    total, digests = survey(*inputs)
    sink: Screen | Files
    if out is None:
        sink = Screen(sys.stdout.buffer)
    else:
        checkpoints = models[0].split(":")
        settings: dict[str, Any] = {"MODEL": list(map(checksum.identity, checkpoints))}
        settings |= {"--input": digests, "--from": source, "--to": targets, **asdict(decoding)}
        settings |= {"--n-best": n_best, "--scores": scores, "version": __version__}
        paths = output_paths(out, targets, inputs)
        kept = [*inputs, *map(Path, checkpoints)]
        sink = Files(paths, settings if inputs else None, overwrite, kept)
    # Libraries' output stays apart from the translations.
    with contextlib.redirect_stdout(sys.stderr):
        translator = load(models[0], decoding, workers)
        decoder = translator.decoder(decoding, n_best)
        total *= len(targets)
        _translate(translator, decoder, source, targets, inputs, total, sink, workers, scores)


def _check(
    models: Sequence[str], source: str | None, targets: Sequence[str], out: Path | None
) -> None:
    """Raise `UserError` if options conflict."""
    if len(models) > 1:
        raise UserError("Several `MODEL`s require `--web`; an ensemble is written FILE:FILE.")
    for option, value in (("--from", source), ("--to", targets)):
        if not value:
            raise UserError(f"`{option}` is required, as in `--from en --to sw,ig`.")
    expect_output(out)
    if out is None and len(targets) > 1:
        raise UserError("Several languages in `--to` require `--out`.")


def _translate(
    translator: TextTranslator,
    decoder: RowDecoder,
    source: str,
    targets: Sequence[str],
    inputs: Sequence[Path],
    total: int,
    sink: Screen | Files,
    workers: int,
    scores: bool,
) -> None:
    """Check all lines, then translate them in groups and write each.

    `total` is the number of lines in all languages, 0 if unknown.
    """
    line_format = "{0.score:.4f}\t{0.text}" if scores else "{0.text}"
    lines_read = 0
    cut = 0
    with done_by(workers, decoder.decode) as decode_all:
        translator.codec.check(source, targets)
        for group in chain.from_iterable(map(read, inputs)):
            translator.codec.expect_short(group, source)
        with writing(sink, "translating", total or None) as (progress, bar):
            advance = partial(progress.advance, bar)
            for group in chain.from_iterable(map(read, inputs or (None,))):
                # An interrupted translation may have written the first lines of this group.
                written = max(0, sink.lines - lines_read * decoder.n_best)
                lines_read += len(group.lines)
                if lines_read * decoder.n_best > sink.lines:
                    translated = translator.translated(
                        group, source, targets, decoder, decode_all, advance
                    )
                    for target, hypotheses in translated.items():
                        texts = map(line_format.format, chain.from_iterable(hypotheses))
                        sink.write(target, as_file(islice(texts, written, None)))
                        cut += sum(best.is_cut for best, *_ in hypotheses)
                progress.update(bar, completed=lines_read * len(targets))
    if cut:
        click.echo(
            f"translations that may lack their end: {cut:,}; they reached the length limit of "
            "--max-len-a, --max-len-b or the model",
            err=True,
        )
