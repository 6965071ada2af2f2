"""Two run logs in which every kind of event is: what `tests/golden/figures.json` was frozen of."""

from tests.helpers.run_logs import Event, events_of_a_run


def translation() -> list[Event]:
    """Of a sparse model with uncertainty sampling, all-to-all and sources."""
    events = events_of_a_run(pairs=4, updates=900, validations=6, train_events=9)
    for number, update in enumerate((150, 300, 450), start=1):
        events += [
            {"event": "gates", "update": update, "subset": "valid",
             "layers": {"a": {"blend": 0.1 * number, "moved": None}, "b": {"moved": 1 / number, "changed": 0.25}}},
            {"event": "sources", "update": update, "subset": "valid", "target": "rte", "sources": ["mnli", "qnli"],
             "layers": {"a": [0.75, 0.25], "b": [0.1 * number, 1 - 0.1 * number], "c": [None, None]}},
            {"event": "selection", "update": update, "trained": {"x": 30 * number, "y": 7},
             "relative_entropy": {"x": 1 / (1 + number)}, "share_of_data": 0.1 * number},
            {"event": "expert_comm", "update": update, "updates": 50,
             "layers": {"a": {"seconds": 2.0 * number, "bytes": 4e6}, "b": {"seconds": 1.0, "bytes": 1e6}}},
        ]  # fmt: skip
    return [*events, {"event": "sparsified", "update": 160, "num_experts": 4}]


def benchmark() -> list[Event]:
    """Of several tasks, one of which was not validated at first."""
    run = {"event": "run", "sizes": {"cola": 300, "rte": 100}, "task_names": ["cola", "rte"]}
    valid = [
        {"event": "valid", "update": update, "minutes": update / 7, "subset": "valid", "tasks": tasks,
         "groups": {"small": {"mean": 40.0 + update}, "all": {"mean": 30.0 + update}}, "all": {"loss": 0.5}}
        for update, tasks in (
            (10, {"cola": {"loss": 0.5, "matthews": 10.25}}),
            (20, {"cola": {"loss": 0.4, "matthews": 20.5}, "rte": {"loss": 0.7, "accuracy": 60.0}}),
        )
    ]  # fmt: skip
    return [run, *valid]
