"""What a run reached on test sets, with what chance in drawing sentences does, and some translations of each pair."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fairseq_mtmoe.analysis.differences import SEED, Sampling
from fairseq_mtmoe.analysis.eval_folders import Evaluation, Texts, metrics_of, outputs_of, read_evaluations
from fairseq_mtmoe.analysis.rows import Row
from fairseq_mtmoe.analysis.score_files import MAJORITY, Scores, read_scores
from fairseq_mtmoe.analysis.scores import SPBLEU, signatures_of
from fairseq_mtmoe.analysis.significance import SAMPLES, Values, half_interval, resampled
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import text_lines

SAMPLING = Sampling(SEED, SAMPLES, 1000)
"""Fewer trials than `mtmoe compare` makes, for a page that may be made anew again and again."""
Z_95 = 1.96
OF_A_PAIR = 5
LONGEST = 600
"""Characters of a text; what is longer is cut."""


@dataclass(frozen=True)
class Sample:
    """One translation; `line` of the test set is from 1."""

    pair: str
    line: int
    source: str | None
    references: tuple[str, ...]
    hypothesis: str


@dataclass
class ScoresOfRun:
    """What a folder of scores says of a run: rows of pairs or tasks, then of tiers or groups; the texts, if any."""

    rows: list[Row] = field(default_factory=list)
    tiers: dict[str, str] = field(default_factory=dict)
    subset: str = ""
    checkpoint: str = ""
    signatures: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    evaluation: Evaluation | None = None


def shown_scores(file: Path, advance: Callable[[str], None]) -> ScoresOfRun:
    """A folder's scores, with confidence and some translations where its texts are there.

    Args:
        advance: is told the name of every pair whose scores are resampled.
    """
    scores = read_scores(file)
    found = ScoresOfRun(
        subset=scores.subset, checkpoint=str(scores.settings.get("checkpoint", "")), remarks=scores.remarks,
        tiers={pair: of.tier for pair, of in scores.pairs.items()},
        signatures=[f"{name} ({', '.join(of)})" for name, of in signatures_of(scores.pairs.values()).items()],
    )  # fmt: skip
    if scores.tasks:
        found.rows = [_task_row(scores, row) for row in (*scores.of("task"), *scores.averages)]
        return found
    (found.evaluation,) = read_evaluations([file.parent])
    errors = errors_of(found.evaluation, advance)
    found.rows = [replace(row, stderr=errors.get((row.task, row.metric), math.nan))
                  for row in (*scores.rows, *scores.averages)]  # fmt: skip
    found.samples, found.notes = samples_of(found.evaluation)
    return found


def _task_row(scores: Scores, row: Row) -> Row:
    """All metrics of tasks are one column, and the majority class another."""
    task = row.task if row.group == "group" else f"{scores.title(row.task)} ({row.metric})"
    return replace(row, run="", task=task, metric=MAJORITY if row.run else "score", stderr=Z_95 * row.stderr)


def errors_of(evaluation: Evaluation, advance: Callable[[str], None]) -> dict[tuple[str, str], float]:
    """Half of the 95% confidence interval of each score, by sacreBLEU's bootstrap over the test set's sentences.

    Of spBLEU, for which it takes the model of its pieces, nothing is said.
    """
    draws: dict[str, dict[str, Values]] = {name: {} for name in metrics_of([evaluation]) if name != SPBLEU}
    for pair in evaluation.texts:
        for metric, of in draws.items():
            scorer, (output,) = outputs_of(metric, pair, [evaluation])
            of[pair] = resampled(scorer, output, SAMPLING.seed_of(pair), SAMPLING.samples)
        advance(pair)
    members = {**{pair: [pair] for pair in evaluation.texts}, **evaluation.scores.groups}
    return {
        (name, metric): half_interval(np.mean([of[pair] for pair in pairs], axis=0))
        for metric, of in draws.items()
        for name, pairs in members.items()
    }


def samples_of(evaluation: Evaluation) -> tuple[list[Sample], list[str]]:
    """Some translations of each pair, and what to say of missing sources.

    Sources are in `raw/` of the data directory that was translated, where it is known.
    """
    found: list[Sample] = []
    missing: list[str] = []
    data, subset = evaluation.scores.settings.get("data"), evaluation.scores.subset
    raw = Path(data if isinstance(data, str) else "DATA") / "raw"
    files = {pair: raw / f"{subset}.{pair}.{pair.partition('-')[0]}" for pair in evaluation.texts}
    for pair, texts in evaluation.texts.items():
        sources = _lines(files[pair]) if isinstance(data, str) else []
        if len(sources) != len(texts.hypotheses):  # there is another test set by now
            missing.append(pair)
            sources = []
        for place in chosen_places(texts):
            references = tuple(_cut(lines[place] or "") for lines in texts.references if lines[place])
            source = _cut(sources[place]) if sources else None
            found.append(Sample(pair, place + 1, source, references, _cut(texts.hypotheses[place])))
    if not missing:
        return found, []
    more = f" (and of {len(missing) - 1} pairs more)" if len(missing) > 1 else ""
    return found, [
        f"Sources of translations are not shown of {missing[0]}{more}: there is no {files[missing[0]]} to read them "
        "from."
    ]


def chosen_places(texts: Texts) -> Sequence[int]:
    """Places of the sentences that are shown, the same for every system, shortest first.

    Of the sentences in the order of their references' lengths those in the middle of the first fifth, the second, and
    so on.
    """
    lengths = [len(line or "") for line in texts.references[0]]
    ordered = sorted(range(len(lengths)), key=lambda place: (lengths[place], place))
    number = min(OF_A_PAIR, len(ordered))
    return [ordered[(2 * part + 1) * len(ordered) // (2 * number)] for part in range(number)]


def _lines(path: Path) -> list[str]:
    try:
        return text_lines(path)
    except UserError:
        return []


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
