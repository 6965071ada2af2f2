"""Does sparse pay? Dense and sparse models at equal cost per token, one change at a time to the sparse one, and a
paper's systems.

    python benchmarks/compare_sparse.py wmt15 DATA --runs runs/sparse --systems dense,base
    python benchmarks/compare_sparse.py wmt15 DATA --runs runs/look --updates 1000 --result PATH      # a look

Every run is one `fairseq-train` on one core, whose clock is its processor time. A run that finished is not repeated,
one that was interrupted begins anew, and the report is written after each from all that are there.
"""

from __future__ import annotations

import json
import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import torch
from compare_training import FINISHED, find_runs, run_one, say, write_json
from equal_cost import equal_cost
from price_evaluation import Evaluator
from routing_tables import ROUTED, WAYS, routing_entropy, routing_in_evaluation
from sparse_systems import BY_NAME, DENSE, SETTINGS, SYSTEMS
from training_report import write_report

from fairseq_mtmoe import register
from fairseq_mtmoe.moe import BaseGate

TITLE = "dense and sparse models, {}"


@click.command(context_settings={"show_default": True})
@click.argument("name", metavar="SETTING", type=click.Choice(list(SETTINGS)))
@click.argument("data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--runs", type=click.Path(path_type=Path), required=True, help="Folder of the runs.")
@click.option("--updates", type=click.IntRange(1), help="Of each run; by default the setting's.")
@click.option("--seeds", default="1", metavar="N,…", help="Seeds of every system.")
@click.option("--systems", default=",".join(BY_NAME), show_default="all", metavar="NAME,…", help="What to train.")
@click.option("--score/--no-score", default=False, help="Translate and score the test sets.")
@click.option("--result", type=click.Path(path_type=Path),
              help="The report's path, without its suffix; by default in the folder of the runs.")  # fmt: skip
def main(
    name: str, data: Path, runs: Path, updates: int | None, seeds: str, systems: str, score: bool, result: Path | None
) -> None:
    """Train what is missing of SETTING on the data directory DATA, then compare all that is there."""
    for system in systems.split(","):
        if system not in BY_NAME:
            raise click.BadParameter(f"`--systems` must be some of {', '.join(BY_NAME)}, but is {system} instead.")
    chosen = replace(SETTINGS[name], updates=updates) if updates else SETTINGS[name]
    result = result or runs / f"training_sparse_{name}"
    keep_others(result.with_suffix(".json"), runs)
    register()
    logging.disable(logging.INFO)  # fairseq's, of every checkpoint that is loaded
    torch.set_num_threads(1)
    for seed in seeds.split(","):
        for system in systems.split(","):
            run_one(BY_NAME[system], chosen, data, runs, int(seed), score)
            if BY_NAME[system].arch == "base_moe":
                evaluate_routing(runs / f"{system}-{seed}")
            found = find_runs(runs, SYSTEMS)
            sections = [*equal_cost(found, DENSE), *routing_in_evaluation(found), *routing_entropy(found)]
            write_report(found, TITLE.format(name), chosen, result, sections)


def keep_others(report: Path, runs: Path) -> None:
    """Refuse to write a report anew that has other runs than this folder's: they would be lost.

    Raises:
        click.BadParameter: it has some.
    """
    rows = json.loads(report.read_text(encoding="utf-8")) if report.exists() else []
    lost = [f"{row['system']}-{row['seed']}" for row in rows if not _is_of(row, runs)]
    if lost:
        raise click.BadParameter(
            f"`--result` must be a new report, or one of the runs in {runs} alone, but is {report} instead, with "
            f"{len(lost)} runs that are not there, {lost[0]} first."
        )


def _is_of(row: dict[str, Any], runs: Path) -> bool:
    """Whether a report's run is the finished one of its name in a folder."""
    file = runs / f"{row['system']}-{row['seed']}" / FINISHED
    return file.exists() and json.loads(file.read_text(encoding="utf-8"))["command"] == row["command"]


def evaluate_routing(run: Path) -> None:
    """Perplexity of a run's last weights in each way that BASE layers can route in evaluation, kept with the run."""
    finished = json.loads((run / FINISHED).read_text(encoding="utf-8"))
    if ROUTED in finished:
        return
    evaluator = Evaluator(run / "checkpoint_last.pt")
    perplexity = {}
    if all(isinstance(gate, BaseGate) for gate in evaluator.gates):
        for way in WAYS:
            found = evaluator.validate(way)
            perplexity[way] = math.exp(sum(found["nll"].values()) / sum(found["tokens"].values()))
        say(f"{run.name}: {', '.join(f'{way} {value:.2f}' for way, value in perplexity.items())}")
    write_json(run / FINISHED, {**finished, ROUTED: perplexity})


if __name__ == "__main__":
    main()
