"""Folders of `mtmoe evaluate`, with the texts that were compared: read, and refused where they cannot be compared.

Beside `scores.json` there are, of each pair, `en-de.hyp`, `en-de.ref`, and where the test set has several references
`en-de.ref1`, `en-de.ref2`, … with an empty line where a sentence has no further one. Of a metric that is a mean over
sentences and not sacreBLEU's, such as COMET, `en-de.comet` has a number for each of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from fairseq_mtmoe.analysis.rows import run_names
from fairseq_mtmoe.analysis.score_files import JSON_FILE, Scores, score_file, scores_in
from fairseq_mtmoe.analysis.scores import SPBLEU, PairScore, PieceBleu, scorer_of
from fairseq_mtmoe.analysis.significance import SentenceMean, SystemOutput, output_of
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import read_json, text_lines

SAME = 1e-4
"""How far a score may be from the one in scores.json that the same texts gave: another order of summing."""


@dataclass(frozen=True)
class Texts:
    """What was compared of a pair.

    Attributes:
        references: one list of sentences or more; None where a sentence has no further one.
        figures: of each sentence, by the metrics that are their mean.
    """

    hypotheses: Sequence[str]
    references: Sequence[Sequence[str | None]]
    figures: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Evaluation:
    """A folder of `mtmoe evaluate`, by a name as short as tells it from the others; texts by pair, low tier first."""

    name: str
    folder: Path
    scores: Scores
    texts: Mapping[str, Texts]

    @property
    def checkpoint(self) -> str:
        """Which was evaluated."""
        return str(self.scores.settings.get("checkpoint", ""))


def read_evaluations(folders: Sequence[Path]) -> list[Evaluation]:
    """Read folders that can be compared.

    Raises:
        UserError: one holds no evaluation or a damaged one, or is not of the same test sets as the first.
    """
    places = [score_file(folder).parent for folder in folders]
    resolved = [place.resolve() for place in places]
    twice = next((place for place, path in zip(places, resolved, strict=True) if resolved.count(path) > 1), None)
    if twice is not None:
        raise UserError(f"The folders that are compared must be different ones, but {twice} comes twice.")
    read = [_read(name, place) for name, place in zip(run_names(places), places, strict=True)]
    for other in read[1:]:
        if wrong := _what_differs(read[0], other):
            raise UserError(
                f"Folders must be evaluations of the same test sets to be compared, but {wrong}: evaluate both in the "
                "same way."
            )
    return read


def metrics_of(evaluations: Sequence[Evaluation]) -> list[str]:
    """The metrics that every pair of every evaluation has."""
    every = [pair.figures for evaluation in evaluations for pair in evaluation.scores.pairs.values()]
    return [name for name in every[0] if all(name in figures for figures in every)]


def outputs_of(
    metric: str, pair: str, evaluations: Sequence[Evaluation], pieces: PieceBleu | None = None
) -> tuple[Any, list[SystemOutput]]:
    """The metric, and what each system reached by it on the test set of one pair; spBLEU is over `pieces`.

    Raises:
        UserError: the texts do not give the score that is beside them.
    """
    scorer = SentenceMean() if metric in evaluations[0].texts[pair].figures else scorer_of(metric, pair)
    return scorer, [_output(scorer, metric, pair, evaluation, pieces) for evaluation in evaluations]


def _output(scorer: Any, metric: str, pair: str, evaluation: Evaluation, pieces: PieceBleu | None) -> SystemOutput:
    texts, score, folder = evaluation.texts[pair], evaluation.scores.pairs[pair], evaluation.folder
    if metric in texts.figures:
        output, file = output_of(scorer, texts.figures[metric]), metric.lower()
    else:
        cut = pieces.cut if metric == SPBLEU and pieces is not None else list
        output, file = output_of(scorer, cut(texts.hypotheses), [cut(lines) for lines in texts.references]), "hyp"
        found = pieces.signature(scorer) if cut is not list and pieces else str(scorer.get_signature())
        if _without_version(found) != _without_version(score.signatures.get(metric, "")):
            raise UserError(
                f"{metric} of {pair} must be counted as in `{folder}`, {score.signatures.get(metric)}, but is {found} "
                "with the packages or the --spm of here: take the same ones, or evaluate again."
            )
    if abs(output.score - score.figures[metric]) > SAME:
        raise UserError(
            f"`{folder}` must hold what was scored, but {pair}.{file} gives {metric} {output.score:.4f} where its "
            f"scores.json says {score.figures[metric]:.4f}: evaluate again with --overwrite."
        )
    return output


def _without_version(signature: str) -> list[str]:
    """Another version of sacreBLEU is no harm where it gives the same score."""
    return [part for part in signature.split("|") if not part.startswith("version:")]


def _read(name: str, folder: Path) -> Evaluation:
    file = folder / JSON_FILE
    content = read_json(file, "scores")
    try:
        scores = scores_in(content)
        if scores.tasks or any(re.search(r"[/\\\0]", pair) for pair in scores.pairs):
            raise ValueError("no language pairs")
    except ValueError as error:
        raise UserError(
            f"`{file}` must hold the scores of mtmoe evaluate, whose texts tell differences from chance, but holds "
            "something else; of other scores compare the means over seeds: `NAME=RUN,…`."
        ) from error
    return Evaluation(name, folder, scores, {pair: _texts(folder, score) for pair, score in scores.pairs.items()})


def _texts(folder: Path, score: PairScore) -> Texts:
    """Hypotheses, references and figures of a pair, each of so many lines as were scored."""
    pair, sentences = score.pair, score.sentences
    further = (folder / f"{pair}.ref{number}" for number in count(1))
    paths = [folder / f"{pair}.hyp", folder / f"{pair}.ref"]
    while (path := next(further)).exists():
        paths.append(path)
    texts = [text_lines(path, f"the texts of {pair}") for path in paths]
    for path, lines in zip(paths, texts, strict=True):
        if len(lines) != sentences or not lines:
            raise UserError(
                f"`{path}` must have the {sentences} lines that were scored, but has {len(lines)}: evaluate again."
            )
    references: list[list[str | None]] = [[*texts[1]], *([line or None for line in lines] for lines in texts[2:])]
    figures = {name: _figures(folder / f"{pair}.{name.lower()}", sentences) for name in score.metrics}
    return Texts(texts[0], references, figures)


def _figures(path: Path, sentences: int) -> list[float]:
    """The numbers of a metric, one of each sentence."""
    lines = text_lines(path, "a metric's numbers, one of each sentence")
    try:
        found = [float(line) for line in lines]
    except ValueError:
        found = []
    if len(found) != sentences or not all(map(math.isfinite, found)):
        raise UserError(f"`{path}` must have a number for each of the {sentences} sentences: evaluate again.")
    return found


def _what_differs(first: Evaluation, other: Evaluation) -> str:
    """Why two cannot be compared; empty if they can."""
    if other.scores.subset != first.scores.subset:
        return f"{other.folder} is of {other.scores.subset}, and {first.folder} of {first.scores.subset}"
    for one, two in ((first, other), (other, first)):
        missing = [pair for pair in one.texts if pair not in two.texts]
        if missing:
            more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            return f"{two.folder} has no {missing[0]}{more}, which {one.folder} has"
    kinds = [one.scores.settings.get("references", "text") for one in (first, other)]
    if kinds[0] != kinds[1]:
        return f"{other.folder} is of --references {kinds[1]}, and {first.folder} of {kinds[0]}"
    for pair in first.texts:
        for what, mine, theirs in _of_pair(first, other, pair):
            if mine != theirs:
                return f"{pair} {what.format(mine)} in {first.folder} and {theirs} in {other.folder}"
    return ""


def _of_pair(first: Evaluation, other: Evaluation, pair: str) -> list[tuple[str, object, object]]:
    """What must be the same of a pair, in words and in both."""
    one, two, mine, theirs = first.texts[pair], other.texts[pair], first.scores.pairs[pair], other.scores.pairs[pair]
    found: list[tuple[str, object, object]] = [
        ("has {} sentences", len(one.hypotheses), len(two.hypotheses)),
        ("has {} references", len(one.references), len(two.references)),
    ]
    pairs = (
        (a, b) for lines in zip(one.references, two.references, strict=False) for a, b in zip(*lines, strict=False)
    )
    line = next((number for number, (a, b) in enumerate(pairs) if a != b), None)
    if line is not None:
        found.append((f"has {{}} reference in line {line % len(one.hypotheses) + 1}", "one", "another"))
    found.append(("is in tier {}", mine.tier or "none", theirs.tier or "none"))
    common = [metric for metric in mine.signatures if metric in theirs.signatures]
    return found + [(f"has {metric} {{}}", mine.signatures[metric], theirs.signatures[metric]) for metric in common]
