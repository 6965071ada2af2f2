"""What a report shows of a run, from its log."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairseq_mtmoe.analysis.report.gathering import Gatherer, RunReport
from fairseq_mtmoe.analysis.report.page import MOST_POINTS, peaks
from tests.helpers.run_logs import events_of_a_run, write_run

OLD = Path(__file__).parents[3] / "golden" / "v0_1_0"


def run_of(folder: Path, events: list[dict[str, Any]] | None = None, **options: Any) -> RunReport:
    events = events_of_a_run(**options) if events is None else events
    return Gatherer([write_run(folder / "run", events)]).gather().runs[0]


def rows_of(run: RunReport) -> dict[tuple[str, str, str], list[float]]:
    return {(row.group, row.task or row.layer, row.metric): row.value.tolist() for row in run.rows}


def test_what_was_run_and_how_far_it_is(tmp_path):
    run = run_of(tmp_path, updates=800)
    options = {"arch": "base_moe_tiny", "max_update": 800, "lr": [0.005], "sampling_method": "temperature"}
    assert run.setup["options"] == options and run.unit == "language"
    assert [run.setup[name] for name in ("seed", "commit", "data")] == [7, "0123abc", "data/tiny"]
    best = rows_of(run)["all", "all", "ppl"][-1]
    assert run.progress == {"updates": 800, "minutes": 8.0, "tokens": 400_000, "epoch": 4, "skipped": 0,
                            "best": (800, "ppl", best), "finished": True}  # fmt: skip
    assert run.notes == [] and run.warnings == []
    short = run_of(tmp_path, change=lambda event: event if event.get("update", 0) <= 500 else None)
    assert short.progress["finished"] is False


def test_a_run_started_when_it_first_did_and_its_model_is_as_large_as_it_became(tmp_path):
    first = {"event": "run", "started": "2026-01-01T00:00:00+00:00", "parameters": 100, "multiplications": 90}
    sparse = {"event": "sparsified", "update": 5, "num_experts": 4, "parameters": 300, "multiplications": 95}
    again = first | {"started": "2026-02-02T00:00:00+00:00"}
    for events, size in (([first, again], (100, 90)), ([first, sparse], (300, 95))):
        setup = run_of(tmp_path, events).setup
        assert setup["started"] == first["started"]
        assert (setup["parameters"], setup["multiplications"]) == size


def test_a_benchmark_has_its_metrics_and_means(tmp_path):
    def valid(update: int, score: float) -> dict[str, Any]:
        tasks = {"rte": {"accuracy": score, "loss": 0.5}, "sst2": {"accuracy": 90.0, "loss": 0.2}}
        groups = {"small": {"mean": score}, "all": {"mean": (score + 90) / 2}}
        return {"event": "valid", "update": update, "subset": "valid", "tasks": tasks, "groups": groups,
                "all": {"loss": 0.3, "nll_loss": 0.3, "ppl": 1.2, "tokens": 5}}  # fmt: skip

    run = run_of(tmp_path, [valid(10, 60.0), valid(20, 70.0), valid(30, 65.0)])
    rows = rows_of(run)
    assert rows["task", "rte", "accuracy"] == [60, 70, 65] and rows["group", "all", "mean"] == [75, 80, 77.5]
    assert rows["task", "rte", "loss"] == [0.5] * 3
    assert run.progress["best"] == (20, "mean", 80) and run.unit == "task"


def test_long_trainings_are_thinned_and_keep_their_peaks(tmp_path):
    def change(event: dict[str, Any]) -> dict[str, Any]:
        at = {30_000: 99.0, 70_020: 0.01}
        return {**event, "gnorm": at[event["update"]]} if event.get("update") in at and "gnorm" in event else event

    run = run_of(tmp_path, updates=100_000, train_events=5_000, change=change)
    row = peaks(next(row for row in run.rows if row.metric == "gnorm"), MOST_POINTS)
    values, updates = row.value.tolist(), row.moments.update
    assert len(values) == len(updates) == MOST_POINTS and (max(values), min(values)) == (99, 0.01)
    assert [updates[values.index(value)] for value in (99.0, 0.01)] == pytest.approx([30_000, 70_020], abs=100)
    assert (updates[0], updates[-1], row.moments.minutes[-1]) == (20, 100_000, 1000) and all(np.diff(updates) >= 0)


def test_experts_have_fewer_moments_and_entropy_says_how_even_they_are(tmp_path):
    run = run_of(tmp_path, validations=40)
    lengths = {row.group: len(row.value) for row in run.rows}
    assert (lengths["experts"], lengths["entropy"]) == (30, 40)
    counts = {100: [[3, 1, 0, 0], [5, 5, 5, 5], [0, 0, 0, 0]], 200: [[4, 0, 0, 0], [1, 1, 0, 0], [1, 2, 3, 4]]}
    events = [{"event": "experts", "update": update, "subset": "valid", "task_names": ["x", "y", "z"],
               "layers": {"a": counts[update]}} for update in (100, 200)]  # fmt: skip
    entropy = {row.task: row.value.tolist() for row in run_of(tmp_path, events).rows if row.group == "entropy"}
    uneven = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) / math.log(4)
    assert entropy["x"] == pytest.approx([uneven, 0]) and entropy["y"] == pytest.approx([1, 0.5])
    assert entropy["z"] == pytest.approx([math.nan, 0.9232], abs=1e-4, nan_ok=True)


def test_a_run_of_an_old_version_says_what_it_does_not_know():
    (run,) = Gatherer([OLD / "sparse"]).gather().runs
    assert run.rows and run.setup["commit"] is None and run.progress["tokens"] is None
    assert sum("before 0.1.10" in note for note in run.notes) == 2
