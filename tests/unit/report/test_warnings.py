"""What a report warns of: each rule where it should, and not elsewhere."""

import math
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from fairseq_mtmoe.report.routing import entropies, used_experts
from fairseq_mtmoe.report.rows import run_of
from fairseq_mtmoe.report.warnings import RULES, warnings_of
from tests.helpers.run_logs import Event, events_of_a_run


def warnings(events: list[Event]) -> list[str]:
    return warnings_of(run_of(events, "run"))


def kinds(events: list[Event]) -> list[str]:
    run = run_of(events, "run")
    return [rule.__name__ for rule in RULES for _ in rule(run)]


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


DEAD, COLLAPSED, STILL = [[100, 100, 0, 100]] * 3, [[960, 20, 10, 10]] * 3, {"blend": 0.0, "moved": 0.0}
GOOD = {
    "a good run": events_of_a_run(validations=30),
    "an expert that one task has for itself": routed([[100, 100, 1, 100], [100, 100, 0, 90], [0, 0, 90, 5]]),
    "too few tokens to tell": routed([[10, 8, 0, 9], [3, 4, 0, 6], [5, 5, 0, 3]]),
    "unused in the last validation alone": routed(DEAD, since=500),
    "collapsed in the last validation alone": routed(COLLAPSED, since=500),
    "an expert for each task, and all are used": routed([[400, 0, 0, 0], [0, 400, 0, 0], [0, 0, 200, 200]]),
    "no update left out": trained(skipped=0),
    "a language that noise made worse": worsening(rise=0.10, noise=0.05, others=-0.05),
    "languages that all got worse": worsening(rise=0.10, noise=0.002, others=0.10),
    "a language less than 1% worse": worsening(rise=0.005, noise=0.0002, others=-0.05),
    "too few validations to tell": worsening(rise=0.10, noise=0.002, others=-0.05, validations=8),
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
    assert found.startswith("1 of 4 experts of encoder.layers.1 are hardly used: 2 got") and "since update 300" in found
    assert kinds(routed(DEAD, since=400)) == kinds(routed(DEAD, validations=1)) == ["dead_experts"]


def test_a_language_of_no_target_has_an_expert_that_is_not_dead():
    own = [[960, 0, 0, 0], [0, 0, 0, 0], [0, 0, 30, 0]]
    options = {"event": "run", "started": "2026-01-01T00:00:00+00:00", "options": {"expert_gates": "base,fixed"}}
    assert kinds(routed(own)) == ["collapsed_routing", "dead_experts"] and kinds([options, *routed(own)]) == []
    assert "dead_experts" in kinds([options, *routed(DEAD)])  # the pattern's other gates choose


def test_a_model_that_does_not_translate_and_a_loss_that_was_lowest_at_first_are_named():
    def validated(**figures: Callable[[Event], float]) -> list[Event]:
        return changed({}, valid=lambda event: {
            "all": event["all"] | {name: figure(event) for name, figure in figures.items()}
        })  # fmt: skip

    (found,) = warnings(validated(chrf=lambda event: 6.9 - event["update"] / 1000, bleu=lambda event: 2.0))
    assert found.startswith("The model does not translate yet: its best validation has 6.80 chrF++, and 10 is little.")
    assert kinds(validated(chrf=lambda event: event["update"] / 50, bleu=lambda event: 2.0)) == []
    (found,) = warnings(validated(loss=lambda event: event["update"]))
    assert found.startswith("The validation loss has not fallen: of 10 validations the first, at update 100, has")


def test_routing_that_sends_nearly_all_to_one_expert_has_collapsed():
    found, _ = warnings(routed(COLLAPSED, since=200))
    effective = math.exp(-sum(p * math.log(p) for p in (0.96, 0.02, 0.01, 0.01)))
    assert "Routing of encoder.layers.1" in found and "since update 200" in found
    assert f"as over {effective:.1f} experts and not 4" in found
    assert "collapsed_routing" not in kinds(routed([[800, 100, 100, 50]] * 3))


def test_a_language_that_gets_worse_while_others_get_better_is_named():
    (found,) = warnings(worsening(rise=0.10, noise=0.002, others=-0.05))
    assert found.startswith("en-aa got worse: its perplexity rose by 8.")


def test_losses_that_are_no_numbers_come_first_and_skipped_updates_are_counted():
    none = dict.fromkeys(("loss", "nll_loss", "ppl"))
    training, validation, _ = warnings(changed(
        {}, valid=lambda event: {"all": none} if event["update"] == 700 else {},
        train=lambda event: {"skipped": 2} | ({"loss": None} if event["update"] >= 950 else {}),
    ))  # fmt: skip
    assert training.startswith("The training loss was not finite 2 times, first at update 950.")
    assert validation.startswith("The validation loss was not finite 1 time, first at update 700.")
    (skipped,) = warnings(trained(skipped=11))
    assert skipped.startswith("11 of 1,000 updates were skipped") and "before update 50" in skipped


def test_gates_that_hardly_moved_are_named_by_the_figure_that_shows_it():
    near, far = {"blend": -0.009, "moved": 1.3}, {"blend": -0.2, "moved": 40.0}
    still: dict[str, float | None] = {"moved": 0.09}
    layers = {"a": near, "b": {**still, "blend": 0.2}, "c": still, "d": far, "e": {"blend": 0.2}}
    first, second = warnings(moved({"a": far, "b": far}, *[layers] * 3))
    assert "`blend` is between -0.01 and 0.01 in the last 3 validations (a)." in first
    assert "0.1 of their first length" in second and "validations (b, c)." in second
