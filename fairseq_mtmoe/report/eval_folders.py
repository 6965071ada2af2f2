"""Folders of `mtmoe evaluate` with their texts, checked to be comparable.

Beside `scores.json` each pair has `en-de.hyp` and `en-de.ref`. With several references per sentence
there are `en-de.ref1`, `en-de.ref2`, …, with an empty line if a sentence has no further one.
Metrics that are means over sentences and not sacreBLEU's, such as COMET, have a number per sentence
in `en-de.comet`.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import text_lines
from fairseq_mtmoe.report.rows import run_names
from fairseq_mtmoe.report.score_files import JSON_FILE, Scores, read_scores
from fairseq_mtmoe.report.scores import PairScore, PieceBleu, scorer_of
from fairseq_mtmoe.report.significance import SentenceMean, SystemOutput, output_of

WITH_TEXTS = "the scores of mtmoe evaluate, with the texts that significance tests need"
SAME = 1e-4
"""Tolerance of a recomputed score: the order of summing may differ."""


@dataclass(frozen=True)
class Texts:
    """A pair's texts that were compared.

    Attributes:
        references: one list or more; None where a sentence has no further reference.
        figures: a number per sentence, by the metrics that are their mean.
    """

    hypotheses: Sequence[str]
    references: Sequence[Sequence[str | None]]
    figures: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Evaluation:
    """A folder of `mtmoe evaluate` with a short unique name; low tier first."""

    name: str
    folder: Path
    scores: Scores
    texts: Mapping[str, Texts]


def read_evaluations(folders: Sequence[Path]) -> list[Evaluation]:
    """Read folders that can be compared.

    Raises `UserError` if one holds no evaluation, or evaluations have different test sets.
    """
    all_scores = [*map(read_scores, folders)]
    paths = [Path(scores.folders[0]) for scores in all_scores]
    if len({*map(Path.resolve, paths)}) < len(paths):
        raise UserError(
            f"The compared folders must differ, but of {', '.join(map(str, paths))} two are the "
            "same."
        )
    evaluations = []
    for name, path, scores in zip(run_names(folders), paths, all_scores, strict=True):
        if scores.tasks:
            raise UserError(
                f"`{path / JSON_FILE}` must hold {WITH_TEXTS}, but has other content; compare "
                "other scores by their means over seeds: `NAME=RUN,…`."
            )
        if any(re.search(r"[/\\\0]", pair) for pair in scores.pairs):
            raise UserError(f"`{path}` has names of pairs that cannot stand in names of files.")
        texts = {pair: _texts(path, score) for pair, score in scores.pairs.items()}
        evaluations.append(Evaluation(name, path, scores, texts))
    for other in evaluations[1:]:
        wrong = _what_differs(evaluations[0], other)
        if wrong:
            raise UserError(
                f"Folders must be evaluations of the same test sets to be compared, but {wrong}: "
                "evaluate both in the same way."
            )
    return evaluations


def metrics_of(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return the metrics that every pair of every evaluation has."""
    numbers: Counter[str] = Counter()
    for evaluation in evaluations:
        for score in evaluation.scores.pairs.values():
            numbers.update(score.figures.keys())
    most = max(numbers.values())
    return [name for name, number in numbers.items() if number == most]


def outputs_of(
    metric: str, pair: str, evaluations: Sequence[Evaluation], pieces: PieceBleu | None
) -> tuple[Any, list[SystemOutput]]:
    """Return the metric, and each system's output by it on one pair.

    Raises `UserError` if the texts do not give the stored score.
    """
    is_by_sentence = metric in evaluations[0].texts[pair].figures
    scorer: Any = SentenceMean() if is_by_sentence else scorer_of(metric, pair, pieces)
    outputs = []
    for evaluation in evaluations:
        texts = evaluation.texts[pair]
        hypotheses = texts.figures.get(metric, texts.hypotheses)
        output = output_of(scorer, hypotheses, texts.references)
        stored = evaluation.scores.pairs[pair].figures[metric]
        if abs(output.score - stored) > SAME:
            raise UserError(
                f"`{evaluation.folder}` must hold what was scored, but its files of {pair} give "
                f"{metric} {output.score:.4f} and scores.json says {stored:.4f}: use the same "
                "--spm and version of sacreBLEU, or evaluate again with --overwrite."
            )
        outputs.append(output)
    return scorer, outputs


def _texts(folder: Path, score: PairScore) -> Texts:
    """Read a pair's hypotheses, references and figures (UserError: lines are missing)."""
    pair = score.pair
    further = map("ref{}".format, range(1, score.more_references + 1))
    texts = []
    for suffix in ("hyp", "ref", *further):
        path = folder / f"{pair}.{suffix}"
        lines = text_lines(path, f"the texts of {pair}")
        if len(lines) != score.sentences or not lines:
            rule = f"the {score.sentences} lines that were scored"
            raise UserError(f"`{path}` must have {rule}, but has {len(lines)}: evaluate again.")
        texts.append(lines)
    hypotheses, first, *others = texts
    references: list[Sequence[str | None]] = [first]
    for lines in others:
        references.append([line or None for line in lines])
    figures = {}
    for name in score.metrics:
        figures[name] = _figures(folder / f"{pair}.{name.lower()}", score.sentences)
    return Texts(hypotheses, references, figures)


def _figures(path: Path, sentences: int) -> list[float]:
    """Read a metric's numbers, one per sentence."""
    lines = text_lines(path, "a metric's numbers, one of each sentence")
    try:
        figures = [*map(float, lines)]
    except ValueError:
        figures = []
    if len(figures) != sentences or not all(map(math.isfinite, figures)):
        raise UserError(
            f"`{path}` must have a number for each of the {sentences} sentences: evaluate again."
        )
    return figures


def _what_differs(first: Evaluation, other: Evaluation) -> str:
    """Return why two evaluations cannot be compared; empty if they can."""
    if other.scores.subset != first.scores.subset:
        here = f"{first.folder} of {first.scores.subset}"
        return f"{other.folder} is of {other.scores.subset}, and {here}"
    for complete, lacking in ((first, other), (other, first)):
        missing = [pair for pair in complete.texts if pair not in lacking.texts]
        if missing:
            return f"{lacking.folder} has no {', '.join(missing)}, which {complete.folder} has"
    for pair in first.texts:
        theirs = _properties(other, pair)
        for name, value in _properties(first, pair).items():
            their_value = theirs.get(name, value)
            if value != their_value:
                here = f"{pair} {name.format(value)} in {first.folder}"
                return f"{here} and {their_value} in {other.folder}"
        if first.texts[pair].references != other.texts[pair].references:
            return f"{pair} has other references in {first.folder} than in {other.folder}"
    return ""


def _properties(evaluation: Evaluation, pair: str) -> dict[str, object]:
    """Return what evaluations of a pair must share, by text with a place for it."""
    texts = evaluation.texts[pair]
    score = evaluation.scores.pairs[pair]
    properties: dict[str, object] = {
        "has {} sentences": len(texts.hypotheses),
        "has {} references": len(texts.references),
        "is of --references {}": evaluation.scores.settings.get("references", "text"),
        "is in tier {}": score.tier or "none",
    }
    for metric, signature in score.signatures.items():
        properties[f"has {metric} {{}}"] = signature
    return properties
