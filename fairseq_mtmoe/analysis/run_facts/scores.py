"""What runs reached on test sets, with what chance in drawing sentences does, and how far one is above another."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_mtmoe.analysis import scores as pair_scores
from fairseq_mtmoe.analysis import task_scores
from fairseq_mtmoe.analysis.differences import SEED, Differences, Sampling, find_differences, groups_of
from fairseq_mtmoe.analysis.evaluated import SPBLEU, Evaluation, metrics_of, outputs_of
from fairseq_mtmoe.analysis.run_facts.fields import Comparison, Difference, Group, ScoreRow, Scores
from fairseq_mtmoe.analysis.run_facts.reading import number
from fairseq_mtmoe.analysis.scores import ALL, PairScore
from fairseq_mtmoe.analysis.significance import SAMPLES, half_interval, resampled
from fairseq_mtmoe.analysis.significance import Comparison as Compared
from fairseq_mtmoe.analysis.task_scores import TaskScore
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import read_json

TRIALS = 1000
"""Of the randomisation: fewer than `mtmoe compare` makes, for a page that may be made anew again and again."""
Z_95 = 1.96

Errors = Mapping[str, Mapping[str, float]]  # by a row's key and by metric


def read_score_file(file: Path) -> dict[str, Any]:
    """The content of a `scores.json`.

    Raises:
        UserError: it is none.
    """
    content = read_json(file, "scores")
    if not isinstance(content, dict) or not ({"pairs", "tasks"} & content.keys()):
        raise UserError(
            f"`{file}` must hold the scores of mtmoe evaluate or of fairseq-validate --task glue, but holds something "
            "else."
        )
    return content


def scores_of(file: Path, content: Mapping[str, Any], errors: Errors) -> Scores:
    """Of either kind.

    Raises:
        UserError: the file holds something else.
    """
    try:
        if "pairs" in content:
            return _of_pairs(*pair_scores.from_content(content), errors)
        return _of_tasks(*task_scores.from_content(content))
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(f"`{file}` must hold scores, but cannot be read as such: {error}.") from error


def _of_pairs(settings: Mapping[str, Any], scores: Sequence[PairScore], errors: Errors) -> Scores:
    ordered = pair_scores.in_order(scores)
    rows = [_row("pair", score.pair, score.tier, score.sentences, _values(score), errors) for score in ordered]
    averages = [
        _row(*_place(name), name if name != ALL else "", average.pairs, _values(average), errors)
        for name, average in pair_scores.averages(ordered).items()
    ]
    metrics = list(dict.fromkeys(metric for row in rows for metric in row["values"]))
    return {
        "subset": str(settings.get("subset", "")),
        "checkpoint": str(settings.get("checkpoint", "")),
        "metrics": metrics,
        "rows": rows,
        "averages": averages,
        "signatures": [f"{name} ({', '.join(of)})" for name, of in pair_scores.signatures(ordered).items()],
        "remarks": [f"{score.pair}: {remark}" for score in ordered for remark in pair_scores.remarks(score)],
    }


def _values(one: Any) -> dict[str, float | None]:
    own = {"BLEU": one.bleu, "chrF++": one.chrf, SPBLEU: one.spbleu}
    known = {name: number(value, 6) for name, value in own.items() if value is not None}
    return {**known, **{name: number(value, 6) for name, value in one.metrics.items()}}


def _of_tasks(settings: Mapping[str, Any], scores: Sequence[TaskScore]) -> Scores:
    def row(
        key: str, label: str, group: Group, examples: int, score: float, error: float, majority: float | None = None
    ) -> ScoreRow:
        half = None if math.isnan(error) else number(Z_95 * error, 6)
        return {
            "key": key, "label": label, "group": group, "tier": "", "examples": examples,
            "values": {"score": number(score, 6)}, "errors": {"score": half}, "majority": number(majority, 6),
        }  # fmt: skip

    def rows(one: TaskScore) -> list[ScoreRow]:
        own = row(
            f"task:{one.task}", f"{one.title} ({one.metric})", "task", one.examples, one.score, one.standard_error,
            one.majority(one.metric),
        )  # fmt: skip
        return [own] + [
            row(f"task:{one.task}:{name}", f"{one.title} ({name})", "task", one.examples, *figure, one.majority(name))
            for name, figure in one.also.items()
        ]

    averages = task_scores.averages(scores)
    return {
        "subset": str(settings.get("subset", "")),
        "checkpoint": str(settings.get("checkpoint", "")),
        "metrics": ["score"],
        "rows": [row for one in scores for row in rows(one)],
        "averages": [
            row(f"group:{name}", name, "group", one.tasks, one.score, one.standard_error)
            for name, one in averages.items()
        ],
        "signatures": [],
        "remarks": [sentence for one in scores for sentence in one.constants],
    }


def _row(
    group: Group, label: str, tier: str, examples: int, values: dict[str, float | None], errors: Errors
) -> ScoreRow:
    key = "all" if group == "all" else f"{group}:{label}"
    known = errors.get(key, {})
    halves = {metric: number(known.get(metric), 4) for metric in values}
    return {
        "key": key, "label": label, "group": group, "tier": tier, "examples": examples, "values": values,
        "errors": halves, "majority": None,
    }  # fmt: skip


def _place(name: str) -> tuple[Group, str]:
    return ("all", ALL) if name == ALL else ("tier", name)


def errors_of(evaluation: Evaluation, advance: Callable[[str], None]) -> dict[str, dict[str, float]]:
    """Half of the 95% confidence interval of each score, by sacreBLEU's bootstrap over the test set's sentences.

    Of spBLEU, for which it takes the model of its pieces, nothing is said.

    Raises:
        UserError: texts do not give the score that is beside them.
    """
    sampling = Sampling(SEED, SAMPLES, TRIALS)
    draws: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
    metrics = [name for name in metrics_of([evaluation]) if name != SPBLEU]
    for pair in evaluation.pairs:
        for metric in metrics:
            scorer, (output,) = outputs_of(metric, pair, [evaluation])
            draws.setdefault(metric, {})[pair] = resampled(scorer, output, sampling.seed_of(pair), sampling.samples)
        advance(pair)
    found: dict[str, dict[str, float]] = {}
    for metric, of in draws.items():
        for pair, scores in of.items():
            found.setdefault(f"pair:{pair}", {})[metric] = half_interval(scores)
        for name, pairs in groups_of(evaluation).items():
            group, label = _place(name)
            mean = np.mean([of[pair] for pair in pairs], axis=0)
            found.setdefault("all" if group == "all" else f"tier:{label}", {})[metric] = half_interval(mean)
    return found


def comparisons_of(
    evaluations: Sequence[Evaluation], names: Sequence[str], advance: Callable[[str], None]
) -> list[Comparison]:
    """Every run but the first beside the first, by every metric.

    Args:
        evaluations: two or more, of the same test sets.
        names: the runs'.

    Raises:
        UserError: texts do not give the score that is beside them.
    """
    found = find_differences(evaluations, Sampling(SEED, SAMPLES, TRIALS), None, advance)
    name_of = {id(evaluation): name for evaluation, name in zip(evaluations, names, strict=True)}
    return [
        {
            "first": name_of[id(one.first)],
            "second": name_of[id(one.other)],
            "metric": one.metric,
            "rows": _differences(one),
        }
        for one in found
    ]


def _differences(found: Differences) -> list[Difference]:
    pairs: list[tuple[Group, str, Compared]] = [("pair", pair, one) for pair, one in found.pairs.items()]
    groups: list[tuple[Group, str, Compared]] = [(*_place(name), one) for name, one in found.groups.items()]
    return [
        {
            "key": "all" if group == "all" else f"{group}:{label}", "label": label, "group": group,
            "first": round(one.first, 4), "second": round(one.other, 4), "difference": round(one.difference, 4),
            "error": round((one.interval[1] - one.interval[0]) / 2, 4), "p": round(one.p_randomisation, 5),
        }
        for group, label, one in [*pairs, *groups]
    ]  # fmt: skip
