"""Finds and reads the scores of runs, whichever command wrote them, as `comparison` takes them."""

from __future__ import annotations

import glob
import math
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fairseq_mtmoe.analysis import run_log, task_scores
from fairseq_mtmoe.analysis import scores as pair_scores
from fairseq_mtmoe.analysis.comparison import RunScores
from fairseq_mtmoe.analysis.score_files import JSON_FILE
from fairseq_mtmoe.analysis.scores import PairScore
from fairseq_mtmoe.analysis.task_scores import TaskScore
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import read_json

SCORES = "scores"  # the folder beside a checkpoint that has its scores
BEST = "checkpoint_best.pt"


def expanded(pattern: str) -> list[Path]:
    """The folders that a pattern with `*`, `?` or `[…]` stands for, which no shell expands after `name=`.

    Raises:
        UserError: there is none.
    """
    if not glob.has_magic(pattern):
        return [Path(pattern)]
    found = sorted(map(Path, glob.glob(pattern)))
    if not found:
        raise UserError(f"`{pattern}` must stand for folders of runs, but no file has such a name.")
    return found


def score_files(path: Path) -> list[Path]:
    """Those that `path` may mean: itself, the one in it or below it, or several below it."""
    for place in (path, path / JSON_FILE, path / SCORES / JSON_FILE):
        if place.is_file():
            return [place]
    return sorted((path / SCORES).glob(f"*/{JSON_FILE}"))


def score_file(path: Path) -> Path:
    """The scores in a folder of scores, or in a run's folder.

    Raises:
        UserError: there are none, or several.
    """
    found = score_files(path)
    if len(found) == 1:
        return found[0]
    if found:
        folders = ", ".join(str(place.parent) for place in found)
        raise UserError(f"`{path}` must have one folder of scores, but has {len(found)}: name one of {folders}.")
    raise UserError(
        f"`{path}` must be a folder with {JSON_FILE}, or a run with one below {SCORES}/, but has none: "
        f"`mtmoe evaluate {_data_of(path)} --path {path / BEST}` writes it."
    )


def _data_of(run: Path) -> str:
    """Return the data that a run was trained on, as its log has it, or the word for it."""
    try:
        events = run_log.read(run / run_log.FILE_NAME)
    except UserError:
        return "DATA"
    return shlex.quote(next((event.get("data") for event in events if event["event"] == "run"), None) or "DATA")


def read_scores(path: Path) -> RunScores:
    """The scores of a run.

    Raises:
        UserError: there are none, or the file holds something else.
    """
    file = score_file(path)
    content = read_json(file, "scores")
    try:
        if isinstance(content, dict) and "pairs" in content:
            return _of_pairs(path, file.parent, *pair_scores.from_content(content))
        return _of_tasks(file.parent, *task_scores.from_content(content))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"`{file}` must hold the scores of fairseq-validate --task glue or of mtmoe evaluate, but holds something "
            "else."
        ) from error


def _of_tasks(folder: Path, settings: dict[str, Any], scores: Sequence[TaskScore]) -> RunScores:
    compared = {
        score.task: {"metric": score.metric, "set of data": [(one.name, one.data_sha256) for one in score.sets]}
        for score in scores
    }
    return RunScores(
        folders=(str(folder),),
        checkpoints=(str(settings["checkpoint"]),),
        seed=_whole(settings["seed"]),
        subset=str(settings["subset"]),
        scores={score.task: score.score for score in scores},
        titles={score.task: score.title for score in scores},
        # Small and All alone: runs of single tasks, which complete each other, do not know of other groups.
        groups={name: tasks for name, tasks in task_scores.groups(scores).items() if name in task_scores.TITLES},
        compared=compared,
        settings=settings,
        majority={score.task: value for score in scores if (value := score.majority(score.metric)) is not None},
        counted={score.task: [(name, value) for name, value, _ in score.as_in_ca_mtl] for score in scores},
        constants=[sentence for score in scores for sentence in score.constants],
    )


def _of_pairs(path: Path, folder: Path, settings: dict[str, Any], scores: Sequence[PairScore]) -> RunScores:
    if not scores or not all(math.isfinite(score.bleu) for score in scores):
        raise ValueError("there is no score, or one that is no number")
    ordered = pair_scores.in_order(scores)
    tiers = {tier: [score.pair for score in ordered if score.tier == tier] for tier in pair_scores.TIERS}
    groups = {**{tier: pairs for tier, pairs in tiers.items() if pairs}, pair_scores.ALL: [s.pair for s in ordered]}
    data = {"data": settings.get("data_sha256"), "kind of references": settings.get("references")}
    checkpoint = Path(str(settings["checkpoint"]).partition(":")[0])
    return RunScores(
        folders=(str(folder),),
        checkpoints=(str(settings["checkpoint"]),),
        seed=_logged_seed([path, folder.parent.parent, checkpoint.parent]),
        subset=str(settings["subset"]),
        scores={score.pair: float(score.bleu) for score in ordered},
        titles={score.pair: score.pair for score in ordered},
        groups=groups,
        compared={score.pair: {"BLEU signature": score.bleu_signature, **data} for score in ordered},
        settings=settings,
    )


def _logged_seed(folders: Iterable[Path]) -> int | None:
    """The seed in the first run log among these folders."""
    for folder in folders:
        try:
            events = run_log.read(folder / run_log.FILE_NAME)
        except UserError:
            continue
        return next((_whole(event.get("seed")) for event in events if event["event"] == "run"), None)
    return None


def _whole(value: object) -> int | None:
    if value is not None and type(value) is not int:
        raise TypeError("a seed is a whole number")
    return value
