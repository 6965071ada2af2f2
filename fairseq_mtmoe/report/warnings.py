"""Warnings of a report: rules whose bounds are named in the sentences they make."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median

import numpy as np

from fairseq_mtmoe.report.routing import (
    LEAST_SHARE,
    RECENT,
    entropies,
    routed_layers,
    unmoved,
    used_experts,
)
from fairseq_mtmoe.report.rows import ALL_TOKENS, Row, Run, Values, of_first_subset, of_kind
from fairseq_mtmoe.report.score_tables import counted
from fairseq_mtmoe.report.setup import METRICS

LEAST_TOKENS = 20
"""Tokens per expert on average; with fewer, an expert without tokens may be chance."""
FEW_EFFECTIVE = 0.25
LEAST_EFFECTIVE = 1.5
"""Share and number of experts: with fewer effective experts, routing has collapsed."""
LEAST_RISE = 0.01
NOISE_TIMES = 4.0
"""Over many validations, the best is below its neighbours by chance: hence 4 times the noise."""
LEAST_SCORES = {"bleu": 1.0, "chrf": 10.0}
"""With a lower BLEU or chrF++ in all validations, a model does not translate."""
MANY_SKIPPED = 0.01
MOST_NAMES = 8


def warnings_of(run: Run) -> list[str]:
    """Return the findings of all rules in their order: the most severe are first."""
    findings: list[str] = []
    for rule in RULES:
        findings += rule(run)
    return findings


def loss_not_finite(run: Run) -> Iterator[str]:
    """Warn of a loss of training or validation that is not finite."""
    training = of_kind(run.events, "train")
    validation = [event | event.get("all", {}) for event in of_first_subset(run.events, "valid")]
    for kind, events in {"training": training, "validation": validation}.items():
        updates = [int(event["update"]) for event in events if event.get("loss", 0.0) is None]
        if not updates:
            continue
        yield (
            f"The {kind} loss was not finite {counted('time', len(updates))}, first at update "
            f"{updates[0]:,}. Lower `--lr`, raise `--warmup-updates` or set `--clip-norm`, and "
            "resume from an earlier checkpoint."
        )


def has_not_learned(run: Run) -> Iterator[str]:
    """Warn of a BLEU or chrF++ near 0, and of a loss that was lowest at first."""
    for row in run.of("all"):
        least = LEAST_SCORES.get(row.metric, -math.inf)
        best = float(np.nanmax(row.value))
        if best < least:
            yield (
                f"The model does not translate yet: its best validation has {best:.2f} "
                f"{METRICS[row.metric]}, and {least:g} is little. Train longer (`--max-update`), "
                "or on more text."
            )
            break
    for row in run.of("all", metric="loss"):
        number = len(row.value)
        if number >= RECENT and row.best_index == 0:
            yield (
                f"The validation loss has not fallen: of {number} validations the first, at update "
                f"{row.update[0]:,.0f}, has the lowest. Try a lower `--lr` and a longer "
                "`--warmup-updates`, and see whether the validation text is like the training text."
            )


def collapsed_routing(run: Run) -> Iterator[str]:
    """Warn of layers whose tokens spread as over a quarter of the experts or fewer.

    The effective number of experts is the exponential of the entropy.
    """
    for layer, updates, counts in routed_layers(run):
        size = counts[0].shape[1]
        bound = max(LEAST_EFFECTIVE, FEW_EFFECTIVE * size)
        effective = np.array([*map(_effective_experts, counts)])
        is_low = (effective < bound).tolist()
        if size == 1 or not all(is_low[-RECENT:]):
            continue
        yield (
            f"Routing of {layer} has collapsed: its tokens are spread as over {effective[-1]:.1f} "
            f"experts and not {size} (exponential of the entropy of their shares; below "
            f"{bound:.3g} in {_last(counts)}, since update {_since(updates, is_low):,}). Use fewer "
            "experts; in translation, `--expert-gates base` balances."
        )


def _effective_experts(counts_KN: Values) -> float:
    """Return the exponential of the entropy of loads; infinity with too few tokens."""
    if not _has_enough_tokens(counts_KN):
        return math.inf
    (entropy,) = entropies(counts_KN.sum(axis=0, keepdims=True))
    return float(counts_KN.shape[1] ** entropy)


def dead_experts(run: Run) -> Iterator[str]:
    """Warn of experts that got under a tenth of a fair share, 1/N, of every task.

    This must hold in all of the last validations.
    """
    unit = "token" if run.of("experts", task=ALL_TOKENS) else "task"
    for layer, updates, counts in routed_layers(run):
        unused = []
        for counts_KN in counts:
            is_unused = ~used_experts(counts_KN) & _has_enough_tokens(counts_KN)
            unused.append(set(np.flatnonzero(is_unused).tolist()))
        dead = set.intersection(*unused[-RECENT:])
        if not dead:
            continue
        size = counts[0].shape[1]
        since = _since(updates, [dead <= experts for experts in unused])
        yield (
            f"{len(dead)} of {size} experts of {layer} are hardly used: {_listed(sorted(dead))} "
            f"got less than {LEAST_SHARE:.0%} of a fair share (1/{size}) of every {unit}'s tokens "
            f"in {_last(counts)} (since update {since:,}). Use fewer experts or more tokens per "
            "update; in translation, `--expert-gates base` balances."
        )


def _has_enough_tokens(counts_KN: Values) -> bool:
    return bool(counts_KN.sum() >= LEAST_TOKENS * counts_KN.shape[1])


def _since(updates: Values, holds: Sequence[bool]) -> int:
    """Return the first update from which on all values are true; the last is."""
    first = len(holds) - 1
    while first > 0 and holds[first - 1]:
        first -= 1
    return int(updates[first])


def language_worse(run: Run) -> Iterator[str]:
    """Warn of pairs that got worse while the median pair improved.

    Worse: perplexity rose by more than four times its noise, and by more than 1%.
    """
    rows = run.of("pair", metric="ppl")
    for row in rows:
        rise = _rise_of(row)
        if rise is None:
            continue
        best, by, noise = rise
        changes = []
        for other in rows:
            logs = np.log(np.where(other.value > 0, other.value, np.nan))
            change = float(logs[-RECENT:].mean() - logs[best : best + RECENT].mean())
            if other is not row and math.isfinite(change):
                changes.append(change)
        if changes and median(changes) < 0:
            yield (
                f"{row.task} got worse: its perplexity rose by {math.expm1(by):.1%} since update "
                f"{row.update[best + RECENT - 1]:,.0f}, over {NOISE_TIMES:g} times the "
                f"{noise:.1%} by which means of {RECENT} validations vary, while the other pairs' "
                f"changed by {math.expm1(median(changes)):.1%} in the median. Sample the pair less "
                "often (a lower temperature, or heating that ends sooner), or stop earlier."
            )


def _rise_of(row: Row) -> tuple[int, float, float] | None:
    """Return the index of the best three validations, the rise since, and its noise.

    The rise is that of the logarithm. None if noise explains the rise, or if there are too few
    validations. Noise comes from second differences: they cancel a slope and have 6 times its
    variance. Their median is robust to single jumps, as when a dense model becomes sparse.
    """
    if len(row.value) < 3 * RECENT or not (row.value > 0).all():
        return None
    logs = np.log(row.value)
    means = np.convolve(logs, np.full(RECENT, 1 / RECENT), "valid")
    best = int(means[:-RECENT].argmin())
    deviation = 1.4826 * float(np.median(np.abs(np.diff(logs, 2)))) / math.sqrt(6)
    noise = deviation * math.sqrt(2 / RECENT)
    by = float(means[-1] - means[best])
    if by <= max(NOISE_TIMES * noise, math.log1p(LEAST_RISE)):
        return None
    return best, by, noise


def unmoved_gate(run: Run) -> Iterator[str]:
    """Warn of gates that barely moved, or whose last values of `blend` are near 0."""
    events = of_first_subset(run.events, "gates")
    last_layers = [event.get("layers", {}) for event in events[-RECENT:]]
    for reason, layers in unmoved(last_layers).items():
        yield (
            f"Gates of {len(layers)} of {len(last_layers[-1])} layers have hardly learned: "
            f"{reason} in {_last(events)} ({_listed(layers)}). They still route about as at the "
            "start; raise `--gate-lr-factor`."
        )


def skipped_updates(run: Run) -> Iterator[str]:
    """Warn of updates that were skipped because loss or gradients were not finite."""
    events = of_kind(run.events, "train")
    skipping = [event for event in events if event.get("skipped")]
    if not skipping:
        return
    skipped = int(max(event["skipped"] for event in skipping))
    first = int(skipping[0]["update"])
    updates = int(events[-1]["update"])
    yield (
        f"{skipped:,} of {updates:,} updates {'were' if skipped > 1 else 'was'} skipped because "
        f"loss or gradients were not finite, the first before update {first:,} ({MANY_SKIPPED:.0%} "
        "or fewer do no harm). Lower `--lr`, raise `--warmup-updates` or set `--clip-norm`."
    )


RULES: tuple[Callable[[Run], Iterator[str]], ...] = (
    loss_not_finite,
    has_not_learned,
    collapsed_routing,
    dead_experts,
    language_worse,
    unmoved_gate,
    skipped_updates,
)


def _last(validations: Sequence[object]) -> str:
    number = min(RECENT, len(validations))
    return f"the last {number} validations" if number > 1 else "the only validation"


def _listed(names: Iterable[object]) -> str:
    shown = [*map(str, names)]
    if len(shown) > MOST_NAMES:
        shown[MOST_NAMES:] = [f"{len(shown) - MOST_NAMES} more"]
    return ", ".join(shown)
