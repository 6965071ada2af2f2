"""Scores of a benchmark's tasks, as the file of scores has them."""

from typing import Any

SMALL = ("cola", "rte", "mrpc")
TITLES = {"cola": "CoLA", "rte": "RTE", "mrpc": "MRPC", "mnli": "MNLI"}


def set_of(score: float, error: float | None = 1.0, examples: int = 100, digest: str = "d", **more: Any) -> dict:
    """One set; `more` are `also`, `majority` and `constant`."""
    return {"examples": examples, "score": score, "standard_error": error, "data_sha256": digest, **more}


def task_of(task: str, *sets: dict, group: str = "") -> dict[str, dict]:
    named = {f"{task}/{number}" if number > 1 else task: one for number, one in enumerate(sets, start=1)}
    metric = "matthews" if task == "cola" else "accuracy"
    return {task: {"title": TITLES.get(task, task), "metric": metric, "small": task in SMALL, "group": group,
                   "sets": named}}  # fmt: skip
