"""What a report shows of a run, from its log."""

import json
import math
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import numpy as np
import pytest

from fairseq_mtmoe.analysis.run_facts import fields
from fairseq_mtmoe.analysis.run_facts.experts import EVERYBODY, expert_counts, experts_of
from fairseq_mtmoe.analysis.run_facts.gathering import Gatherer
from fairseq_mtmoe.analysis.run_facts.training import MOST_POINTS, evenly, train_of
from fairseq_mtmoe.errors import UserError
from tests.helpers.run_facts import made_up_facts
from tests.helpers.run_logs import LAYERS, events_of_a_run, write_run

OLD = Path(__file__).parents[3] / "golden" / "v0_1_0"


def facts_of(*runs: Path) -> Any:
    """Through JSON, as the page gets them."""
    return json.loads(json.dumps(Gatherer(list(runs)).gather(), allow_nan=False))


def run_of(folder: Path, **options: Any) -> Any:
    return facts_of(write_run(folder / "run", events_of_a_run(**options)))["runs"][0]


def what_is_wrong(value: Any, kind: Any, place: str = "facts") -> list[str]:
    """Where a value is not of a type of `fields`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_typeddict(kind):
        hints = get_type_hints(kind)
        if not isinstance(value, dict) or value.keys() - hints.keys() or kind.__required_keys__ - value.keys():
            return [f"{place} is {value!r:.200} and has not the fields {sorted(hints)}"]
        return [found for name in value for found in what_is_wrong(value[name], hints[name], f"{place}.{name}")]
    if origin is list:
        return [
            found
            for place_, one in enumerate(value)
            for found in what_is_wrong(one, arguments[0], f"{place}[{place_}]")
        ]
    if origin is dict:
        return [found for name, one in value.items() for found in what_is_wrong(one, arguments[1], f"{place}.{name}")]
    if origin in (Union, UnionType):
        options = [what_is_wrong(value, one, place) for one in arguments]
        return [] if not all(options) else [f"{place} is {value!r}"]
    if origin is Literal:
        return [] if value in arguments else [f"{place} is {value!r}"]
    if (
        kind is Any
        or isinstance(value, kind)
        or (kind is float and type(value) is int)
        or (kind is type(None) and value is None)
    ):
        return []
    return [f"{place} is {value!r}"]


def test_facts_have_the_fields_that_are_said(tmp_path):
    run = write_run(tmp_path / "run", events_of_a_run())
    assert what_is_wrong(facts_of(run), fields.Facts) == []
    assert what_is_wrong(made_up_facts(4, 3000, 2), fields.Facts) == []
    broken = facts_of(run)
    broken["runs"][0]["curves"]["rows"][0]["values"][0] = "1"
    del broken["runs"][0]["setup"]["seed"]
    assert len(what_is_wrong(broken, fields.Facts)) == 2


def test_what_was_run_and_how_far_it_is(tmp_path):
    run = run_of(tmp_path, updates=800)
    setup, progress = run["setup"], run["progress"]
    assert setup["options"] == {
        "arch": "base_moe_tiny",
        "max_update": 800,
        "lr": [0.005],
        "sampling_method": "temperature",
    }
    assert (setup["seed"], setup["commit"], setup["data"], setup["unit"]) == (7, "0123abc", "data/tiny", "language")
    assert setup["tiers"]["en-aa"] == "low" and setup["sizes"]["en-ac"] == 300
    best = run["curves"]["rows"][0]["values"][-1]
    assert progress == {"updates": 800, "minutes": 8.0, "tokens": 400_000, "epoch": 4, "skipped": 0, "finished": True,
                        "best": {"update": 800, "metric": "ppl", "value": best}}  # fmt: skip
    assert run["notes"] == [] and run["warnings"] == []
    short = run_of(tmp_path, change=lambda event: event if event.get("update", 0) <= 500 else None)
    assert short["progress"]["finished"] is False


def test_a_run_started_when_it_first_did_and_its_model_is_as_large_as_it_became(tmp_path):
    first = {"event": "run", "started": "2026-01-01T00:00:00+00:00", "parameters": 100, "multiplications": 90}
    sparse = {"event": "sparsified", "update": 5, "num_experts": 4, "parameters": 300, "multiplications": 95}
    again = first | {"started": "2026-02-02T00:00:00+00:00"}
    for events, size in (([first, again], (100, 90)), ([first, sparse], (300, 95))):
        setup = facts_of(write_run(tmp_path / f"run-{len(events[-1])}", events))["runs"][0]["setup"]
        assert setup["started"] == first["started"]
        assert (setup["parameters"], setup["multiplications"]) == size


def test_perplexity_and_loss_of_all_tiers_and_pairs_over_updates_minutes_and_tokens(tmp_path):
    curves = run_of(tmp_path)["curves"]
    assert curves["moments"] == {"update": list(range(100, 1001, 100)), "minutes": [1.0 * n for n in range(1, 11)],
                                 "tokens": [50_000.0 * n for n in range(1, 11)]}  # fmt: skip
    keys = ["all", "tier:low", "tier:mid", "tier:high", "pair:en-aa", "pair:en-ab", "pair:en-ac"]
    assert [(row["key"], row["metric"]) for row in curves["rows"]] == [
        (key, m) for key in keys for m in ("ppl", "loss")
    ]
    row = next(row for row in curves["rows"] if (row["key"], row["metric"]) == ("pair:en-ab", "ppl"))
    assert row["values"] == pytest.approx([11 + 100 * math.exp(-n / 2) for n in range(1, 11)], rel=1e-4)
    assert {row["better"] for row in curves["rows"]} == {"lower"}


def test_a_benchmark_has_its_metrics_and_means(tmp_path):
    def valid(update: int, score: float) -> dict[str, Any]:
        tasks = {"rte": {"accuracy": score, "loss": 0.5}, "sst2": {"accuracy": 90.0, "loss": 0.2}}
        groups = {"small": {"mean": score}, "all": {"mean": (score + 90) / 2}}
        return {"event": "valid", "update": update, "subset": "valid", "tasks": tasks, "groups": groups,
                "all": {"loss": 0.3, "nll_loss": 0.3, "ppl": 1.2, "tokens": 5}}  # fmt: skip

    run = facts_of(write_run(tmp_path / "run", [valid(10, 60.0), valid(20, 70.0), valid(30, 65.0)]))["runs"][0]
    rows = {(row["key"], row["metric"]): row for row in run["curves"]["rows"]}
    assert rows["task:rte", "accuracy"]["values"] == [60, 70, 65] and rows["task:rte", "accuracy"]["better"] == "higher"
    assert rows["group:all", "mean"]["values"] == [75, 80, 77.5] and ("task:rte", "loss") in rows
    assert run["progress"]["best"] == {"update": 20, "metric": "mean", "value": 80} and run["setup"]["unit"] == "task"


@pytest.mark.parametrize(
    ("options", "unit"), [({"task": "glue"}, ""), ({"task": "text_to_text"}, "bits"), ({"task": "translation"}, "bits")]
)
def test_a_loss_of_several_tasks_heads_is_in_no_bits(options, unit):
    events = [{"event": "run", "options": options}, *events_of_a_run(pairs=1, validations=1, train_events=2)[1:]]
    found = {row["key"]: row["unit"] for row in train_of(events)["rows"]}
    assert found["loss"] == found["nll_loss"] == unit and found["wps"] == "tokens per second"


def test_long_trainings_are_thinned_and_keep_their_peaks(tmp_path):
    def change(event: dict[str, Any]) -> dict[str, Any]:
        peaks = {30_000: 99.0, 70_020: 0.01}
        return (
            {**event, "gnorm": peaks[event["update"]]} if event.get("update") in peaks and "gnorm" in event else event
        )

    train = run_of(tmp_path, updates=100_000, train_events=5_000, change=change)["train"]
    rows = {row["key"]: row["values"] for row in train["rows"]}
    assert len(train["moments"]["update"]) == len(rows["gnorm"]) == MOST_POINTS
    assert max(rows["gnorm"]) == 99 and min(rows["gnorm"]) == 0.01
    near = [train["moments"]["update"][rows["gnorm"].index(value)] for value in (99.0, 0.01)]
    assert near == pytest.approx([30_000, 70_020], abs=100)
    assert train["moments"]["update"][0] == 20 and train["moments"]["update"][-1] == 100_000
    assert train["moments"]["minutes"][-1] == 1000 and all(np.diff(train["moments"]["update"]) >= 0)


@pytest.mark.parametrize(("count", "most"), [(0, 5), (3, 5), (5, 5), (6, 5), (1000, 30)])
def test_places_are_spread_evenly(count, most):
    places = evenly(count, most)
    assert len(places) == min(count, most)
    assert not count or (places[0], places[-1]) == (0, count - 1)
    assert max(np.diff(places), default=0) - min(np.diff(places), default=0) <= 1


def test_experts_are_shares_of_a_tasks_tokens_and_entropy_says_how_even_they_are(tmp_path):
    counts = {100: [[3, 1, 0, 0], [5, 5, 5, 5], [0, 0, 0, 0]], 200: [[4, 0, 0, 0], [1, 1, 0, 0], [1, 2, 3, 4]]}

    def event(update: int) -> dict[str, Any]:
        layers = {"a": counts[update], "b": [[7, 0, 0, 1]]}  # b is not told whose tokens it has
        return {
            "event": "experts",
            "update": update,
            "subset": "valid",
            "task_names": ["x", "y", "z"],
            "layers": layers,
        }

    run = facts_of(write_run(tmp_path / "run", [event(100), event(200)]))["runs"][0]
    experts, entropy = run["experts"], run["entropy"]
    assert (experts["layers"], experts["tasks"]) == (["a", "b"], ["x", "y", "z", EVERYBODY])
    assert experts["num_experts"] == {"a": 4, "b": 4}
    assert experts["shares"][0][0] == [[0.75, 0.25, 0, 0], [0.25] * 4, [], []]
    assert experts["shares"][1][1] == [[], [], [], [0.875, 0, 0, 0.125]]
    even = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) / math.log(4)
    assert entropy["values"][0] == [
        [round(even, 4), 0],
        [1, 0.5],
        [None, pytest.approx(0.9232, abs=1e-4)],
        [None, None],
    ]


def test_gates_have_a_value_for_each_validation_and_layer(tmp_path):
    told = [
        {"event": "gates", "update": update, "subset": "valid", "layers": {"a": {"blend": update / 3, "moved": None}}}
        for update in (10, 20)
    ]
    run = facts_of(write_run(tmp_path / "run", [*events_of_a_run(), *told]))["runs"][0]
    assert run["gates"] == {"updates": [10, 20], "figures": {"blend": {"a": [3.333, 6.667]}}}


def test_large_heat_maps_have_fewer_moments_and_say_so(tmp_path):
    small = run_of(tmp_path, validations=40)
    assert len(small["experts"]["updates"]) == 30 and small["experts"]["updates"][-1] == 1000
    assert len(small["entropy"]["updates"]) == 40
    assert any("Not all validations" in note for note in small["notes"])
    counts = expert_counts(events_of_a_run(validations=12))  # 2 layers, 3 tasks, 4 experts
    for most, kept in ((12 * 24, 12), (5 * 24 + 1, 5), (1, 2)):
        found = experts_of(counts, most)
        assert len(found["updates"]) == len(found["shares"]) == kept and found["thinned"] == (kept < 12)


def test_runs_of_different_models_in_one_folder_are_refused(tmp_path):
    events = [*events_of_a_run(updates=500), *events_of_a_run(num_experts=8)[-1:]]
    with pytest.raises(UserError, match=r"same number of experts in encoder\.layers\.1"):
        facts_of(write_run(tmp_path / "run", events))


def test_what_was_taken_back_is_not_shown(tmp_path):
    """A run that was interrupted at update 1000 went on from 500."""
    again = [{**event, "minutes": 99.0} for event in events_of_a_run() if event.get("update", 0) > 500]
    run = facts_of(write_run(tmp_path / "run", [*events_of_a_run(), *again]))["runs"][0]
    for of, step in (("curves", 100), ("train", 50)):
        moments = run[of]["moments"]
        assert moments["update"] == list(range(step, 1001, step))
        assert [minutes == 99 for minutes in moments["minutes"]] == [update > 500 for update in moments["update"]]


def test_exchange_is_of_one_update(tmp_path):
    layers = {"a": {"seconds": 2.0, "bytes": 4e6}, "b": {"seconds": 1.0, "bytes": 1e6}}
    events = [{"event": "expert_comm", "update": 100, "updates": 50, "layers": layers}]
    exchange = facts_of(write_run(tmp_path / "run", events))["runs"][0]["exchange"]
    assert exchange["seconds"] == [0.06] and exchange["megabytes"] == [0.1]
    assert exchange["layers"]["a"] == {"seconds": [0.04], "megabytes": [0.08]}


def test_a_run_of_an_old_version_says_what_it_does_not_know():
    run = facts_of(OLD / "sparse")["runs"][0]
    assert what_is_wrong(run, fields.RunFacts) == []
    assert run["curves"]["rows"] and run["setup"]["commit"] is None and run["progress"]["tokens"] is None
    assert sum("before 0.1.10" in note for note in run["notes"]) == 2


def test_names_of_runs_tell_them_apart(tmp_path):
    runs = [write_run(tmp_path / name / "model", events_of_a_run(pairs=1)) for name in "ab"]
    facts = facts_of(*runs)
    assert [run["name"] for run in facts["runs"]] == ["a/model", "b/model"]
    assert len(LAYERS) == len(facts["runs"][0]["experts"]["layers"])
