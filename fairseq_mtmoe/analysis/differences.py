"""Evaluations compared to the first by each metric: pairs, tiers and all, tested."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import sacrebleu

from fairseq_mtmoe.analysis.eval_folders import Evaluation, metrics_of, outputs_of
from fairseq_mtmoe.analysis.run_log import as_json
from fairseq_mtmoe.analysis.score_tables import counted, digits_of
from fairseq_mtmoe.analysis.scores import FIELDS, SPBLEU, PieceBleu
from fairseq_mtmoe.analysis.significance import LEVEL, Comparison, Draws, compared, draw
from fairseq_mtmoe.data.translation.tiers import TIER_RULE
from fairseq_mtmoe.io.tables import Table, bullets, document, with_error

SEED = 12345
"""The default seed: sacreBLEU's."""
FLOOR = 1.0
"""A system translates nothing below this score of sacreBLEU's metrics, from 0 to 100."""


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
    evaluations: Sequence[Evaluation], sampling: Sampling, pieces: PieceBleu | None = None,
    advance: Callable[[str], None] = lambda pair: None,
) -> list[Differences]:  # fmt: skip
    """Compare every evaluation to the first, by every metric that all pairs have.

    Without `pieces` there is no spBLEU. `advance` is called with each finished pair.
    """
    first, *others = evaluations
    metrics = [name for name in metrics_of(evaluations) if name != SPBLEU or pieces is not None]
    draws: dict[tuple[int, str], dict[str, Draws]] = {(at, name): {} for at in range(len(others)) for name in metrics}
    for pair in first.texts:
        for metric in metrics:
            scorer, (one, *outputs) = outputs_of(metric, pair, evaluations, pieces)
            for at, output in enumerate(outputs):
                seed = sampling.seed_of(pair)
                draws[at, metric][pair] = draw(scorer, one, output, seed, sampling.samples, sampling.trials)
        advance(pair)
    return [
        Differences(
            metric, first, others[at], {pair: compared([found], floor_of(metric)) for pair, found in of.items()},
            {
                name: compared([of[pair] for pair in pairs], floor_of(metric))
                for name, pairs in first.scores.groups.items()
            },
        )
        for (at, metric), of in draws.items()
    ]  # fmt: skip


def floor_of(metric: str) -> float:
    """Return the score below which a system translates nothing; COMET has none."""
    return FLOOR if metric in FIELDS else -math.inf


def difference_table(found: Differences) -> Table:
    """Return a row for each pair, and one for each tier and for all."""
    scores, names = found.first.scores, [found.first.name, found.other.name]
    rows = [[pair, scores.pairs[pair].tier, f"{scores.pairs[pair].sentences:,}", *_cells(found.metric, of)]
            for pair, of in found.pairs.items()]  # fmt: skip
    below = [[name, counted("pair", len(scores.groups[name])), "", *_cells(found.metric, of)]
             for name, of in found.groups.items()]  # fmt: skip
    return Table(["pair", "tier", "sentences", *names, "difference", "p bootstrap", "p randomisation"], rows, below, 2)


def _cells(metric: str, one: Comparison) -> list[str]:
    digits, half = digits_of(metric), (one.interval[1] - one.interval[0]) / 2
    difference = ("−" if one.difference < 0 else "+") + with_error(abs(one.difference), half, digits)
    systems = [with_error(one.first, one.first_error, digits), with_error(one.other, one.other_error, digits)]
    return [*systems, difference, f"{one.p_bootstrap:.4f}", f"{one.p_randomisation:.4f}"]


def notes(found: Sequence[Differences], sampling: Sampling) -> list[str]:
    """Return notes that explain the figures and name metrics that are left out."""
    left_out = SPBLEU in metrics_of(_systems(found)) and SPBLEU not in [one.metric for one in found]
    pairs = len(found[0].pairs)
    chance = f" Among {pairs} pairs without a difference, about {pairs * LEVEL:.0f} have p < {LEVEL:g} by chance."
    every = [(one, floor_of(of.metric)) for of in found for one in (*of.pairs.values(), *of.groups.values())]
    none = " Where the difference is exactly 0, p is 1."
    is_none = any(one.difference == 0 for one, _ in every)
    low = f" Where both systems score below {FLOOR:g}, neither translates: they are not compared, and p is 1."
    are_low = any(max(one.first, one.other) < floor for one, floor in every)
    return [
        f"±: half of the 95% confidence interval over {sampling.samples:,} bootstrap resamples of the test sets' "
        "sentences. It does not cover variation between training seeds: for these compare NAME=RUN,….",
        "p: how often chance alone gives a difference of this size, by sacreBLEU's paired bootstrap and approximate "
        f"randomisation ({sampling.trials:,} trials)." + chance * (pairs * LEVEL >= 1) + none * is_none + low * are_low,
        *([TIER_RULE] if found[0].first.scores.has_tiers else []),
        "Tiers and all: sentences are drawn within each pair, and every pair counts the same.",
        *([f"{SPBLEU} is left out: it needs --spm FILE, the model of mtmoe evaluate --spm."] if left_out else []),
    ]


def to_markdown(found: Sequence[Differences], sampling: Sampling, made_by: Mapping[str, object]) -> str:
    """Return the tables, notes and settings in Markdown."""
    tables = [f"## {one.title}\n\n{difference_table(one).in_markdown()}" for one in found]
    systems = {of.name: f"{of.folder}, {of.scores.checkpoints[0]}" for of in _systems(found)}
    lines = bullets({**systems, **_settings(found, sampling, made_by)})
    lines += [f"- `{signature}`{pairs}" for signature, pairs in found[0].first.scores.signatures.items()]
    return document([*tables, *notes(found, sampling)], lines)


def to_latex(found: Sequence[Differences]) -> str:
    """Return a `tabular` for each table, below a comment with its title."""
    return "\n".join(f"% {one.title}\n{difference_table(one).in_latex()}" for one in found)


def to_json(found: Sequence[Differences], sampling: Sampling, made_by: Mapping[str, object]) -> str:
    """Return `{"settings", "systems", "differences"}` in JSON.

    `differences` is `{name: {metric: {"pairs": {…}, "averages": {…}}}}`.
    """
    differences: dict[str, Any] = {}
    for one in found:
        scores, pairs = one.first.scores, {}
        for pair, of in one.pairs.items():
            score, references = scores.pairs[pair], len(one.first.texts[pair].references)
            pairs[pair] = {"tier": score.tier, "sentences": score.sentences, "references": references,
                           "signature": score.signatures.get(one.metric, ""), "seed": sampling.seed_of(pair),
                           **asdict(of)}  # fmt: skip
        averages = {name: {"pairs": len(scores.groups[name]), **asdict(of)} for name, of in one.groups.items()}
        differences.setdefault(one.other.name, {})[one.metric] = {"pairs": pairs, "averages": averages}
    systems = {of.name: {"folder": str(of.folder), "checkpoint": of.scores.checkpoints[0]} for of in _systems(found)}
    return as_json({"settings": _settings(found, sampling, made_by), "systems": systems, "differences": differences})


def _systems(found: Sequence[Differences]) -> list[Evaluation]:
    others = {one.other.name: one.other for one in found}
    return [found[0].first, *others.values()]


def _settings(found: Sequence[Differences], sampling: Sampling, made_by: Mapping[str, object]) -> dict[str, object]:
    first, sacre = found[0].first, {"sacrebleu": sacrebleu.__version__}
    return {"subset": first.scores.subset, "compared_with": first.name, **asdict(sampling), **sacre, **made_by}
