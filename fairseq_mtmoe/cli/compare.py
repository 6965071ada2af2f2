"""`mtmoe compare`: means over seeds, or the significance of differences."""

from collections.abc import Sequence
from pathlib import Path

import click

from fairseq_mtmoe.cli._shared import PATH, progress_bar, say, show
from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.core.files import check_writable, write_text
from fairseq_mtmoe.report import comparison, differences
from fairseq_mtmoe.report.differences import SEED, Sampling
from fairseq_mtmoe.report.eval_folders import read_evaluations
from fairseq_mtmoe.report.run_log import provenance
from fairseq_mtmoe.report.score_files import Scores, expanded, read_scores
from fairseq_mtmoe.report.scores import PieceBleu
from fairseq_mtmoe.report.significance import SAMPLES, TRIALS


@click.command("compare")
@click.argument("systems", nargs=-1, required=True, metavar="RESULTS… | NAME=RUN,…")
@click.option("--out", type=PATH, help="Folder for the tables as files, and for a chart.")
@click.option(
    "--seed", type=click.IntRange(0), help=f"Seed for resampling sentences; by default {SEED}."
)
@click.option(
    "--samples",
    type=click.IntRange(1),
    metavar="N",
    help=f"Number of resamples in each significance test; by default {SAMPLES:,} for the bootstrap "
    f"and {TRIALS:,} for approximate randomisation.",
)
@click.option(
    "--spm",
    type=PATH,
    metavar="FILE",
    help="SentencePiece model of mtmoe evaluate --spm; without it spBLEU is left out.",
)
def command(
    systems: tuple[str, ...],
    out: Path | None,
    seed: int | None,
    samples: int | None,
    spm: Path | None,
) -> None:
    """Compare evaluations of the same test sets, or systems over several seeds.

    \b
    mtmoe compare results/a results/b
    mtmoe compare mt_tag=runs/tag-1,runs/tag-2 mt_dense=runs/dense-1,runs/dense-2
    mtmoe compare 'mt_dense=runs/dense-*' 'mt_tag=runs/tag-*' 'single=runs/single-*' --out results

    RESULTS is a folder of mtmoe evaluate, or a run's folder with one below scores/. Prints each
    difference to the first folder, by metric, for each language pair, each tier and all pairs, and
    its significance: sacreBLEU's paired bootstrap and approximate randomisation. A tier's score is
    the mean over its pairs.

    RUN is a folder with scores.json, or a run's folder with one below scores/, as written by
    fairseq-validate --results-path (for --task glue) and mtmoe evaluate. Runs of one system with
    the same seed and different tasks are joined. For each metric it prints each system's mean over
    seeds ± its standard error, for each task and on average. Then it prints each difference to the
    first system, paired by seed where both have it, ± half of its 95% confidence interval.
    """
    if out is not None:
        check_writable(out)
    if len(systems) > 1 and not any("=" in argument for argument in systems):
        sampling = Sampling(SEED if seed is None else seed, samples or SAMPLES, samples or TRIALS)
        pieces = None if spm is None else PieceBleu(spm)
        compare_evaluations([*map(Path, systems)], out, sampling, pieces)
        return
    for option, value in {"--seed": seed, "--samples": samples, "--spm": spm}.items():
        if value is not None:
            raise UserError(f"`{option}` cannot be combined with NAME=RUN,…: it is for RESULTS.")
    compared = read_systems(systems)
    for title, table in comparison.tables_of(compared).items():
        show(table.on_screen(title))
    say(comparison.notes(compared))
    if out is not None:
        made_by = provenance()
        write_text(out / "comparison.md", comparison.to_markdown(compared, made_by))
        write_text(out / "comparison.json", comparison.to_json(compared, made_by))
        say(out / f"comparison.{kind}" for kind in ("json", "md"))


def compare_evaluations(
    folders: Sequence[Path], out: Path | None, sampling: Sampling, pieces: PieceBleu | None
) -> None:
    """Print differences to the first evaluation and their significance; write `out`."""
    from fairseq_mtmoe.report.charts import models
    from fairseq_mtmoe.report.charts.look import save

    evaluations = read_evaluations(folders)
    with progress_bar("pairs", transient=True) as progress:
        bar = progress.add_task("", total=len(evaluations[0].texts))

        def advance(pair: str) -> None:
            progress.update(bar, advance=1, description=pair)

        compared = differences.find_differences(evaluations, sampling, pieces, advance)
    for system in compared:
        show(differences.difference_table(system).on_screen(system.title))
    say(differences.notes(compared, sampling))
    if out is not None:
        made_by = provenance()
        write_text(out / "comparison.md", differences.to_markdown(compared, sampling, made_by))
        write_text(out / "comparison.tex", differences.to_latex(compared))
        save(models.differences(compared), out / "comparison.png")
        write_text(out / "comparison.json", differences.to_json(compared, sampling, made_by))
        say(out / f"comparison.{kind}" for kind in ("json", "md", "tex", "png"))


def read_systems(arguments: Sequence[str]) -> list[comparison.System]:
    """Return the systems of `NAME=RUN,…` (UserError: their runs cannot be compared)."""
    systems: dict[str, list[Scores]] = {}
    for argument in arguments:
        name, sign, folders = argument.partition("=")
        patterns = [folder for folder in folders.split(",") if folder]
        if not (name and sign and patterns):
            rule = "a name, an equals sign and folders separated by commas"
            raise_invalid(
                "NAME=RUN,…", f"{rule}, or one of several folders of mtmoe evaluate", argument
            )
        if name in systems:
            raise UserError(f"`NAME=RUN,…` gives the name {name} twice.")
        systems[name] = []
        for pattern in patterns:
            systems[name] += map(read_scores, expanded(pattern))
    return comparison.systems_of(systems)
