"""What a reader of a report should know first: rules, whose bounds are said in the sentences that they make."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Literal

import numpy as np

from fairseq_mtmoe.analysis.routing import LAST, LEAST_SHARE, unmoved, used_experts
from fairseq_mtmoe.analysis.rows import EVERYBODY, Row, Run, Values, of_first_subset, of_kind
from fairseq_mtmoe.analysis.run_log import Event

LEAST_TOKENS = 20
"""Tokens for each expert on average: with fewer, that one got none may be chance."""
MANY_DEAD = 0.25
FEW_EFFECTIVE, LEAST_EFFECTIVE = 0.25, 1.5
"""Of the experts, and in number: when the tokens' spread is that of so few, routing has collapsed."""
NOISE_TIMES, LEAST_RISE = 4.0, 0.01
"""The best of many validations is below its neighbours by chance, too: hence not three times."""
MUCH_RISE = 0.05
MUCH_PADDING, MOST_PADDING = 0.10, 0.30
MANY_SKIPPED = 0.01
RANK = {"high": 0, "mid": 1, "low": 2}


Severity = Literal["high", "mid", "low"]


@dataclass(frozen=True)
class Warned:
    """What a reader should know first.

    Attributes:
        text: what, where, since when, by which rule, and what to do.
        where: the `layer`, `task` and `update` that it is about, as far as it is about one.
    """

    kind: str
    severity: Severity
    text: str
    where: dict[str, str | int] = field(default_factory=dict)


def warnings_of(run: Run) -> list[Warned]:
    """All that the rules find, the most severe first."""
    rules: tuple[Callable[[Run], list[Warned]], ...] = (
        not_finite, dead_experts, collapsed_routing, unmoved_gates, worse_languages, past_best, skipped_updates,
        padding_share, still_temperature,
    )  # fmt: skip
    return sorted((found for rule in rules for found in rule(run)), key=lambda one: RANK[one.severity])


def _layers(run: Run) -> dict[str, tuple[Values, list[Values]]]:
    """By layer its updates, and at each of them (T, N) the tokens of the tasks that had some."""
    found = {}
    for layer in dict.fromkeys(row.layer for row in run.of("experts")):
        rows = run.of("experts", layer=layer)
        counts_TMN = np.stack([row.value for row in rows])
        at = range(counts_TMN.shape[1])
        known = [counts_TMN[:, place][~np.isnan(counts_TMN[:, place]).any(axis=1)] for place in at]
        found[layer] = (rows[0].moments.update, known)
    return found


def dead_experts(run: Run) -> list[Warned]:
    """Of each layer, experts that in all of the last validations got less of every task than a tenth of a fair share.

    A fair share is 1/N of a task's tokens. Where gates are of tasks, an expert of one task alone is used.
    """
    found: list[Warned] = []
    tasks = {row.task for row in run.of("experts")}
    for layer, (updates, counts) in _layers(run).items():
        unused = [_unused(rows_TN) for rows_TN in counts]
        dead = set.intersection(*(set(one) for one in unused[-LAST:]))
        if not dead:
            continue
        first = next(place for place in range(len(unused)) if all(dead <= set(one) for one in unused[place:]))
        size, update = counts[0].shape[1], int(updates[first])
        names = _listed([str(expert) for expert in sorted(dead)], 8)
        text = (
            f"{len(dead)} of {size} experts of {layer} are hardly used: {names} got less than "
            f"{LEAST_SHARE:.0%} of a fair share (1/{size}) of every {'token' if tasks == {EVERYBODY} else 'task'}'s "
            f"tokens in {_validations(unused)} (since update {update:,}). Take fewer experts, more tokens per update, "
            "or gates that balance (`--expert-gates base`)."
        )
        severity: Severity = "high" if len(dead) >= MANY_DEAD * size else "mid"
        found.append(Warned("dead_expert", severity, text, {"layer": layer, "update": update}))
    return found


def _unused(rows_TN: Values) -> list[int]:
    """The experts that are not used; none where too few tokens were counted to tell."""
    enough = rows_TN.sum() >= LEAST_TOKENS * rows_TN.shape[1]
    return np.flatnonzero(~used_experts(rows_TN)).tolist() if enough else []


def collapsed_routing(run: Run) -> list[Warned]:
    """Layers whose tokens, of all tasks together, are spread as over a quarter of the experts or fewer, or over 1.5.

    As many as the exponential of the entropy of the experts' shares says, in all of the last validations.
    """
    found: list[Warned] = []
    for layer, (updates, counts) in _layers(run).items():
        size = counts[0].shape[1]
        effective = [_effective(rows_TN) for rows_TN in counts]
        bound = max(LEAST_EFFECTIVE, FEW_EFFECTIVE * size)
        low = [value is not None and value < bound for value in effective]
        if size < 2 or not all(low[-LAST:]):
            continue
        first = next(place for place in range(len(low)) if all(low[place:]))
        last, update = effective[-1] or 0.0, int(updates[first])
        text = (
            f"Routing of {layer} has collapsed: its tokens are spread as if it had {last:.1f} experts and not {size} "
            f"(exponential of the entropy of their shares; below {bound:.3g} in {_validations(low)}, since update "
            f"{update:,}). Take gates that balance (`--expert-gates base`), a larger balance loss or fewer experts."
        )
        severity: Severity = "high" if last < LEAST_EFFECTIVE else "mid"
        found.append(Warned("collapsed_routing", severity, text, {"layer": layer, "update": update}))
    return found


def unmoved_gates(run: Run) -> list[Warned]:
    """Gates that are where they began, or whose `blend` is near 0, in all of the last validations."""
    chosen = of_first_subset(run.events, "gates")
    found: list[Warned] = []
    for reason, layers in unmoved([event.get("layers", {}) for event in chosen[-LAST:]]).items():
        text = (
            f"Gates of {len(layers)} of {len(chosen[-1]['layers'])} layers have hardly learned: {reason} in "
            f"{_validations(chosen)} ({_listed(layers, 4)}). Their routing is about what it began with; raise "
            "`--gate-lr-factor`."
        )
        where: dict[str, str | int] = {"layer": layers[0], "update": int(chosen[-1]["update"])}
        found.append(Warned("unmoved_gate", "mid", text, where))
    return found


def _effective(rows_TN: Values) -> float | None:
    total = rows_TN.sum()
    if not total or total < LEAST_TOKENS * rows_TN.shape[1]:
        return None
    shares = rows_TN.sum(axis=0) / total
    shares = shares[shares > 0]
    return float(np.exp(-(shares * np.log(shares)).sum()))


def worse_languages(run: Run) -> list[Warned]:
    """Pairs whose perplexity rose by more than four times its noise, and 1%, while the others' fell in the median.

    Compared are the means of the last three validations and of the best three in a row before them. Noise is what is
    left of the differences between neighbouring validations: see `_noise`.
    """
    rows = run.of("pair", metric="ppl")
    found: list[Warned] = []
    for row in rows:
        rise = _rise(row)
        if rise is None:
            continue
        best, by, noise = rise
        others = [change for other in rows if other is not row and (change := _change(other, best)) is not None]
        if not others or median(others) >= 0:
            continue
        update = int(row.moments.update[best + LAST - 1])
        text = (
            f"{row.task} got worse: its perplexity rose by {math.expm1(by):.1%} since update {update:,}, over "
            f"{NOISE_TIMES:g} times the {noise:.1%} by which means of {LAST} validations vary, while the other pairs' "
            f"changed by {math.expm1(median(others)):.1%} in the median. Sample it less often (a lower temperature, or "
            "heating that ends sooner), or stop earlier."
        )
        severity: Severity = "high" if by > MUCH_RISE else "mid"
        found.append(Warned("language_worse", severity, text, {"task": row.task, "update": update}))
    return found


def past_best(run: Run) -> list[Warned]:
    """The perplexity of everything rose likewise: the run goes on past its best."""
    row = next(iter(run.of("all", metric="ppl")), None)
    rise = None if row is None else _rise(row)
    if row is None or rise is None:
        return []
    best, by, noise = rise
    update = int(row.moments.update[best + LAST - 1])
    text = (
        f"Validation perplexity is past its best: it rose by {math.expm1(by):.1%} since update {update:,}, over "
        f"{NOISE_TIMES:g} times the {noise:.1%} by which means of {LAST} validations vary. Evaluate the best "
        "checkpoint, and stop earlier (`--patience`) or regularise more."
    )
    return [Warned("past_best", "low", text, {"update": update})]


def _rise(row: Row) -> tuple[int, float, float] | None:
    """Where the best three validations in a row begin, by how much the last three are above them, and the noise.

    All in logarithms of perplexity. None where it did not rise by more than the noise explains, or nobody can tell.
    """
    if len(row.value) < 3 * LAST or not (row.value > 0).all():
        return None
    logs = np.log(row.value).tolist()
    means = [fmean(logs[place : place + LAST]) for place in range(len(logs) - LAST + 1)]
    best = min(range(len(means) - LAST), key=means.__getitem__)
    noise = _noise(logs) / math.sqrt(LAST) * math.sqrt(2)
    by = means[-1] - means[best]
    return (best, by, noise) if by > max(NOISE_TIMES * noise, math.log1p(LEAST_RISE)) else None


def _noise(logs: Sequence[float]) -> float:
    """The deviation of one validation from a smooth curve: by second differences, in which a slope is nothing.

    A second difference of independent noise has 6 times its variance. The median is not moved by single jumps, as where
    a dense model becomes sparse.
    """
    second = [abs(a - 2 * b + c) for a, b, c in zip(logs, logs[1:], logs[2:], strict=False)]
    return 1.4826 * median(second) / math.sqrt(6)


def _change(row: Row, best: int) -> float | None:
    """How much the last three validations are above those three, in logarithms of perplexity."""
    before, after = row.value[best : best + LAST], row.value[-LAST:]
    known = bool((before > 0).all() and (after > 0).all())
    return float(np.log(after).mean() - np.log(before).mean()) if known else None


def skipped_updates(run: Run) -> list[Warned]:
    """Updates that were left out because their loss or gradients were not finite."""
    chosen = of_kind(run.events, "train")
    skipped = int(max((event.get("skipped") or 0 for event in chosen), default=0))
    if not skipped:
        return []
    first = next(int(event["update"]) for event in chosen if event.get("skipped"))
    updates = int(chosen[-1]["update"])
    severity: Severity = "high" if skipped > MANY_SKIPPED * updates else "low"
    text = (
        f"{skipped:,} update{'s were' if skipped > 1 else ' was'} left out of {updates:,}, because loss or gradients "
        f"were not finite, the first before update {first:,} ({MANY_SKIPPED:.0%} or fewer do no harm). Lower `--lr`, "
        "raise `--warmup-updates` or set `--clip-norm`."
    )
    return [Warned("skipped_updates", severity, text, {"update": first})]


def padding_share(run: Run) -> list[Warned]:
    """More than a tenth of what was trained on is padding."""
    known = [value for row in run.of("train", metric="padding") for value in row.value[np.isfinite(row.value)].tolist()]
    share = fmean(known) if known else 0.0
    if share <= MUCH_PADDING:
        return []
    text = (
        f"{share:.1%} of what was trained on is padding, and more than {MUCH_PADDING:.0%} costs time: batches have "
        "sentences of very different lengths. Give them more tokens (`--max-tokens`), so that more are of one length."
    )
    return [Warned("padding", "mid" if share > MOST_PADDING else "low", text)]


def still_temperature(run: Run) -> list[Warned]:
    """Heating was asked for, the run is over or past the C updates of its heating, and the temperature did not move."""
    events, epochs = run.events, of_kind(run.events, "sampling")
    start: Event = next(reversed(of_kind(events, "run")), {"event": "run"})
    known = {event.get("temperature") for event in epochs}
    updates = max((int(event["update"]) for event in events if "update" in event), default=0)
    limits = [start.get("heating_updates"), start.get("options", {}).get("max_update")]
    bounds = [limit for limit in limits if isinstance(limit, int) and limit > 0]
    is_last = bool(epochs) and epochs[-1]["epoch"] == start.get("options", {}).get("max_epoch")
    rises = isinstance(heat := start.get("heating_coefficient"), int | float) and heat > 0
    if not rises or len(known) != 1 or None in known or not (is_last or any(updates >= bound for bound in bounds)):
        return []
    text = (
        f"The temperature was to rise (`--heating-coefficient {heat:g}`) and stayed at {known.pop():g} in all "
        f"{updates:,} updates, because the run had one epoch. Give `--heating-updates`, with which it rises within an "
        "epoch, or smaller epochs (`--virtual-epoch-size`)."
    )
    return [Warned("still_temperature", "high", text)]


def not_finite(run: Run) -> list[Warned]:
    """The loss of training, or the perplexity of a validation, is no number or infinite."""
    training = [int(event["update"]) for event in of_kind(run.events, "train") if event.get("loss", 0.0) is None]
    validations = [
        int(event["update"])
        for event in of_first_subset(run.events, "valid")
        if event.get("all", {}).get("loss", 0.0) is None
    ]
    found: list[Warned] = []
    for what, updates in (("training", training), ("validation", validations)):
        if updates:
            text = (
                f"The loss of {what} was not finite at update {updates[0]:,}"
                + (f" and {len(updates) - 1:,} times more" if len(updates) > 1 else "")
                + ". Lower `--lr`, raise `--warmup-updates` or set `--clip-norm`, and go on from an earlier checkpoint."
            )
            found.append(Warned("loss_not_finite", "high", text, {"update": updates[0]}))
    return found


def _validations(of: Sequence[object]) -> str:
    number = min(LAST, len(of))
    return f"the last {number} validations" if number > 1 else "the only validation"


def _listed(names: Sequence[str], most: int) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
