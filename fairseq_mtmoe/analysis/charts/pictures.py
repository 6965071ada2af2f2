"""All charts of runs, by name: the pictures of `mtmoe report --png` and the charts of its page."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fairseq_mtmoe.analysis.charts import experts, models, runs
from fairseq_mtmoe.analysis.charts.look import Chart
from fairseq_mtmoe.analysis.rows import Run

MOST_MOMENTS, MOST_OF_ALL = 100, 500  # of a curve, and of the curves of all runs
# By name: the groups of rows that a chart needs, their metric or any, and the function that draws it.
PICTURES: dict[str, tuple[tuple[str, ...], str, Callable[[Sequence[Run]], Chart | None]]] = {
    "perplexity": (("tier", "all"), "ppl", runs.perplexity),
    "perplexity_minutes": (
        ("tier", "all"),
        "ppl",
        lambda chosen: _over_minutes(runs.perplexity, chosen),
    ),
    "pairs": (("pair",), "ppl", runs.pairs),
    "metrics": (("task",), "", runs.metrics),
    "metrics_minutes": (("task",), "", lambda chosen: _over_minutes(runs.metrics, chosen)),
    "training": (("train",), "", runs.training),
    "sampling": (("sampling",), "", runs.sampling),
    "selection": (("selection",), "share", runs.selection),
    "experts": (("experts",), "", experts.experts),
    "expert_map": (("experts",), "", experts.expert_map),
    "balance": (("experts",), "", runs.balance),
    "gate_movement": (("gates",), "", runs.movement),
    "sources": (("sources",), "", runs.sources),
    "speed": (("train",), "", runs.speed),
}


def _over_minutes(
    draw: Callable[[Sequence[Run], str], Chart], chosen: Sequence[Run]
) -> Chart | None:
    """Draw several runs over minutes; None for one run, or if minutes are not logged."""
    for run in chosen:
        rows = run.of("all", "tier", "group", "task")
        if len(chosen) < 2 or not all(np.isfinite(row.moments.minutes).any() for row in rows):
            return None
    return draw(chosen, "minutes")


def pictures_of(shown: Sequence[Run], states: Mapping[str, Mapping[str, Any]]) -> dict[str, Chart]:
    """Return the charts of runs and of their checkpoints (`states`, by run), where there is data."""
    most = min(MOST_MOMENTS, MOST_OF_ALL // len(shown))
    thinned = [run.thinned(max(most, 2)) for run in shown]
    charts: dict[str, Chart | None] = {}
    for name, (groups, metric, draw) in PICTURES.items():
        wanted = {"metric": metric} if metric else {}
        logged = [run for run in thinned if run.of(*groups, **wanted)]
        if logged:
            charts[name] = draw(logged)
    charts["gates"] = models.gates(states)
    charts["embeddings"] = models.embeddings(states)
    return {name: chart for name, chart in charts.items() if chart is not None}
