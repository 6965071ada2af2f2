"""Folders of `mtmoe evaluate` with their texts, checked to be comparable.

Beside `scores.json` each pair has `en-de.hyp` and `en-de.ref`. With several references per sentence there are
`en-de.ref1`, `en-de.ref2`, …, with an empty line if a sentence has no further one. Metrics that are means over
sentences and not sacreBLEU's, such as COMET, have a number per sentence in `en-de.comet`.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice, takewhile
from pathlib import Path
from typing import Any

from fairseq_mtmoe.analysis.rows import run_names
from fairseq_mtmoe.analysis.score_files import JSON_FILE, SCORES, Scores, read_scores
from fairseq_mtmoe.analysis.scores import SPBLEU, PairScore, PieceBleu, scorer_of
from fairseq_mtmoe.analysis.significance import SentenceMean, SystemOutput, output_of
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import text_lines

WITH_TEXTS = "the scores of mtmoe evaluate, with the texts that significance tests need"
SAME = 1e-4
"""Tolerance of a recomputed score: the order of summing may differ."""


@dataclass(frozen=True)
class Texts:
    """A pair's texts that were compared."""

    hypotheses: Sequence[str]
    references: Sequence[Sequence[str | None]]  # one list or more; None: the sentence has no further reference
    figures: Mapping[str, Sequence[float]]  # a number per sentence, by the metrics that are their mean


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
    every = [read_scores(folder, WITH_TEXTS) for folder in folders]
    paths = [Path(scores.folders[0]) for scores in every]
    resolved = [path.resolve() for path in paths]
    read = []
    for name, path, scores in zip(_names(resolved), paths, every, strict=True):
        if resolved.count(path.resolve()) > 1:
            raise UserError(f"The compared folders must differ, but {path} is given twice.")
        if scores.tasks or any(re.search(r"[/\\\0]", pair) for pair in scores.pairs):
            remedy = "compare other scores by their means over seeds: `NAME=RUN,…`"
            raise UserError(f"`{path / JSON_FILE}` must hold {WITH_TEXTS}, but holds something else; {remedy}.")
        texts = {pair: _texts(path, score) for pair, score in scores.pairs.items()}
        read.append(Evaluation(name, path, scores, texts))
    for other in read[1:]:
        if wrong := _what_differs(read[0], other):
            rule = "evaluations of the same test sets to be compared"
            raise UserError(f"Folders must be {rule}, but {wrong}: evaluate both in the same way.")
    return read


def _names(folders: Sequence[Path]) -> list[str]:
    """Return short names: of different runs their folders', not those of scores in them."""
    runs = [path.parents[1] if path.parent.name == SCORES else path for path in folders]
    return run_names(runs if len(set(runs)) == len(runs) else folders)


def metrics_of(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return the metrics that every pair of every evaluation has."""
    every = [pair.figures for evaluation in evaluations for pair in evaluation.scores.pairs.values()]
    return [name for name in every[0] if all(name in figures for figures in every)]


def outputs_of(
    metric: str, pair: str, evaluations: Sequence[Evaluation], pieces: PieceBleu | None = None
) -> tuple[Any, list[SystemOutput]]:
    """Return the metric, and each system's output by it on one pair.

    Raises `UserError` if the texts do not give the stored score.
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
        # Another version of sacreBLEU does no harm if it gives the same score.
        if len({re.sub(r"\|version:[^|]*", "", of) for of in (found, score.signatures.get(metric, ""))}) > 1:
            raise UserError(
                f"{metric} of {pair} must be computed as in `{folder}`, {score.signatures.get(metric)}, but is {found} "
                "with the packages or the --spm used here: use the same ones, or evaluate again."
            )
    if abs(output.score - score.figures[metric]) > SAME:
        raise UserError(
            f"`{folder}` must hold what was scored, but {pair}.{file} gives {metric} {output.score:.4f} and "
            f"scores.json says {score.figures[metric]:.4f}: evaluate again with --overwrite."
        )
    return output


def _texts(folder: Path, score: PairScore) -> Texts:
    """Read a pair's hypotheses, references and figures (UserError: lines are missing)."""
    pair, sentences = score.pair, score.sentences
    further = takewhile(Path.exists, (folder / f"{pair}.ref{number}" for number in count(1)))
    paths = [folder / f"{pair}.hyp", folder / f"{pair}.ref", *further]
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
    """Read a metric's numbers, one per sentence."""
    lines = text_lines(path, "a metric's numbers, one of each sentence")
    try:
        found = [float(line) for line in lines]
    except ValueError:
        found = []
    if len(found) != sentences or not all(map(math.isfinite, found)):
        raise UserError(f"`{path}` must have a number for each of the {sentences} sentences: evaluate again.")
    return found


def _what_differs(first: Evaluation, other: Evaluation) -> str:
    """Return why two evaluations cannot be compared; empty if they can."""
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
    for pair, own in first.texts.items():
        their, mine, theirs = other.texts[pair], first.scores.pairs[pair], other.scores.pairs[pair]
        both = zip(own.references, their.references, strict=False)
        lines = (line for refs in both for line, (a, b) in enumerate(zip(*refs, strict=False), start=1) if a != b)
        common = [metric for metric in mine.signatures if metric in theirs.signatures]
        for what, here, there in (
            ("has {} sentences", len(own.hypotheses), len(their.hypotheses)),
            ("has {} references", len(own.references), len(their.references)),
            *((f"has {{}} reference in line {line}", "one", "another") for line in islice(lines, 1)),
            ("is in tier {}", mine.tier or "none", theirs.tier or "none"),
            *((f"has {metric} {{}}", mine.signatures[metric], theirs.signatures[metric]) for metric in common),
        ):
            if here != there:
                return f"{pair} {what.format(here)} in {first.folder} and {there} in {other.folder}"
    return ""
