"""`mtmoe evaluate`: BLEU and chrF++ of every language pair of a data directory, with one load of the model."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fairseq_mtmoe.analysis import scores as scoring
from fairseq_mtmoe.analysis.scores import PairScore
from fairseq_mtmoe.cli.plot import names
from fairseq_mtmoe.files import write_text

if TYPE_CHECKING:
    from fairseq_mtmoe.evaluation.translator import Translation


@contextmanager
def _quiet_fairseq() -> Iterator[None]:
    """It and torch repeat the same remarks for every pair."""
    logger = logging.getLogger("fairseq")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning)
            warnings.filterwarnings("ignore", message=".*pin_memory")
            yield
    finally:
        logger.setLevel(level)


@click.command("evaluate")
@click.argument("data")
@click.option("--path", "checkpoints", required=True, metavar="FILE[:FILE…]", help="Checkpoint; several: an ensemble.")
@click.option("--subset", "--gen-subset", default="test", show_default=True, help="Which files of DATA to translate.")
@click.option("--lang-pairs", callback=names, metavar="A-B,…",
              help="Pairs to evaluate; by default those of DATA that the model was trained on.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path),
              help="Folder for the results; by default scores/CHECKPOINT-SUBSET beside the checkpoint.")  # fmt: skip
@click.option("--beam", type=click.IntRange(1), default=5, show_default=True, help="Beam size.")
@click.option("--lenpen", type=float, default=1.0, show_default=True, help="Length penalty: > 1 favours longer output.")
@click.option("--max-len-a", type=float, default=0.0, show_default=True, help="Output has at most a·source + b tokens.")
@click.option("--max-len-b", type=int, default=200, show_default=True, help="See --max-len-a.")
@click.option("--max-tokens", type=click.IntRange(1), help="Tokens in a batch; 12000 without --batch-size.")
@click.option("--batch-size", "--max-sentences", type=click.IntRange(1), help="Sentences in a batch.")
@click.option("--langs", callback=names, metavar="A,B,…", help="The model's languages, if its checkpoint has them not.")
@click.option("--post-process", metavar="NAME",
              help="How subwords join: sentencepiece, subword_nmt, none; by default found out from DATA.")  # fmt: skip
@click.option("--fp16", is_flag=True, help="Half precision.")
@click.option("--cpu", is_flag=True, help="Do not use a GPU.")
@_quiet_fairseq()
def command(
    data: str,
    checkpoints: str,
    subset: str,
    lang_pairs: tuple[str, ...],
    out: Path | None,
    langs: tuple[str, ...],
    post_process: str | None,
    **decoding: float | bool | None,
) -> None:
    """Translate the test set of every language pair of DATA and score it.

    Settings of the task, such as --langs and --decoder-langtok, are those that the model was trained with. Prints a
    table, and writes scores.json, scores.md and the texts that were compared, en-de.hyp and en-de.ref, to the output
    folder. BLEU equals that of fairseq-generate --scoring sacrebleu.
    """
    from fairseq_mtmoe import __version__, register

    register()
    from fairseq_mtmoe.evaluation import test_sets
    from fairseq_mtmoe.evaluation.translator import Decoding, Translator

    sizes = test_sets.sizes_of(data, subset)
    paths = checkpoints.split(":")
    options = Decoding(**decoding)  # type: ignore[arg-type]
    translator = Translator(data, paths, options, langs, post_process)
    pairs = test_sets.choose_pairs(sizes, translator.trained_pairs, lang_pairs)
    tiers = test_sets.tiers_of(data, [*translator.trained_pairs, *pairs])
    folder = out if out is not None else Path(paths[0]).parent / "scores" / f"{Path(paths[0]).stem}-{subset}"

    def translate(pair: str, advance: Callable[[int], None]) -> Translation:
        return translator.translate(pair, subset, advance)

    total = sum(test_sets.size_of(pair, sizes) or 0 for pair in pairs)
    results = evaluate_pairs(pairs, tiers, total, translate, folder)
    settings = {"checkpoint": checkpoints, "data": data, "subset": subset, **asdict(options), "version": __version__}
    write_text(folder / "scores.json", scoring.to_json(results, settings))
    write_text(folder / "scores.md", scoring.to_markdown(results, settings))
    show(results, folder)


def evaluate_pairs(
    pairs: Sequence[str],
    tiers: dict[str, str],
    total: int,
    translate: Callable[[str, Callable[[int], None]], Translation],
    folder: Path,
) -> list[PairScore]:
    """Translate, score and write one pair after the other, with a progress bar over all `total` sentences."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("sentences"),
               TimeElapsedColumn(), TimeRemainingColumn())  # fmt: skip
    results = []
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=total)
        for pair in pairs:
            progress.update(bar, description=pair)
            start = time.monotonic()
            text = translate(pair, lambda sentences: progress.advance(bar, sentences))
            score = scoring.score_pair(pair, text.hypotheses, text.references, tiers.get(pair, ""))
            write_text(folder / f"{pair}.hyp", "".join(f"{line}\n" for line in text.hypotheses))
            write_text(folder / f"{pair}.ref", "".join(f"{line}\n" for line in text.references))
            console.print(_line(score, text.too_long, time.monotonic() - start), highlight=False, soft_wrap=True)
            results.append(score)
    return results


def show(results: Sequence[PairScore], folder: Path) -> None:
    """Print the table of pairs and averages, and sacreBLEU's signatures."""
    table = Table("pair", "tier")
    for column in ("sentences", "BLEU", "chrF++"):
        table.add_column(column, justify="right")
    for score in scoring.in_order(results):
        table.add_row(score.pair, score.tier, f"{score.sentences}", f"{score.bleu:.2f}", f"{score.chrf:.2f}")
    table.add_section()
    for name, mean in scoring.averages(results).items():
        count = f"{mean.pairs} pair" + "s" * (mean.pairs != 1)
        table.add_row(f"[bold]{name}", count, "", f"[bold]{mean.bleu:.2f}", f"[bold]{mean.chrf:.2f}")
    console = Console()
    console.print(table)
    for signature, pairs in scoring.signatures(results).items():
        which = "" if len(pairs) == len(results) else f" ({', '.join(pairs)})"
        console.print(f"{signature}{which}", soft_wrap=True, highlight=False, markup=False)
    for name in ("scores.json", "scores.md"):
        console.print(str(folder / name), soft_wrap=True, highlight=False, markup=False)


def _line(score: PairScore, too_long: int, seconds: float) -> str:
    line = f"{score.pair}: BLEU {score.bleu:.2f}, chrF++ {score.chrf:.2f}, {score.sentences} sentences"
    left_out = f"; left out {too_long} longer than the model's positions" if too_long else ""
    return f"{line} in {seconds:.0f} s{left_out}"
