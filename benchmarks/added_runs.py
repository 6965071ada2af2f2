"""Runs that were added to a study on another day: they stand in a JSON of their own, and are read as the study's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from training_report import reached
from training_systems import BASE

from fairseq_mtmoe.analysis.scores import ALL
from fairseq_mtmoe.analysis.series import PerplexitySeries
from fairseq_mtmoe.io.files import read_json

# A study's name, and the endings of what was added to it.
ADDED_TO = {"training_sparse_wmt15": ("wider", "seeds"), "training_sparse_catalogs": ("more",)}


def is_added(path: Path) -> bool:
    """Whether a JSON's runs belong to another's study."""
    return any(path.stem == f"{study}_{ending}" for study, endings in ADDED_TO.items() for ending in endings)


def with_added(path: Path, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A study's runs and those that were added to it later, of the files that are there; all beside the BASE run of
    their seed, whichever file it is in.

    Raises:
        ValueError: two files have the same run.
    """
    files = [path.with_name(f"{path.stem}_{ending}.json") for ending in ADDED_TO.get(path.stem, ())]
    added = [run for file in files if file.exists() for run in read_json(file)]
    if not added:
        return runs
    together = [*runs, *added]
    if len({(run["system"], run["seed"]) for run in together}) < len(together):
        raise ValueError(f"{path.stem} and what was added to it must have each system and seed once.")
    bests = {run["seed"]: min(run["perplexity"][ALL]) for run in together if run["system"] == BASE}
    return [_beside(run, bests) for run in together]


def _beside(run: dict[str, Any], bests: dict[int, float]) -> dict[str, Any]:
    """A run with where it came to its BASE run's best, None if it never did."""
    series = PerplexitySeries(run["updates"], run["minutes"], run["perplexity"])
    arrival = reached(series, bests[run["seed"]]) if run["seed"] in bests else None
    updates, minutes = (round(arrival[0], 1), round(arrival[1], 3)) if arrival else (None, None)
    return {**run, "updates_to_base_best": updates, "minutes_to_base_best": minutes}
