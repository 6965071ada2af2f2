"""Some translations of each pair, beside their sources and references."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fairseq_mtmoe.analysis.evaluated import EvaluatedPair, Evaluation
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import text_lines

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


def samples_of(evaluation: Evaluation, data: object) -> tuple[list[Sample], list[str]]:
    """Some of each pair, and what to say of missing sources.

    Chosen evenly over lengths: of the sentences in the order of their references' lengths those in the middle of the
    first fifth, the second, and so on; so they are the same for every system.

    Args:
        data: the data directory that was translated, if it is known; its `raw/` has the sources.
    """
    found: list[Sample] = []
    missing: list[str] = []
    folder = data if isinstance(data, str) else None
    for pair, texts in evaluation.pairs.items():
        sources = _sources(pair, evaluation.subset, folder, len(texts.hypotheses))
        if sources is None:
            missing.append(pair)
        found += [_sample(pair, texts, sources, place) for place in chosen_places(texts)]
    if not missing:
        return found, []
    file = Path(folder or "DATA") / "raw" / f"{evaluation.subset}.{missing[0]}.{missing[0].partition('-')[0]}"
    more = f" (and of {len(missing) - 1} pairs more)" if len(missing) > 1 else ""
    return found, [
        f"Sources of translations are not shown of {missing[0]}{more}: there is no {file} to read them from."
    ]


def chosen_places(texts: EvaluatedPair) -> list[int]:
    """Places of the sentences that are shown, shortest first."""
    lengths = [len(line or "") for line in texts.references[0]]
    ordered = sorted(range(len(lengths)), key=lambda place: (lengths[place], place))
    number = min(OF_A_PAIR, len(ordered))
    return [ordered[(2 * part + 1) * len(ordered) // (2 * number)] for part in range(number)]


def _sample(pair: str, texts: EvaluatedPair, sources: list[str] | None, place: int) -> Sample:
    references = [lines[place] for lines in texts.references]
    source = None if sources is None else _cut(sources[place])
    return Sample(pair, place + 1, source, tuple(_cut(line) for line in references if line),
                  _cut(texts.hypotheses[place]))  # fmt: skip


def _sources(pair: str, subset: str, data: str | None, sentences: int) -> list[str] | None:
    """Those of a test set; None where the data directory is not there, or has another one by now."""
    if data is None:
        return None
    try:
        lines = text_lines(Path(data) / "raw" / f"{subset}.{pair}.{pair.partition('-')[0]}")
    except UserError:
        return None
    return lines if len(lines) == sentences else None


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
