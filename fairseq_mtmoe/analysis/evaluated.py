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

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from fairseq_mtmoe.analysis.pieces import PieceBleu
from fairseq_mtmoe.analysis.score_reading import score_file
from fairseq_mtmoe.analysis.scores import TIERS, bleu_tokenizer
from fairseq_mtmoe.analysis.significance import SentenceMean, SystemOutput, output_of
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import read_json, text_lines

SAME = 1e-4
"""How far a score may be from the one in scores.json that the same texts gave: another order of summing."""

SPBLEU = "spBLEU"
FIELDS = {
    "BLEU": ("bleu", "bleu_signature"),
    "chrF++": ("chrf", "chrf_signature"),
    SPBLEU: ("spbleu", "spbleu_signature"),
}


@dataclass(frozen=True)
class EvaluatedPair:
    """One language pair of an evaluation.

    Attributes:
        tier: "" if nobody knows.
        scores: by metric.
        signatures: by metric, sacreBLEU's and those of other metrics.
        references: one list of sentences or more; None where a sentence has no further one.
        figures: of each sentence, by the metrics that are their mean.
    """

    tier: str
    scores: Mapping[str, float]
    signatures: Mapping[str, str]
    hypotheses: Sequence[str]
    references: Sequence[Sequence[str | None]]
    figures: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Evaluation:
    """A folder of `mtmoe evaluate`.

    Attributes:
        name: as short as tells it from the others.
        subset: which was translated, such as `test`.
        reference_kind: `text`, or `fairseq` where unknown words are `<unk>`.
        pairs: in the order of tables: low tier first.
    """

    name: str
    folder: Path
    checkpoint: str
    subset: str
    reference_kind: str
    pairs: Mapping[str, EvaluatedPair]


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
    read = [_read(name, place) for name, place in zip(_short_names(resolved), places, strict=True)]
    for other in read[1:]:
        _check_same(read[0], other)
    return read


def metrics_of(evaluations: Sequence[Evaluation]) -> list[str]:
    """The metrics that every pair of every evaluation has."""
    every = [pair.scores for evaluation in evaluations for pair in evaluation.pairs.values()]
    return [name for name in every[0] if all(name in scores for scores in every)]


def outputs_of(
    metric: str, pair: str, evaluations: Sequence[Evaluation], pieces: PieceBleu | None = None
) -> tuple[Any, list[SystemOutput]]:
    """The metric, and what each system reached by it on the test set of one pair.

    Args:
        pieces: what spBLEU is over.

    Raises:
        UserError: the texts do not give the score that is beside them.
    """
    scorer = SentenceMean() if metric in evaluations[0].pairs[pair].figures else _scorer(metric, pair)
    return scorer, [_output(scorer, metric, pair, evaluation, pieces) for evaluation in evaluations]


def _output(scorer: Any, metric: str, pair: str, evaluation: Evaluation, pieces: PieceBleu | None) -> SystemOutput:
    texts, folder = evaluation.pairs[pair], evaluation.folder
    if metric in texts.figures:
        output = SentenceMean().output(texts.figures[metric])
    elif metric == SPBLEU and pieces is not None:
        output = output_of(scorer, pieces.cut(texts.hypotheses), [pieces.cut(lines) for lines in texts.references])
        _check_signature(pieces.signature(scorer), metric, pair, evaluation)
    else:
        output = output_of(scorer, texts.hypotheses, texts.references)
        _check_signature(str(scorer.get_signature()), metric, pair, evaluation)
    if abs(output.score - texts.scores[metric]) > SAME:
        file = f"{pair}.{metric.lower() if metric in texts.figures else 'hyp'}"
        raise UserError(
            f"`{folder}` must hold what was scored, but {file} gives {metric} {output.score:.4f} where its scores.json "
            f"says {texts.scores[metric]:.4f}: evaluate again with --overwrite."
        )
    return output


def _check_signature(found: str, metric: str, pair: str, evaluation: Evaluation) -> None:
    """Another version of sacreBLEU is no harm where it gives the same score."""
    stored = evaluation.pairs[pair].signatures[metric]
    if _without_version(found) != _without_version(stored):
        raise UserError(
            f"{metric} of {pair} must be counted as in `{evaluation.folder}`, {stored}, but is {found} with the "
            "packages or the --spm of here: take the same ones, or evaluate again."
        )


def _scorer(metric: str, pair: str) -> Any:
    """sacreBLEU's metric, as `scores` has it; spBLEU's is given texts that are cut."""
    if metric == "chrF++":
        return CHRF(word_order=2)
    return BLEU(tokenize="none" if metric == SPBLEU else bleu_tokenizer(pair.rpartition("-")[2]), force=True)


def _without_version(signature: str) -> list[str]:
    return [part for part in signature.split("|") if not part.startswith("version:")]


def _read(name: str, folder: Path) -> Evaluation:
    file = folder / "scores.json"
    content = read_json(file, "scores")
    try:
        settings, pairs = content["settings"], content["pairs"]
        rank = {tier: index for index, tier in enumerate(TIERS)}
        order = sorted(pairs, key=lambda pair: (rank.get(pairs[pair]["tier"], len(TIERS)), pair))
        found = Evaluation(
            name, folder, str(settings["checkpoint"]), str(settings["subset"]), str(settings.get("references", "text")),
            {pair: _pair(folder, pair, pairs[pair]) for pair in order},
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"`{file}` must hold the scores of mtmoe evaluate, whose texts tell differences from chance, but holds "
            "something else; of other scores compare the means over seeds: `NAME=RUN,…`."
        ) from error
    if not found.pairs:
        raise UserError(f"`{file}` must have the scores of a language pair or more, but has none.")
    return found


def _pair(folder: Path, pair: str, fields: Mapping[str, Any]) -> EvaluatedPair:
    known = {name: names for name, names in FIELDS.items() if fields.get(names[0]) is not None}
    scores = {name: float(fields[score]) for name, (score, _) in known.items()}
    if not scores or not all(map(math.isfinite, scores.values())):
        raise ValueError("no score, or one that is no number")
    signatures = {name: str(fields[signature]) for name, (_, signature) in known.items()}
    sentences, more = int(fields["sentences"]), fields.get("metrics", {})
    texts = _texts(folder, pair, sentences)
    figures = {name: _figures(folder / f"{pair}.{name.lower()}", sentences) for name in more}
    scores |= {name: float(score) for name, score in more.items()}
    signatures |= {name: str(fields["metric_signatures"][name]) for name in more}
    return EvaluatedPair(str(fields["tier"]), scores, signatures, *texts, figures)


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


def _texts(folder: Path, pair: str, sentences: int) -> tuple[list[str], list[list[str | None]]]:
    """Hypotheses and references of a pair, each of so many lines."""
    if re.search(r"[/\\\0]", pair):
        raise ValueError("no language pair")
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
    return texts[0], [list(texts[1]), *([line or None for line in lines] for lines in texts[2:])]


def _check_same(first: Evaluation, other: Evaluation) -> None:
    wrong = _what_differs(first, other) or next(
        (
            f"{pair} {wrong}"
            for pair in first.pairs
            if (wrong := _what_differs_of(first, other, first.pairs[pair], other.pairs[pair]))
        ),
        "",
    )
    if wrong:
        raise UserError(
            f"Folders must be evaluations of the same test sets to be compared, but {wrong}: evaluate both in the same "
            "way."
        )


def _what_differs(first: Evaluation, other: Evaluation) -> str:
    if other.subset != first.subset:
        return f"{other.folder} is of {other.subset}, and {first.folder} of {first.subset}"
    for one, two in ((first, other), (other, first)):
        missing = [pair for pair in one.pairs if pair not in two.pairs]
        if missing:
            more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            return f"{two.folder} has no {missing[0]}{more}, which {one.folder} has"
    if other.reference_kind != first.reference_kind:
        return f"{other.folder} is of --references {other.reference_kind}, and {first.folder} of {first.reference_kind}"
    return ""


def _what_differs_of(first: Evaluation, other: Evaluation, one: EvaluatedPair, two: EvaluatedPair) -> str:
    """What follows a pair's name; empty if it can be compared."""
    places = f"in {first.folder} and {{}} in {other.folder}"
    if len(one.hypotheses) != len(two.hypotheses):
        return f"has {len(one.hypotheses)} sentences {places.format(len(two.hypotheses))}"
    if len(one.references) != len(two.references):
        return f"has {len(one.references)} references {places.format(len(two.references))}"
    for mine, theirs in zip(one.references, two.references, strict=True):
        line = next((number for number, pair in enumerate(zip(mine, theirs, strict=True), 1) if pair[0] != pair[1]), 0)
        if line:
            return f"has one reference in line {line} {places.format('another')}"
    if one.tier != two.tier:
        return f"is in tier {one.tier or 'none'} {places.format(two.tier or 'none')}"
    for metric in one.signatures:
        if metric in two.signatures and one.signatures[metric] != two.signatures[metric]:
            return f"has {metric} {one.signatures[metric]} {places.format(two.signatures[metric])}"
    return ""


def _short_names(folders: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as many as tell them apart."""
    for parts in count(1):
        names = ["/".join(folder.parts[-parts:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    raise AssertionError("different paths have different names")
