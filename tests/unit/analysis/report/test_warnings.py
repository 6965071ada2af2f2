"""What a report warns of: each rule fires where it should, and not where it should not."""

import math
from random import Random
from typing import Any

import numpy as np
import pytest

from fairseq_mtmoe.analysis.questions import entropies, used_experts
from fairseq_mtmoe.analysis.report.warnings import warnings_of
from fairseq_mtmoe.analysis.rows import run_of
from tests.helpers.run_logs import events_of_a_run


def warnings(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [vars(one) for one in warnings_of(run_of(events, "run"))]


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [one["kind"] for one in warnings(events)]


def routed(rows: list[list[int]], since: int = 0, validations: int = 6) -> list[dict[str, Any]]:
    """Events of a run one of whose layers has these counts, by task and expert, from an update on."""

    def change(event: dict[str, Any]) -> dict[str, Any]:
        if event["event"] == "experts" and event["update"] >= since:
            return {**event, "layers": {**event["layers"], "encoder.layers.1": rows}}
        return event

    return events_of_a_run(updates=600, validations=validations, change=change)


def test_a_good_run_has_no_warnings():
    assert kinds(events_of_a_run(validations=30)) == []


def test_entropy_is_1_where_tokens_are_spread_evenly_and_0_where_one_expert_has_all():
    counts = np.array([[5.0, 5, 5, 5], [7, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]])
    assert entropies(counts).tolist() == pytest.approx([1, 0, 0.5, math.nan], nan_ok=True)
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


@pytest.mark.parametrize(
    "rows",
    [[[100, 100, 1, 100], [100, 100, 0, 90], [0, 0, 90, 5]],  # one task has it for itself
     [[10, 8, 0, 9], [3, 4, 0, 6], [5, 5, 0, 3]]],  # too few tokens to tell
)  # fmt: skip
def test_an_expert_of_one_task_or_of_few_tokens_is_not_dead(rows):
    assert kinds(routed(rows)) == []


def test_an_expert_must_be_unused_in_each_of_the_last_validations():
    dead = [[100, 100, 0, 100]] * 3
    assert kinds(routed(dead, since=500)) == [] and kinds(routed(dead, since=400)) == ["dead_expert"]
    assert kinds(routed(dead, validations=1)) == ["dead_expert"]


def test_routing_that_sends_nearly_all_to_one_expert_has_collapsed():
    found = warnings(routed([[960, 20, 10, 10]] * 3, since=200))
    assert [one["kind"] for one in found] == ["dead_expert", "collapsed_routing"]
    first = found[1]
    assert first["severity"] == "high" and first["where"] == {"layer": "encoder.layers.1", "update": 200}
    effective = math.exp(-sum(p * math.log(p) for p in (0.96, 0.02, 0.01, 0.01)))
    assert f"as if it had {effective:.1f} experts and not 4" in first["text"] and "below 1.5 in" in first["text"]
    assert "collapsed_routing" not in kinds(routed([[800, 100, 100, 50]] * 3))
    assert kinds(routed([[960, 20, 10, 10]] * 3, since=500)) == []
    # Each task has an expert of its own, and all of them are used.
    assert kinds(routed([[400, 0, 0, 0], [0, 400, 0, 0], [0, 0, 200, 200]])) == []


def worsening(rise: float, noise: float, others: float, pairs: int = 4, validations: int = 20) -> list[dict[str, Any]]:
    """A run whose first pair's perplexity rises from the middle on, while the others' change by a rate."""
    random = Random(3)

    def change(event: dict[str, Any]) -> dict[str, Any]:
        if event["event"] != "valid":
            return event
        share, made = event["update"] / 1000, {}
        for place, pair in enumerate(event["pairs"]):
            log = 3 - 0.5 * min(share, 0.5) + (2 * (share - 0.5) * (others if place else rise) if share > 0.5 else 0)
            ppl = math.exp(log + random.gauss(0, noise))
            made[pair] = {**event["pairs"][pair], "ppl": ppl}
        return {**event, "pairs": made}

    return events_of_a_run(pairs=pairs, validations=validations, change=change)


def test_a_language_that_gets_worse_while_others_get_better_is_named():
    (found,) = warnings(worsening(rise=0.10, noise=0.002, others=-0.05))
    assert (found["kind"], found["severity"], found["where"]["task"]) == ("language_worse", "high", "en-aa")
    assert 400 <= found["where"]["update"] <= 600
    assert "its perplexity rose by 8." in found["text"] and "over 4 times the 0." in found["text"]
    assert [one["severity"] for one in warnings(worsening(rise=0.04, noise=0.001, others=-0.05))] == ["mid"]


@pytest.mark.parametrize(
    "case",
    [
        {"rise": 0.10, "noise": 0.05, "others": -0.05},  # noise explains it
        {"rise": 0.10, "noise": 0.002, "others": 0.10},  # all of them rise
        {"rise": 0.005, "noise": 0.0002, "others": -0.05},  # less than 1%
        {"rise": 0.10, "noise": 0.002, "others": -0.05, "validations": 8},  # too few to tell
    ],
)
def test_a_language_is_not_worse_by_noise_or_together_with_the_others(case):
    assert "language_worse" not in kinds(worsening(**case))


def test_a_run_that_goes_on_past_its_best_is_told():
    def change(event: dict[str, Any]) -> dict[str, Any]:
        rising = {"ppl": 20 * (1 + abs(event["update"] - 500) / 2000)} if event["event"] == "valid" else {}
        return {**event, "all": {**event["all"], **rising}} if rising else event

    (found,) = warnings(events_of_a_run(validations=20, change=change))
    assert found["kind"] == "past_best" and found["severity"] == "low" and found["where"] == {"update": 550}


def trained(**figures: Any) -> list[dict[str, Any]]:
    return events_of_a_run(change=lambda event: {**event, **figures} if event["event"] == "train" else event)


def test_updates_that_were_left_out_are_counted():
    (few,), (many,) = warnings(trained(skipped=10)), warnings(trained(skipped=11))
    assert (few["kind"], few["severity"], many["severity"]) == ("skipped_updates", "low", "high")
    assert many["text"].startswith("11 updates were left out of 1,000, because loss or gradients were not finite")
    assert few["where"] == {"update": 50} and kinds(trained(skipped=0)) == []


def test_padding_is_told_above_a_tenth():
    assert kinds(trained(padding=0.1)) == []
    (found,) = warnings(trained(padding=0.142))
    assert (found["kind"], found["severity"]) == ("padding", "low")
    assert found["text"].startswith("14.2% of what was trained on is padding, and more than 10% costs time")
    assert warnings(trained(padding=0.31))[0]["severity"] == "mid"


def test_a_loss_that_is_no_number_comes_first():
    def change(event: dict[str, Any]) -> dict[str, Any]:
        if event["event"] == "valid" and event["update"] == 700:
            return {**event, "all": {"loss": None, "nll_loss": None, "ppl": None, "tokens": 3}}
        return {**event, "padding": 0.2, **({"loss": None} if event["update"] >= 950 else {})} if (
            event["event"] == "train"
        ) else event  # fmt: skip

    found = warnings(events_of_a_run(change=change))
    assert [one["kind"] for one in found] == ["loss_not_finite", "loss_not_finite", "padding"]
    assert found[0]["text"].startswith("The loss of training was not finite at update 950 and 1 times more")
    assert found[1]["where"] == {"update": 700}


def moved(*validations: dict[str, dict[str, float | None]]) -> list[dict[str, Any]]:
    """Events of a run with these figures of its layers' gates, validation by validation."""
    told = [{"event": "gates", "update": 100 * number, "layers": of} for number, of in enumerate(validations, start=1)]
    return [*events_of_a_run(), *told]


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


def test_gates_that_learned_in_one_of_the_last_validations_are_not_named():
    still = {"blend": 0.0, "moved": 0.0}
    assert kinds(moved({"a": still}, {"a": {"blend": 0.02, "moved": 1.3}}, {"a": still})) == []
