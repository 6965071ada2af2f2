"""All charts of runs, by name: the page and the pictures of `mtmoe report`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fairseq_mtmoe.report.charts import experts, models, runs
from fairseq_mtmoe.report.charts.look import Chart
from fairseq_mtmoe.report.rows import Run

MOST_MOMENTS = 100  # of a curve
MOST_OF_ALL = 500  # of the curves of all runs


@dataclass(frozen=True)
class Picture:
    """A chart of the runs with rows of these groups and this metric, or any metric."""

    draw: Callable[[Sequence[Run]], Chart | None]
    groups: tuple[str, ...]
    metric: str = ""


def _over_minutes(
    draw: Callable[[Sequence[Run], str], Chart],
) -> Callable[[Sequence[Run]], Chart | None]:
    """Return a chart's form over minutes, for several runs that all log minutes."""

    def draw_over_minutes(shown: Sequence[Run]) -> Chart | None:
        for run in shown:
            for row in run.of("all", "tier", "group", "task"):
                if np.isnan(row.minutes).all():
                    return None
        return draw(shown, "minutes") if len(shown) > 1 else None

    return draw_over_minutes


PICTURES = {
    "perplexity": Picture(runs.perplexity, ("tier", "all"), "ppl"),
    "perplexity_minutes": Picture(_over_minutes(runs.perplexity), ("tier", "all"), "ppl"),
    "pairs": Picture(runs.pairs, ("pair",), "ppl"),
    "metrics": Picture(runs.metrics, ("task",)),
    "metrics_minutes": Picture(_over_minutes(runs.metrics), ("task",)),
    "training": Picture(partial(runs.training, titles=runs.TRAINING, title="Training"), ("train",)),
    "sampling": Picture(runs.sampling, ("sampling",)),
    "selection": Picture(runs.selection, ("selection",), "share"),
    "experts": Picture(experts.experts, ("experts",)),
    "expert_map": Picture(experts.expert_map, ("experts",)),
    "balance": Picture(runs.balance, ("experts",)),
    "gate_movement": Picture(runs.movement, ("gates",)),
    "sources": Picture(runs.sources, ("sources",)),
    "speed": Picture(partial(runs.training, titles=runs.SPEED, title="Speed"), ("train",)),
}


def pictures_of(shown: Sequence[Run], states: Mapping[str, Mapping[str, Any]]) -> dict[str, Chart]:
    """Return the charts that have data.

    states: the runs' checkpoints.
    """
    most = max(2, min(MOST_MOMENTS, MOST_OF_ALL // len(shown)))
    thinned = [run.thinned(most) for run in shown]
    charts: dict[str, Chart | None] = {}
    for name, picture in PICTURES.items():
        wanted = {"metric": picture.metric} if picture.metric else {}
        logged = [run for run in thinned if run.of(*picture.groups, **wanted)]
        charts[name] = picture.draw(logged) if logged else None
    charts["gates"] = models.gates(states)
    charts["embeddings"] = models.embeddings(states)
    return {name: chart for name, chart in charts.items() if chart is not None}
