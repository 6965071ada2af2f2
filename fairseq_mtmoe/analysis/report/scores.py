"""What a run reached on test sets, as rows of one moment, with what chance in drawing sentences does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_mtmoe.analysis import scores as pair_scores
from fairseq_mtmoe.analysis import task_scores
from fairseq_mtmoe.analysis.differences import SEED, Sampling, groups_of
from fairseq_mtmoe.analysis.evaluated import SPBLEU, Evaluation, metrics_of, outputs_of, read_evaluations
from fairseq_mtmoe.analysis.report.samples import Sample, samples_of
from fairseq_mtmoe.analysis.rows import Moments, Row
from fairseq_mtmoe.analysis.scores import ALL, PairScore
from fairseq_mtmoe.analysis.significance import SAMPLES, half_interval, resampled
from fairseq_mtmoe.analysis.task_scores import MAJORITY, TaskScore
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import read_json

SAMPLING = Sampling(SEED, SAMPLES, 1000)
"""Fewer trials than `mtmoe compare` makes, for a page that may be made anew again and again."""
Z_95 = 1.96
NOW = Moments(*np.full((4, 1), np.nan))
Errors = Mapping[tuple[str, str], float]  # by a pair's or tier's name, and by metric


@dataclass
class ScoresOfRun:
    """What a folder of scores says of a run.

    Attributes:
        rows: of pairs or tasks, then of tiers or groups, all last; a row is of a metric.
        tiers: of the pairs.
        evaluation: the texts that were scored, where they are there.
    """

    rows: list[Row] = field(default_factory=list)
    tiers: dict[str, str] = field(default_factory=dict)
    subset: str = ""
    checkpoint: str = ""
    signatures: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    evaluation: Evaluation | None = None


def read_scores(file: Path, advance: Callable[[str], None]) -> ScoresOfRun:
    """A folder's scores, with confidence and some translations where its texts are there.

    Args:
        advance: is told the name of every pair whose scores are resampled.

    Raises:
        UserError: the folder holds something else, or texts that do not give the scores.
    """
    content = read_json(file, "scores")
    if not isinstance(content, dict) or not ({"pairs", "tasks"} & content.keys()):
        raise UserError(
            f"`{file}` must hold the scores of mtmoe evaluate or of fairseq-validate --task glue, but holds something "
            "else."
        )
    if "pairs" not in content:
        return scores_of(file, content, {})
    (evaluation,) = read_evaluations([file.parent])
    found = scores_of(file, content, errors_of(evaluation, advance))
    found.samples, found.notes = samples_of(evaluation, content.get("settings", {}).get("data"))
    found.evaluation = evaluation
    return found


def scores_of(file: Path, content: Mapping[str, Any], errors: Errors) -> ScoresOfRun:
    """Of either kind.

    Raises:
        UserError: the file holds something else.
    """
    try:
        if "pairs" in content:
            settings, of_pairs = pair_scores.from_content(content)
            found = _of_pairs(pair_scores.in_order(of_pairs), errors)
        else:
            settings, of_tasks = task_scores.from_content(content)
            found = ScoresOfRun(list(_of_tasks(of_tasks)), remarks=[line for one in of_tasks for line in one.constants])
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(f"`{file}` must hold scores, but cannot be read as such: {error}.") from error
    found.subset, found.checkpoint = str(settings.get("subset", "")), str(settings.get("checkpoint", ""))
    return found


def _row(group: str, task: str, metric: str, value: float, n: int, stderr: float = math.nan) -> Row:
    return Row("", group, metric, NOW, np.array([value]), task, n=n, stderr=stderr)


def _of_pairs(scores: Sequence[PairScore], errors: Errors) -> ScoresOfRun:
    rows: list[Row] = []
    sets: list[tuple[str, str, PairScore | pair_scores.Average, int]] = []
    sets += [("pair", one.pair, one, one.sentences) for one in scores]
    sets += [
        ("all" if name == ALL else "tier", name, mean, mean.pairs)
        for name, mean in pair_scores.averages(scores).items()
    ]
    for group, name, one, n in sets:
        own = {"BLEU": one.bleu, "chrF++": one.chrf, SPBLEU: one.spbleu, **one.metrics}
        rows += [
            _row(group, name, metric, value, n, errors.get((name, metric), math.nan))
            for metric, value in own.items()
            if value is not None
        ]
    return ScoresOfRun(
        rows,
        {score.pair: score.tier for score in scores},
        signatures=[f"{name} ({', '.join(of)})" for name, of in pair_scores.signatures(scores).items()],
        remarks=[f"{score.pair}: {remark}" for score in scores for remark in pair_scores.remarks(score)],
    )


def _of_tasks(scores: Sequence[TaskScore]) -> Iterator[Row]:
    for one in scores:
        for metric, (score, error) in {one.metric: (one.score, one.standard_error), **one.also}.items():
            task = f"{one.title} ({metric})"
            yield _row("task", task, "score", score, one.examples, Z_95 * error)
            if (majority := one.majority(metric)) is not None:
                yield _row("task", task, MAJORITY, majority, one.examples)
    for name, mean in task_scores.averages(scores).items():
        yield _row("group", name, "score", mean.score, mean.tasks, Z_95 * mean.standard_error)


def errors_of(evaluation: Evaluation, advance: Callable[[str], None]) -> dict[tuple[str, str], float]:
    """Half of the 95% confidence interval of each score, by sacreBLEU's bootstrap over the test set's sentences.

    Of spBLEU, for which it takes the model of its pieces, nothing is said.

    Raises:
        UserError: texts do not give the score that is beside them.
    """
    draws: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
    metrics = [name for name in metrics_of([evaluation]) if name != SPBLEU]
    for pair in evaluation.pairs:
        for metric in metrics:
            scorer, (output,) = outputs_of(metric, pair, [evaluation])
            draws.setdefault(metric, {})[pair] = resampled(scorer, output, SAMPLING.seed_of(pair), SAMPLING.samples)
        advance(pair)
    found = {(pair, metric): half_interval(scores) for metric, of in draws.items() for pair, scores in of.items()}
    for metric, of in draws.items():
        for name, pairs in groups_of(evaluation).items():
            found[name, metric] = half_interval(np.mean([of[pair] for pair in pairs], axis=0))
    return found
