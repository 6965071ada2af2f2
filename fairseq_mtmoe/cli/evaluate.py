"""`mtmoe evaluate`: BLEU and chrF++ of every language pair of a data directory, with one load of the model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fairseq_mtmoe.analysis import scores as scoring
from fairseq_mtmoe.analysis.score_files import JSON_FILE, MARKDOWN_FILE
from fairseq_mtmoe.analysis.scores import PairScore
from fairseq_mtmoe.checkpoints import checksum
from fairseq_mtmoe.cli._quiet import quiet_fairseq
from fairseq_mtmoe.cli._score_folder import ScoreFolder, digest_of_data
from fairseq_mtmoe.cli.plot import names

if TYPE_CHECKING:
    from fairseq_mtmoe.evaluation.translator import Translation


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
@click.option("--references", type=click.Choice(["text", "fairseq"]), default="text", show_default=True,
              help="text: the text in DATA/raw, where it is there; fairseq: what fairseq-generate compares, binarized "
              "words with <unk> for unknown ones, without sentences that are too long for the model.")  # fmt: skip
@click.option("--base-evaluation", type=click.Choice(["prices", "greedy"]),
              help="How BASE layers route (mtmoe options base_moe); by default as the checkpoint says.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace other scores in the output folder.")
@click.option("--fp16", is_flag=True, help="Half precision.")
@click.option("--bf16", is_flag=True, help="Half precision with float32's range: the fastest on new GPUs.")
@click.option("--cpu", is_flag=True, help="Do not use a GPU.")
@quiet_fairseq()
def command(
    data: str,
    checkpoints: str,
    subset: str,
    lang_pairs: tuple[str, ...],
    out: Path | None,
    langs: tuple[str, ...],
    post_process: str | None,
    references: str,
    overwrite: bool,
    **decoding: float | bool | str | None,
) -> None:
    """Translate the test set of every language pair of DATA and score it.

    Settings of the task, such as --langs and --decoder-langtok, are those that the model was trained with. Prints a
    table, and writes scores.json, scores.md and the texts that were compared, en-de.hyp and en-de.ref, to the output
    folder; scores that it has already, of the same model, data and settings, are shown again. BLEU equals that of
    sacrebleu on the two files, and with --references fairseq that of fairseq-generate --scoring sacrebleu. A sentence
    that is too long for the model counts as one with an empty translation.
    """
    from fairseq_mtmoe import __version__, register

    register()
    from fairseq_mtmoe.evaluation import test_sets
    from fairseq_mtmoe.evaluation.stored import existing
    from fairseq_mtmoe.evaluation.translator import Decoding, Translator

    sizes = test_sets.sizes_of(data, subset)
    paths = checkpoints.split(":")
    options = Decoding(**decoding)  # type: ignore[arg-type]
    settings = {
        "checkpoint": checkpoints, "data": data, "subset": subset, **asdict(options), "references": references,
        "lang_pairs": lang_pairs, "langs": langs, "post_process": post_process, "version": __version__,
        "checkpoint_sha256": [checksum.identity(existing(path)) for path in paths],
        "data_sha256": digest_of_data(test_sets.folders(data)[0], subset),
    }  # fmt: skip
    place = out if out is not None else Path(paths[0]).parent / "scores" / f"{Path(paths[0]).stem}-{subset}"
    folder = ScoreFolder(place, settings, overwrite)
    results = folder.finished()
    if results is None:
        translator = Translator(data, paths, options, langs, post_process, references)
        pairs = test_sets.choose_pairs(sizes, translator.trained_pairs, lang_pairs)
        translator.check_references(pairs, subset)
        tiers = test_sets.tiers_of(data, [*translator.trained_pairs, *pairs])
        total = sum(test_sets.size_of(pair, sizes) or 0 for pair in pairs)
        results = evaluate_pairs(pairs, tiers, total, partial(translator.translate, subset=subset), folder)
        folder.write_scores(results)
    else:
        click.echo(f"{place} has the scores of this model, data and settings already.", err=True)
    show(results, place)


def evaluate_pairs(
    pairs: Sequence[str],
    tiers: dict[str, str],
    total: int,
    translate: Callable[..., Translation],
    folder: ScoreFolder,
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
            text = translate(pair, advance=lambda sentences: progress.advance(bar, sentences))
            score = _score(text, tiers.get(pair, ""))
            folder.write_texts(pair, text.hypotheses, text.references)
            console.print(_line(score, time.monotonic() - start), highlight=False, soft_wrap=True)
            results.append(score)
    return results


def _score(text: Translation, tier: str) -> PairScore:
    score = scoring.score_pair(text.pair, text.hypotheses, text.references, tier)
    return replace(
        score, references=text.reference_file, altered_references=text.altered, untranslated=text.untranslated
    )


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
    for name in (JSON_FILE, MARKDOWN_FILE):
        console.print(str(folder / name), soft_wrap=True, highlight=False, markup=False)


def _line(score: PairScore, seconds: float) -> str:
    line = f"{score.pair}: BLEU {score.bleu:.2f}, chrF++ {score.chrf:.2f}, {score.sentences} sentences"
    return "; ".join([f"{line} in {seconds:.0f} s", *scoring.remarks(score)])
