"""All charts of runs, by name: the page and the pictures of `mtmoe report`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

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
    least_runs: int = 1


PICTURES = {
    "perplexity": Picture(runs.perplexity, ("tier", "all"), "ppl"),
    "perplexity_minutes": Picture(
        partial(runs.perplexity, over="minutes"), ("tier", "all"), "ppl", least_runs=2
    ),
    "pairs": Picture(runs.pairs, ("pair",), "ppl"),
    "metrics": Picture(runs.metrics, ("task",)),
    "metrics_minutes": Picture(partial(runs.metrics, over="minutes"), ("task",), least_runs=2),
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
        if len(logged) >= picture.least_runs:
            charts[name] = picture.draw(logged)
    charts["gates"] = models.gates(states)
    charts["embeddings"] = models.embeddings(states)
    return {name: chart for name, chart in charts.items() if chart is not None}
