"""What a report shows of a run, from its log, and what it warns of: each rule where it should, and not elsewhere."""

import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from fairseq_mtmoe.analysis.questions import entropies, used_experts
from fairseq_mtmoe.analysis.report.gathering import Gatherer, RunReport
from fairseq_mtmoe.analysis.report.page import MOST_POINTS, peaks
from fairseq_mtmoe.analysis.report.warnings import warnings_of
from fairseq_mtmoe.analysis.rows import run_of
from tests.helpers.figure_logs import benchmark
from tests.helpers.run_logs import Event, events_of_a_run, write_run

OLD = Path(__file__).parents[3] / "golden" / "v0_1_0"


def gathered(folder: Path, events: list[Event] | None = None, **options: Any) -> RunReport:
    return Gatherer([write_run(folder / "run", events or events_of_a_run(**options))]).gather().runs[0]


def test_what_was_run_and_how_far_it_is(tmp_path):
    run = gathered(tmp_path, updates=800)
    options = {"arch": "base_moe_tiny", "max_update": 800, "lr": [0.005], "sampling_method": "temperature"}
    assert run.setup["options"] == options and run.unit == "language"
    assert [run.setup[name] for name in ("seed", "commit", "data")] == [7, "0123abc", "data/tiny"]
    (ppl,) = (row.value for row in run.rows if (row.group, row.metric) == ("all", "ppl"))
    assert run.progress == {"updates": 800, "minutes": 8.0, "tokens": 400_000, "epoch": 4, "skipped": 0,
                            "best": (800, "ppl", ppl[-1]), "finished": True}  # fmt: skip
    assert run.notes == [] and run.warnings == []
    short = gathered(tmp_path, change=lambda event: event if event.get("update", 0) <= 500 else None)
    assert short.progress["finished"] is False


def test_a_run_started_when_it_first_did_and_its_model_is_as_large_as_it_became(tmp_path):
    first = {"event": "run", "started": "2026-01-01T00:00:00+00:00", "parameters": 100, "multiplications": 90}
    sparse = {"event": "sparsified", "update": 5, "num_experts": 4, "parameters": 300, "multiplications": 95}
    again = first | {"started": "2026-02-02T00:00:00+00:00"}
    for events, size in (([first, again], (100, 90)), ([first, sparse], (300, 95))):
        setup = gathered(tmp_path, events).setup
        assert setup["started"] == first["started"]
        assert (setup["parameters"], setup["multiplications"]) == size


def test_the_best_of_a_benchmark_is_by_the_mean_of_its_tasks(tmp_path):
    log = benchmark()
    run = gathered(tmp_path, [*log, {**log[1], "update": 30}])
    assert run.progress["best"] == (20, "mean", 50) and run.unit == "task"


def test_long_trainings_are_thinned_and_keep_their_peaks(tmp_path):
    norms = {30_000: 99.0, 70_020: 0.01}
    options, train = {"updates": 100_000, "train_events": 5_000}, lambda of: {"gnorm": norms.get(of["update"], 1.5)}
    run = gathered(tmp_path, changed(options, train=train))
    row = peaks(next(row for row in run.rows if row.metric == "gnorm"), MOST_POINTS)
    values, updates = row.value.tolist(), row.moments.update
    assert len(values) == len(updates) == MOST_POINTS and (max(values), min(values)) == (99, 0.01)
    assert [updates[values.index(value)] for value in (99.0, 0.01)] == pytest.approx([30_000, 70_020], abs=100)
    assert (updates[0], updates[-1], row.moments.minutes[-1]) == (20, 100_000, 1000) and all(np.diff(updates) >= 0)


def test_experts_have_fewer_moments_and_entropy_says_how_even_they_are(tmp_path):
    run = gathered(tmp_path, validations=40)
    lengths = {row.group: len(row.value) for row in run.rows}
    assert (lengths["experts"], lengths["entropy"]) == (30, 40)
    counts = {100: [[3, 1, 0, 0], [5, 5, 5, 5], [0, 0, 0, 0]], 200: [[4, 0, 0, 0], [1, 1, 0, 0], [1, 2, 3, 4]]}
    events = [{"event": "experts", "update": update, "subset": "valid", "task_names": ["x", "y", "z"],
               "layers": {"a": of}} for update, of in counts.items()]  # fmt: skip
    entropy = [row.value for row in gathered(tmp_path, events).rows if row.group == "entropy"]
    np.testing.assert_allclose(entropy, np.transpose([entropies(np.array(of, float)) for of in counts.values()]))


def test_experts_of_fixed_gates_are_left_out_and_a_note_says_why(tmp_path):
    own = [[90, 0, 0, 0], [0, 90, 0, 0], [0, 0, 90, 0]]

    def change(event):
        fixed = {"options": event.get("options", {}) | {"expert_gates": "fixed,base"}}
        layers = {"layers": event.get("layers", {}) | {"encoder.layers.1": own}}
        return event | {"run": fixed, "experts": layers}.get(event["event"], {})

    run = gathered(tmp_path, events_of_a_run(change=change))
    groups = ("experts", "entropy")
    assert {(row.group, row.layer) for row in run.rows if row.group in groups} == {
        (group, "decoder.layers.1") for group in groups
    }
    assert any("not shown of 1 layers with fixed gates" in note for note in run.notes)


def test_a_run_of_an_old_version_says_what_it_does_not_know():
    (run,) = Gatherer([OLD / "sparse"]).gather().runs
    assert run.rows and run.setup["commit"] is None and run.progress["tokens"] is None
    assert sum("older than 0.1.10" in note for note in run.notes) == 2


# ---- warnings ----


def warnings(events: list[Event]) -> list[dict[str, Any]]:
    return [vars(one) for one in warnings_of(run_of(events, "run"))]


def kinds(events: list[Event]) -> list[str]:
    return [one["kind"] for one in warnings(events)]


def changed(options: dict[str, int], **changes: Callable[[Event], Event]) -> list[Event]:
    """Events of a run, those of some kinds with fields of other values."""
    return events_of_a_run(change=lambda event: event | changes.get(event["event"], dict)(event), **options)


def routed(rows: list[list[int]], since: int = 0, validations: int = 6) -> list[Event]:
    """Events of a run one of whose layers has these counts, by task and expert, from an update on."""

    def experts(event: Event) -> Event:
        return {"layers": event["layers"] | ({"encoder.layers.1": rows} if event["update"] >= since else {})}

    return changed({"updates": 600, "validations": validations}, experts=experts)


def trained(**figures: Any) -> list[Event]:
    return changed({}, train=lambda event: figures)


def moved(*validations: dict[str, dict[str, float | None]]) -> list[Event]:
    """Events of a run with these figures of its layers' gates, validation by validation."""
    told = [{"event": "gates", "update": 100 * number, "layers": of} for number, of in enumerate(validations, start=1)]
    return [*events_of_a_run(), *told]


DEAD, COLLAPSED, STILL = [[100, 100, 0, 100]] * 3, [[960, 20, 10, 10]] * 3, {"blend": 0.0, "moved": 0.0}
GOOD = {
    "a good run": events_of_a_run(validations=30),
    "an expert that one task has for itself": routed([[100, 100, 1, 100], [100, 100, 0, 90], [0, 0, 90, 5]]),
    "too few tokens to tell": routed([[10, 8, 0, 9], [3, 4, 0, 6], [5, 5, 0, 3]]),
    "unused in the last validation alone": routed(DEAD, since=500),
    "collapsed in the last validation alone": routed(COLLAPSED, since=500),
    "an expert for each task, and all are used": routed([[400, 0, 0, 0], [0, 400, 0, 0], [0, 0, 200, 200]]),
    "no update left out": trained(skipped=0),
    "little padding": trained(padding=0.1),
    "gates that learned in one validation": moved({"a": STILL}, {"a": {"blend": 0.02, "moved": 1.3}}, {"a": STILL}),
}


@pytest.mark.parametrize("case", GOOD)
def test_a_good_run_has_no_warnings(case):
    assert kinds(GOOD[case]) == []


def test_entropy_is_1_where_tokens_are_spread_evenly_and_0_where_one_expert_has_all():
    counts = np.array([[5.0, 5, 5, 5], [7, 0, 0, 0], [1, 1, 0, 0], [3, 1, 0, 0], [0, 0, 0, 0]])
    assert entropies(counts).tolist() == pytest.approx([1, 0, 0.5, 0.405639, math.nan], nan_ok=True)
    assert used_experts(np.array([[90.0, 8, 2, 0], [0, 0, 3, 97]])).tolist() == [True, True, True, True]
    assert used_experts(np.array([[976.0, 24, 0, 0]])).tolist() == [True, False, False, False]


def test_an_expert_that_gets_next_to_nothing_of_every_task_is_dead():
    (found,) = warnings(routed([[100, 100, 1, 100], [100, 100, 0, 90], [90, 100, 2, 80]], since=300))
    assert (found["kind"], found["severity"], found["where"]) == (
        "dead_expert", "high", {"layer": "encoder.layers.1", "update": 300},
    )  # fmt: skip
    assert found["text"].startswith(
        "1 of 4 experts of encoder.layers.1 are hardly used: 2 got less than 10% of a fair share (1/4) of every task's "
        "tokens in the last 3 validations (since update 300)."
    )


def test_an_expert_must_be_unused_in_each_of_the_last_validations():
    assert kinds(routed(DEAD, since=400)) == kinds(routed(DEAD, validations=1)) == ["dead_expert"]


def test_one_validation_is_not_enough_for_the_highest_severity():
    severities = [[one["severity"] for one in warnings(routed(COLLAPSED, validations=n))] for n in (1, 2, 3)]
    assert severities == [["mid", "mid"], ["mid", "mid"], ["high", "high"]]


def test_a_language_of_no_target_has_an_expert_that_is_not_dead():
    own = [[960, 0, 0, 0], [0, 0, 0, 0], [0, 0, 30, 0]]
    assert kinds(routed(own)) == ["dead_expert", "collapsed_routing"]
    options = {"event": "run", "started": "2026-01-01T00:00:00+00:00", "options": {"expert_gates": "base,fixed"}}
    assert kinds([options, *routed(own)]) == []
    assert "dead_expert" in kinds([options, *routed(DEAD)])  # the pattern's other gates choose


def test_routing_that_sends_nearly_all_to_one_expert_has_collapsed():
    found = warnings(routed(COLLAPSED, since=200))
    assert [one["kind"] for one in found] == ["dead_expert", "collapsed_routing"]
    first = found[1]
    assert first["severity"] == "high" and first["where"] == {"layer": "encoder.layers.1", "update": 200}
    effective = math.exp(-sum(p * math.log(p) for p in (0.96, 0.02, 0.01, 0.01)))
    assert f"as over {effective:.1f} experts and not 4" in first["text"] and "below 1.5 in" in first["text"]
    assert "collapsed_routing" not in kinds(routed([[800, 100, 100, 50]] * 3))


def worsening(rise: float, noise: float, others: float, validations: int = 20) -> list[Event]:
    """A run whose first pair's perplexity rises from the middle on, while the others' change by a rate."""
    random = Random(3)

    def valid(event: Event) -> Event:
        share, made = event["update"] / 1000, {}
        for number, (pair, figures) in enumerate(event["pairs"].items()):
            log = 3 - 0.5 * min(share, 0.5) + 2 * max(share - 0.5, 0) * (others if number else rise)
            made[pair] = figures | {"ppl": math.exp(log + random.gauss(0, noise))}
        return {"pairs": made}

    return changed({"pairs": 4, "validations": validations}, valid=valid)


def test_a_language_that_gets_worse_while_others_get_better_is_named():
    (found,) = warnings(worsening(rise=0.10, noise=0.002, others=-0.05))
    assert (found["kind"], found["severity"], found["where"]["task"]) == ("language_worse", "high", "en-aa")
    assert 400 <= found["where"]["update"] <= 600
    assert "its perplexity rose by 8." in found["text"] and "over 4 times the 0." in found["text"]
    assert [one["severity"] for one in warnings(worsening(rise=0.04, noise=0.001, others=-0.05))] == ["mid"]


@pytest.mark.parametrize("case", [
    {"rise": 0.10, "noise": 0.05, "others": -0.05},  # noise explains it
    {"rise": 0.10, "noise": 0.002, "others": 0.10},  # all of them rise
    {"rise": 0.005, "noise": 0.0002, "others": -0.05},  # less than 1%
    {"rise": 0.10, "noise": 0.002, "others": -0.05, "validations": 8},  # too few to tell
])  # fmt: skip
def test_a_language_is_not_worse_by_noise_or_together_with_the_others(case):
    assert "language_worse" not in kinds(worsening(**case))


def test_a_run_that_goes_on_past_its_best_is_told():
    def valid(event: Event) -> Event:
        return {"all": event["all"] | {"ppl": 20 * (1 + abs(event["update"] - 500) / 2000)}}

    (found,) = warnings(changed({"validations": 20}, valid=valid))
    assert found["kind"] == "past_best" and found["severity"] == "low" and found["where"] == {"update": 550}


def short(examples: float, last: float = 0.9, **options: Any) -> list[Event]:
    """A run of 1,000 updates on 600 sentences; `last` is the change of perplexity in the last validation."""

    def valid(event: Event) -> Event:
        return {"all": event["all"] | {"ppl": 20.0 * (last if event["update"] == 1000 else 1)}}

    run = {"options": {"max_update": 1000} | options}
    return changed({}, run=lambda event: run, train=lambda event: {"bsz": examples}, valid=valid)


def test_a_run_that_ended_within_its_first_pass_while_it_learned_is_told():
    (found,) = warnings(short(0.06))
    assert (found["kind"], found["severity"], found["where"]) == ("ended_early", "high", {"update": 1000})
    assert "after 0.1 passes" in found["text"] and "fell by 10.0% in the last of 10 validations" in found["text"]
    no_limit = {"max_update": 0}
    assert kinds(short(0.06, **no_limit, stop_time_hours=10 / 60)) == ["ended_early"]
    assert kinds(short(0.06, **no_limit, max_epoch=1)) == ["ended_early"]


@pytest.mark.parametrize("case", [
    short(0.6), short(0.06, last=0.995), short(0.06, max_update=1001), short(0.06, max_update=0, max_epoch=2),
])  # fmt: skip
def test_a_run_is_not_short_after_a_pass_or_without_progress_or_while_it_goes_on(case):
    assert "ended_early" not in kinds(case)


def test_updates_that_were_left_out_are_counted():
    (few,), (many,) = warnings(trained(skipped=10)), warnings(trained(skipped=11))
    assert (few["kind"], few["severity"], many["severity"]) == ("skipped_updates", "low", "high")
    assert many["text"].startswith("11 of 1,000 updates were skipped because loss or gradients were not finite")
    assert few["where"] == {"update": 50}


def test_padding_is_told_above_a_tenth():
    (found,) = warnings(trained(padding=0.142))
    assert (found["kind"], found["severity"]) == ("padding", "low")
    assert found["text"].startswith("14.2% of the trained positions are padding; more than 10% costs time")
    assert warnings(trained(padding=0.31))[0]["severity"] == "mid"


def test_a_loss_that_is_no_number_comes_first():
    none = dict.fromkeys(("loss", "nll_loss", "ppl"))
    found = warnings(changed(
        {}, valid=lambda event: {"all": none} if event["update"] == 700 else {},
        train=lambda event: {"padding": 0.2} | ({"loss": None} if event["update"] >= 950 else {}),
    ))  # fmt: skip
    assert [one["kind"] for one in found] == ["loss_not_finite", "loss_not_finite", "padding"]
    assert found[0]["text"].startswith("The training loss was not finite at update 950 and 1 time after it")
    assert found[1]["where"] == {"update": 700}


def test_gates_that_hardly_moved_are_named_by_what_says_so():
    near = {"blend": -0.009, "moved": 1.3, "changed": 0.7}
    still: dict[str, float | None] = {"moved": 0.09, "changed": 0.0}
    far = {"blend": -0.2, "moved": 40.0, "changed": 0.7}
    layers = {"a": near, "b": {**still, "blend": 0.2}, "c": still, "d": far, "e": {"blend": 0.2}}
    first, second = warnings(moved({"a": far, "b": far}, *[layers] * 3))
    assert (first["kind"], first["severity"], first["where"]) == ("unmoved_gate", "mid", {"layer": "a", "update": 400})
    assert first["text"].startswith(
        "Gates of 1 of 5 layers have hardly learned: `blend` is between -0.01 and 0.01 in the last 3 validations (a)."
    )
    assert "Gates of 2 of 5 layers" in second["text"] and "0.1 of their first length" in second["text"]
    assert "validations (b, c)." in second["text"]
