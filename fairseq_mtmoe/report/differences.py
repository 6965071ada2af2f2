"""Evaluations compared to the first by each metric: pairs, tiers and all, tested."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import sacrebleu

from fairseq_mtmoe.core.tables import Table, bullets, document, with_error
from fairseq_mtmoe.core.tiers import TIER_RULE
from fairseq_mtmoe.report.eval_folders import Evaluation, metrics_of, outputs_of
from fairseq_mtmoe.report.run_log import as_json
from fairseq_mtmoe.report.score_tables import FLOOR, counted, digits_of, untranslated_note
from fairseq_mtmoe.report.scores import FIELDS, SPBLEU, PieceBleu
from fairseq_mtmoe.report.significance import LEVEL, Comparison, Draws, comparison_of, draw

SEED = 12345
"""The default seed: sacreBLEU's."""


@dataclass(frozen=True)
class Sampling:
    """The seed, the bootstrap's resamples and the randomisation's trials."""

    seed: int
    samples: int
    trials: int

    def seed_of(self, pair: str) -> int:
        """Return the `SACREBLEU_SEED` that reproduces a pair's draws."""
        return int(np.random.SeedSequence([self.seed, *pair.encode()]).generate_state(1)[0])


@dataclass(frozen=True)
class Differences:
    """A system compared to the first by a metric: pairs in order, then tiers and all."""

    metric: str
    first: Evaluation
    other: Evaluation
    pairs: Mapping[str, Comparison]
    groups: Mapping[str, Comparison]

    @property
    def title(self) -> str:
        """The table's title, such as `BLEU: b − a`."""
        return f"{self.metric}: {self.other.name} − {self.first.name}"


def find_differences(
    evaluations: Sequence[Evaluation],
    sampling: Sampling,
    pieces: PieceBleu | None = None,
    advance: Callable[[str], None] = lambda pair: None,
) -> list[Differences]:
    """Compare every evaluation to the first, by every metric that all pairs have.

    Without `pieces` there is no spBLEU. `advance` is called with each finished pair.
    """
    first, *others = evaluations
    metrics = metrics_of(evaluations)
    if pieces is None and SPBLEU in metrics:
        metrics.remove(SPBLEU)
    draws: dict[tuple[str, str], dict[str, Draws]] = {}
    for pair in first.texts:
        seed = sampling.seed_of(pair)
        for metric in metrics:
            scorer, (control, *outputs) = outputs_of(metric, pair, evaluations, pieces)
            for other, output in zip(others, outputs, strict=True):
                drawn = draw(scorer, control, output, seed, sampling.samples, sampling.trials)
                draws.setdefault((other.name, metric), {})[pair] = drawn
        advance(pair)
    differences = []
    for other in others:
        for metric in metrics:
            by_pair = draws[other.name, metric]
            floor = FLOOR if metric in FIELDS else -math.inf
            pairs = {pair: comparison_of([drawn], floor) for pair, drawn in by_pair.items()}
            groups = {}
            for name, members in first.scores.groups.items():
                groups[name] = comparison_of([by_pair[pair] for pair in members], floor)
            differences.append(Differences(metric, first, other, pairs, groups))
    return differences


def difference_table(differences: Differences) -> Table:
    """Return a row for each pair, and one for each tier and for all."""
    scores = differences.first.scores
    rows = []
    for pair, comparison in differences.pairs.items():
        score = scores.pairs[pair]
        cells = _cells(differences.metric, comparison)
        rows.append([pair, score.tier, f"{score.sentences:,}", *cells])
    below = []
    for name, comparison in differences.groups.items():
        cells = _cells(differences.metric, comparison)
        below.append([name, counted("pair", len(scores.groups[name])), "", *cells])
    columns = ["pair", "tier", "sentences", differences.first.name, differences.other.name]
    return Table([*columns, "difference", "p bootstrap", "p randomisation"], rows, below, texts=2)


def _cells(metric: str, comparison: Comparison) -> list[str]:
    form = f".{digits_of(metric)}f"
    low, high = comparison.interval
    return [
        with_error(comparison.first, comparison.first_error, form),
        with_error(comparison.other, comparison.other_error, form),
        with_error(comparison.difference, (high - low) / 2, f"+{form}").replace("-", "−"),
        f"{comparison.p_bootstrap:.4f}",
        f"{comparison.p_randomisation:.4f}",
    ]


def notes(differences: Sequence[Differences], sampling: Sampling) -> list[str]:
    """Return notes that explain the figures and name metrics that are left out."""
    pairs = len(differences[0].pairs)
    by_chance = (
        "p: how often chance alone gives a difference of this size, by sacreBLEU's paired "
        f"bootstrap and approximate randomisation ({sampling.trials:,} trials)."
    )
    if pairs * LEVEL >= 1:
        few = f"about {pairs * LEVEL:.0f} have p < {LEVEL:g} by chance"
        by_chance += f" Among {pairs} pairs without a difference, {few}."
    by_chance += (
        f" Where the difference is exactly 0, or both systems score below {FLOOR:g} and neither "
        "translates, p is 1."
    )
    lines = [
        *untranslated_note([system.scores for system in _systems(differences)]),
        f"±: half of the 95% confidence interval over {sampling.samples:,} bootstrap resamples of "
        "the test sets' sentences. It does not cover variation between training seeds: for these "
        "compare NAME=RUN,….",
        by_chance,
    ]
    if differences[0].first.scores.has_tiers:
        lines.append(TIER_RULE)
    lines.append(
        "Tiers and all: sentences are drawn within each pair, and every pair counts the same."
    )
    metrics = [compared.metric for compared in differences]
    if SPBLEU in metrics_of(_systems(differences)) and SPBLEU not in metrics:
        lines.append(
            f"{SPBLEU} is left out: it needs --spm FILE, the model of mtmoe evaluate --spm."
        )
    return lines


def to_markdown(
    differences: Sequence[Differences], sampling: Sampling, made_by: Mapping[str, object]
) -> str:
    """Return the tables, notes and settings in Markdown."""
    parts = []
    for compared in differences:
        parts += [f"## {compared.title}", difference_table(compared).in_markdown()]
    systems = {}
    for system in _systems(differences):
        systems[system.name] = f"{system.folder}, {system.scores.checkpoints[0]}"
    lines = bullets({**systems, **_settings(differences, sampling, made_by)})
    for signature, pairs in differences[0].first.scores.signatures.items():
        lines.append(f"- `{signature}`{pairs}")
    return document([*parts, *notes(differences, sampling)], lines)


def to_latex(differences: Sequence[Differences]) -> str:
    """Return a `tabular` for each table, below a comment with its title."""
    lines = []
    for compared in differences:
        lines += [f"% {compared.title}", difference_table(compared).in_latex()]
    return "\n".join(lines)


def to_json(
    differences: Sequence[Differences], sampling: Sampling, made_by: Mapping[str, object]
) -> str:
    """Return `{"settings", "systems", "differences"}` in JSON.

    `differences` is `{name: {metric: {"pairs": {…}, "averages": {…}}}}`.
    """
    written: dict[str, Any] = {}
    for compared in differences:
        first = compared.first
        pairs = {}
        averages = {}
        for pair, comparison in compared.pairs.items():
            score = first.scores.pairs[pair]
            pairs[pair] = {
                "tier": score.tier,
                "sentences": score.sentences,
                "references": len(first.texts[pair].references),
                "signature": score.signatures.get(compared.metric, ""),
                "seed": sampling.seed_of(pair),
                **vars(comparison),
            }
        for name, comparison in compared.groups.items():
            averages[name] = {"pairs": len(first.scores.groups[name]), **vars(comparison)}
        written.setdefault(compared.other.name, {})[compared.metric] = {
            "pairs": pairs,
            "averages": averages,
        }
    systems = {}
    for system in _systems(differences):
        systems[system.name] = {
            "folder": str(system.folder),
            "checkpoint": system.scores.checkpoints[0],
        }
    settings = _settings(differences, sampling, made_by)
    return as_json({"settings": settings, "systems": systems, "differences": written})


def _systems(differences: Sequence[Differences]) -> list[Evaluation]:
    others = {compared.other.name: compared.other for compared in differences}
    return [differences[0].first, *others.values()]


def _settings(
    differences: Sequence[Differences], sampling: Sampling, made_by: Mapping[str, object]
) -> dict[str, object]:
    first = differences[0].first
    return {
        "subset": first.scores.subset,
        "compared_with": first.name,
        **asdict(sampling),
        "sacrebleu": sacrebleu.__version__,
        **made_by,
    }
