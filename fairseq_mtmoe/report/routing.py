"""Figures of routing: use of experts and movement of gates.

Charts, warnings and training share them.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.report.rows import Run, Values, column_of, of_kind

LEAST_SHARE = 0.1
"""Share of a fair share, 1/N: an expert with less of every task's tokens is unused."""
RECENT = 3
"""Number of validations that must agree: one alone may be chance."""
LEAST_MOVED = 0.1
"""Distance from the start, in lengths of the first weights."""
LEAST_BLEND = 0.01
"""`blend` scales a factor of at most about 1, so this is about 1% of an output."""


def shares(counts_KN: Values) -> Values:
    """Return each expert's share of a task's tokens, (T, N); NaN without tokens."""
    with np.errstate(invalid="ignore"):
        return np.asarray(counts_KN / counts_KN.sum(axis=1, keepdims=True))


def entropies(counts_KN: Values) -> Values:
    """Return −Σ p log p / log N over each task's shares p of N experts, (T,).

    It is 0 if one expert gets all tokens and 1 if all get equally many; NaN without tokens, and for
    a single expert.
    """
    shares_KN = shares(counts_KN)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms_KN = np.where(shares_KN == 0, 0.0, -shares_KN * np.log(shares_KN))
        entropies_K: Values = terms_KN.sum(axis=1) / np.log(counts_KN.shape[1])
    return entropies_K


def used_experts(counts_KN: Values) -> NDArray[np.bool_]:
    """Return which experts get `LEAST_SHARE` of a fair share of some task, (N,)."""
    is_used_KN = shares(counts_KN) * counts_KN.shape[1] >= LEAST_SHARE
    is_used_N: NDArray[np.bool_] = is_used_KN.any(axis=0)
    return is_used_N


Validation = Mapping[str, Mapping[str, float | None]]  # figures of gates by layer


def unmoved(validations: Sequence[Validation]) -> dict[str, list[str]]:
    """Return layers whose gates hardly learned in these validations, by reason.

    A gate's gradients are proportional to `blend`: while that is near 0, the gate moves by chance.
    """
    layers_by_reason: dict[str, list[str]] = {}
    for layer in validations[-1] if validations else ():
        # No bound holds where a figure is unknown.
        moved = np.abs(column_of(validations, layer, "moved")).max()
        blend = np.abs(column_of(validations, layer, "blend")).max()
        if moved < LEAST_MOVED:
            reason = f"weights moved by less than {LEAST_MOVED:g} of their first length"
        elif blend < LEAST_BLEND:
            reason = f"`blend` is between -{LEAST_BLEND:g} and {LEAST_BLEND:g}"
        else:
            continue
        layers_by_reason.setdefault(reason, []).append(layer)
    return layers_by_reason


def fixed_layers(run: Run) -> set[str]:
    """Return the layers with fixed gates, in which each task has an expert for itself."""
    starts = of_kind(run.events, "run")
    # A pattern of gates is a list.
    if not any("fixed" in str(event.get("options", {}).get("expert_gates")) for event in starts):
        return set()
    layers = set()
    choosing = set()
    for row in run.of("experts"):
        layers.add(row.layer)
        if ((row.value > 0).sum(axis=1) > 1).any():
            choosing.add(row.layer)
    return layers - choosing


def routed_layers(run: Run) -> Iterator[tuple[str, Values, list[Values]]]:
    """Yield layers that route, their updates and, at each update, counts of tokens.

    The counts are (T, N), of tasks with tokens. A layer with a fixed gate does not: it has an
    expert also for a language that is only a source.
    """
    fixed = fixed_layers(run)
    values_by_layer = defaultdict(list)
    for row in run.of("experts"):
        if row.layer not in fixed:
            values_by_layer[row.layer].append(row.value)
    for layer, values in values_by_layer.items():
        counts = []
        for counts_KN in np.stack(values, axis=1):
            counts.append(counts_KN[~np.isnan(counts_KN).any(axis=1)])
        yield layer, row.update, counts
