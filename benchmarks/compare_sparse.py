"""Does sparse pay? Dense and sparse models at equal cost per token, and one change at a time to the sparse one.

    python benchmarks/compare_sparse.py DATA --runs runs/sparse --systems dense,base16
    python benchmarks/compare_sparse.py DATA --runs runs/sparse --updates 1000 --result PATH      # a look

Every run is one `fairseq-train` on one core, whose clock is its processor time. A run that finished is not repeated,
one that was interrupted begins anew, and the report is written after each from all that are there.
"""

from __future__ import annotations

from pathlib import Path

import click
from compare_training import ROOT, find_runs, run_one
from equal_cost import equal_cost
from sparse_systems import BY_NAME, DENSE, SYSTEMS, UPDATES, setting
from training_report import write_report

TITLE = "where sparse pays"


@click.command(context_settings={"show_default": True})
@click.argument("data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--runs", type=click.Path(path_type=Path), required=True, help="Folder of the runs.")
@click.option("--updates", default=UPDATES, help="Of each run.")
@click.option("--seeds", default="1", metavar="N,…", help="Seeds of every system.")
@click.option("--systems", default=",".join(BY_NAME), metavar="NAME,…", help="What to train.")
@click.option("--score/--no-score", default=False, help="Translate and score the test sets.")
@click.option("--result", type=click.Path(path_type=Path),
              default=ROOT / "benchmarks" / "results" / "training_sparse_wmt15",
              help="The report's path, without its suffix.")  # fmt: skip
def main(data: Path, runs: Path, updates: int, seeds: str, systems: str, score: bool, result: Path) -> None:
    """Train what is missing on the data directory DATA, then compare all that is there."""
    for name in systems.split(","):
        if name not in BY_NAME:
            raise click.BadParameter(f"`--systems` must be some of {', '.join(BY_NAME)}, but is {name} instead.")
    chosen = setting(updates)
    for seed in seeds.split(","):
        for name in systems.split(","):
            run_one(BY_NAME[name], chosen, data, runs, int(seed), score)
            found = find_runs(runs, SYSTEMS)
            write_report(found, TITLE, chosen, result, equal_cost(found, DENSE))


if __name__ == "__main__":
    main()
