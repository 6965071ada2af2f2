"""Warnings of a report: rules whose bounds are named in the sentences they make."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, Literal

import numpy as np

from fairseq_mtmoe.analysis.questions import LAST, LEAST_SHARE, entropies, fixed_layers, unmoved, used_experts
from fairseq_mtmoe.analysis.rows import EVERYBODY, Row, Run, Values, of_first_subset, of_kind
from fairseq_mtmoe.analysis.run_log import Event

LEAST_TOKENS = 20
"""Tokens per expert on average; with fewer, an expert without tokens may be chance."""
MANY_DEAD = 0.25
FEW_EFFECTIVE, LEAST_EFFECTIVE = 0.25, 1.5
"""Share and number of experts: with fewer effective experts, routing has collapsed."""
NOISE_TIMES, LEAST_RISE = 4.0, 0.01
"""Over many validations, the best one is below its neighbours by chance, too: hence 4 times the noise, not 3."""
MUCH_RISE = 0.05
MUCH_PADDING, MOST_PADDING = 0.10, 0.30
MANY_SKIPPED = 0.01
LEAST_PASSES, LEAST_FALL = 1.0, 0.01
"""Passes over the data, and the fall of perplexity in the last validation that shows a run which still learns."""
Severity = Literal["high", "mid", "low"]
RANK: tuple[Severity, ...] = ("high", "mid", "low")


@dataclass(frozen=True)
class Warned:
    """A rule's finding and advice; `where` has the `layer`, `task` and `update`."""

    kind: str
    severity: Severity
    text: str
    where: dict[str, str | int] = field(default_factory=dict)


def warnings_of(run: Run) -> list[Warned]:
    """Return the findings of all rules, the most severe first."""
    rules: tuple[Callable[[Run], Iterator[Warned]], ...] = (
        not_finite, dead_experts, collapsed_routing, unmoved_gates, ended_early, worse_languages, past_best,
        skipped_updates, padding_share, still_temperature,
    )  # fmt: skip
    return sorted((found for rule in rules for found in rule(run)), key=lambda one: RANK.index(one.severity))


def _layers(run: Run) -> Iterator[tuple[str, Values, list[Values]]]:
    """Yield layers that route, with their updates and, at each, the counts (T, N) of tasks with tokens.

    A layer with a fixed gate does not: it has an expert also for a language that is only a source.
    """
    fixed = fixed_layers(run)
    for layer in dict.fromkeys(row.layer for row in run.of("experts") if row.layer not in fixed):
        rows = run.of("experts", layer=layer)
        counts_MTN = np.stack([row.value for row in rows], axis=1)
        yield layer, rows[0].moments.update, [of[~np.isnan(of).any(axis=1)] for of in counts_MTN]


def _enough(counts_TN: Values) -> bool:
    return bool(counts_TN.sum() >= LEAST_TOKENS * counts_TN.shape[1])


def dead_experts(run: Run) -> Iterator[Warned]:
    """Warn of experts that got under a tenth of a fair share, 1/N, of every task.

    This must hold in all of the last validations.
    """
    unit = "token" if {row.task for row in run.of("experts")} == {EVERYBODY} else "task"
    for layer, updates, counts in _layers(run):
        unused = [set(np.flatnonzero(~used_experts(of)).tolist()) if _enough(of) else set() for of in counts]
        dead = set.intersection(*unused[-LAST:])
        if dead:
            size, update = counts[0].shape[1], int(updates[_since([dead <= one for one in unused])])
            yield Warned("dead_expert", _severity(len(dead) >= MANY_DEAD * size, unused), (
                f"{len(dead)} of {size} experts of {layer} are hardly used: {_listed(map(str, sorted(dead)), 8)} got "
                f"less than {LEAST_SHARE:.0%} of a fair share (1/{size}) of every {unit}'s tokens in {_last(unused)} "
                f"(since update {update:,}). Use fewer experts or more tokens per update; in translation, "
                "`--expert-gates base` balances."
            ), {"layer": layer, "update": update})  # fmt: skip


def collapsed_routing(run: Run) -> Iterator[Warned]:
    """Warn of layers whose tokens spread as over a quarter of the experts or fewer.

    The effective number of experts is the exponential of the entropy.
    """
    for layer, updates, counts in _layers(run):
        size = counts[0].shape[1]
        evenness = [entropies(of.sum(axis=0, keepdims=True))[0] if _enough(of) else math.inf for of in counts]
        effective = [float(size**entropy) for entropy in evenness]
        bound = max(LEAST_EFFECTIVE, FEW_EFFECTIVE * size)
        low = [value < bound for value in effective]
        if size > 1 and all(low[-LAST:]):
            update = int(updates[_since(low)])
            yield Warned("collapsed_routing", _severity(effective[-1] < LEAST_EFFECTIVE, low), (
                f"Routing of {layer} has collapsed: its tokens are spread as over {effective[-1]:.1f} experts and not "
                f"{size} (exponential of the entropy of their shares; below {bound:.3g} in {_last(low)}, since update "
                f"{update:,}). Use fewer experts; in translation, `--expert-gates base` balances."
            ), {"layer": layer, "update": update})  # fmt: skip


def _since(holds: Sequence[bool]) -> int:
    """Return the first index from which on all values are true."""
    return next(index for index in range(len(holds)) if all(holds[index:]))


def unmoved_gates(run: Run) -> Iterator[Warned]:
    """Warn of gates that barely moved or have a `blend` near 0 in the last validations."""
    chosen = of_first_subset(run.events, "gates")
    for reason, layers in unmoved([event.get("layers", {}) for event in chosen[-LAST:]]).items():
        yield Warned("unmoved_gate", "mid", (
            f"Gates of {len(layers)} of {len(chosen[-1]['layers'])} layers have hardly learned: {reason} in "
            f"{_last(chosen)} ({_listed(layers, 4)}). They still route about as at the start; raise "
            "`--gate-lr-factor`."
        ), {"layer": layers[0], "update": int(chosen[-1]["update"])})  # fmt: skip


def worse_languages(run: Run) -> Iterator[Warned]:
    """Warn of pairs that got worse while the median pair improved.

    Worse: perplexity rose by more than four times its noise, and by more than 1%.
    """
    rows = run.of("pair", metric="ppl")
    for row in rows:
        best, by, noise = _rise(row)
        logs = [np.log(np.where(other.value > 0, other.value, np.nan)) for other in rows if by and other is not row]
        changes = [float(of[-LAST:].mean() - of[best : best + LAST].mean()) for of in logs]
        others = [change for change in changes if math.isfinite(change)]
        if others and median(others) < 0:
            update = int(row.moments.update[best + LAST - 1])
            yield Warned("language_worse", "high" if by > MUCH_RISE else "mid", (
                f"{row.task} got worse: its perplexity rose by {math.expm1(by):.1%} since update {update:,}, over "
                f"{NOISE_TIMES:g} times the {noise:.1%} by which means of {LAST} validations vary, while the other "
                f"pairs' changed by {math.expm1(median(others)):.1%} in the median. Sample the pair less often (a "
                "lower temperature, or heating that ends sooner), or stop earlier."
            ), {"task": row.task, "update": update})  # fmt: skip


def past_best(run: Run) -> Iterator[Warned]:
    """Warn of a run past its best: the perplexity of all pairs rose by the same rule."""
    for row in run.of("all", metric="ppl"):
        best, by, noise = _rise(row)
        if by:
            update = int(row.moments.update[best + LAST - 1])
            yield Warned("past_best", "low", (
                f"Validation perplexity is past its best: it rose by {math.expm1(by):.1%} since update {update:,}, "
                f"over {NOISE_TIMES:g} times the {noise:.1%} by which means of {LAST} validations vary. Evaluate the "
                "best checkpoint, and stop earlier (`--patience`) or regularise more."
            ), {"update": update})  # fmt: skip


def _rise(row: Row) -> tuple[int, float, float]:
    """Return the start of the best three validations, the rise since, and the noise.

    All are in logarithms of perplexity. They are 0 if noise explains the rise, or if there are too few validations.
    Noise comes from second differences: they cancel a slope and have 6 times its variance. Their median is robust to
    single jumps, as when a dense model becomes sparse.
    """
    if len(row.value) < 3 * LAST or not (row.value > 0).all():
        return 0, 0.0, 0.0
    logs = np.log(row.value)
    means = np.convolve(logs, np.full(LAST, 1 / LAST), "valid")
    best = int(means[:-LAST].argmin())
    of_one = 1.4826 * float(np.median(np.abs(np.diff(logs, 2)))) / math.sqrt(6)
    noise, by = of_one * math.sqrt(2 / LAST), float(means[-1] - means[best])
    return (best, by, noise) if by > max(NOISE_TIMES * noise, math.log1p(LEAST_RISE)) else (0, 0.0, 0.0)


def ended_early(run: Run) -> Iterator[Warned]:
    """Warn of a run that ended within its first pass while its perplexity still fell."""
    passes, updates = _passes(run), _updates(run)
    if passes is None or passes >= LEAST_PASSES or not _is_over(run):
        return
    for row in run.of("all", metric="ppl"):
        values = row.value[np.isfinite(row.value)]
        fall = 1 - float(values[-1] / values[-2]) if len(values) > 1 else 0.0
        if fall > LEAST_FALL:
            yield Warned("ended_early", "high", (
                f"The run ended after {passes:.2g} passes over its training sentences, while it still learned: "
                f"validation perplexity fell by {fall:.1%} in the last of {len(values)} validations. Train longer "
                f"(`--max-update` above {updates:,}), or use a smaller model in the same time (`mtmoe suggest`)."
            ), {"update": updates})  # fmt: skip


def _passes(run: Run) -> float | None:
    """Return the passes over the training sentences so far; None if the log lacks a number."""
    sizes = next(reversed(of_kind(run.events, "run")), {}).get("sizes") or {}
    rows, total = run.of("train", metric="bsz"), sum(sizes.values())
    batches = [value for row in rows for value in row.value.tolist() if math.isfinite(value)]
    return _updates(run) * fmean(batches) / total if batches and total else None


def _updates(run: Run) -> int:
    return max((int(event["update"]) for event in run.events if "update" in event), default=0)


def _is_over(run: Run) -> bool:
    """Return whether the run has reached the limit of its updates, epochs or hours."""
    start: Event = next(reversed(of_kind(run.events, "run")), {})
    options: dict[str, Any] = start.get("options", {})
    epoch = max((event.get("epoch", 0) for event in of_kind(run.events, "valid")), default=0)
    minutes = max((event.get("minutes") or 0.0 for event in run.events), default=0.0)
    reached = {"max_update": _updates(run), "max_epoch": epoch, "stop_time_hours": minutes / 60}
    limits = [(options.get(name), value) for name, value in reached.items()]
    return any(isinstance(limit, int | float) and 0 < limit <= value for limit, value in limits)


def skipped_updates(run: Run) -> Iterator[Warned]:
    """Warn of updates that were skipped because loss or gradients were not finite."""
    chosen = of_kind(run.events, "train")
    some = [event for event in chosen if event.get("skipped")]
    if some:
        skipped, first, updates = (int(value) for value in (
            max(event["skipped"] for event in some), some[0]["update"], chosen[-1]["update"]))  # fmt: skip
        yield Warned("skipped_updates", "high" if skipped > MANY_SKIPPED * updates else "low", (
            f"{skipped:,} of {updates:,} updates {'were' if skipped > 1 else 'was'} skipped because loss or gradients "
            f"were not finite, the first before update {first:,} ({MANY_SKIPPED:.0%} or fewer do no harm). Lower "
            "`--lr`, raise `--warmup-updates` or set `--clip-norm`."
        ), {"update": first})  # fmt: skip


def padding_share(run: Run) -> Iterator[Warned]:
    """Warn if more than a tenth of the trained positions is padding."""
    share = max((fmean(row.value[np.isfinite(row.value)]) for row in run.of("train", metric="padding")), default=0.0)
    if share > MUCH_PADDING:
        yield Warned("padding", "mid" if share > MOST_PADDING else "low", (
            f"{share:.1%} of the trained positions are padding; more than {MUCH_PADDING:.0%} costs time. Batches mix "
            "sentences of very different lengths. Raise `--max-tokens`, so that a batch has more sentences of one "
            "length."
        ))  # fmt: skip


def still_temperature(run: Run) -> Iterator[Warned]:
    """Warn if the temperature never rose although heating was requested.

    The run must be over or past its heating updates.
    """
    events, epochs = run.events, of_kind(run.events, "sampling")
    start: Event = next(reversed(of_kind(events, "run")), {"event": "run"})
    options: dict[str, Any] = start.get("options", {})
    known = {event.get("temperature") for event in epochs}
    updates = _updates(run)
    limits = [start.get("heating_updates"), options.get("max_update")]
    is_over = any(updates >= limit for limit in limits if isinstance(limit, int) and limit > 0)
    is_over = is_over or (bool(epochs) and epochs[-1]["epoch"] == options.get("max_epoch"))
    heat = start.get("heating_coefficient")
    if is_over and isinstance(heat, int | float) and heat > 0 and len(known) == 1 and None not in known:
        yield Warned("still_temperature", "high", (
            f"The temperature should have risen (`--heating-coefficient {heat:g}`), but stayed at {known.pop():g} in "
            f"all {updates:,} updates, because the run had one epoch. Set `--heating-updates`, so that it rises within "
            "an epoch, or use smaller epochs (`--virtual-epoch-size`)."
        ))  # fmt: skip


def not_finite(run: Run) -> Iterator[Warned]:
    """Warn of a training loss or validation perplexity that is not finite."""
    of_training = [(event, event) for event in of_kind(run.events, "train")]
    of_validation = [(event, event.get("all", {})) for event in of_first_subset(run.events, "valid")]
    for kind, told in (("training", of_training), ("validation", of_validation)):
        updates = [int(event["update"]) for event, figures in told if figures.get("loss", 0.0) is None]
        if updates:
            more = f" and {later:,} time{'s' if later > 1 else ''} after it" if (later := len(updates) - 1) else ""
            yield Warned("loss_not_finite", "high", (
                f"The {kind} loss was not finite at update {updates[0]:,}{more}. Lower `--lr`, raise "
                "`--warmup-updates` or set `--clip-norm`, and resume from an earlier checkpoint."
            ), {"update": updates[0]})  # fmt: skip


def _severity(is_high: bool, validations: Sequence[object]) -> Severity:
    """Return "mid" for a finding that is not high, or that fewer than three validations show."""
    return "high" if is_high and len(validations) >= LAST else "mid"


def _last(of: Sequence[object]) -> str:
    number = min(LAST, len(of))
    return f"the last {number} validations" if number > 1 else "the only validation"


def _listed(names: Any, most: int) -> str:
    shown = list(names)
    more = f" and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more
