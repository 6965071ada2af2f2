"""The benchmarks' harness: turns, ratios, floors, and what a report holds."""

import json

import pytest
import timing

from tests.helpers.tables import unpadded

SCRIPT = "measure"


def test_works_take_turns_and_start_with_another_each_time_and_preparation_is_not_timed(monkeypatch):
    calls = []
    monkeypatch.setattr(timing, "seconds_of", lambda work, *how: calls.append("|") or work() or 1.0)
    works = {name: lambda name=name: calls.append(name) for name in "abc"}
    seconds = timing.interleaved(works, 3, warmups=1, prepare={"a": lambda: calls.append("+")})
    assert "".join(calls) == "|c+|a|b" + "+|a|b|c" + "|b|c+|a" + "|c+|a|b"
    assert {name: len(values) for name, values in seconds.items()} == dict.fromkeys("abc", 3)


def test_ratios_are_taken_turn_by_turn():
    # The medians' ratio would be 2: the machine was ten times slower in the second half.
    ratio = timing.Ratio.of([1.0, 1.0, 20.0, 30.0, 40.0], [1.0, 1.0, 10.0, 10.0, 10.0])
    assert ratio == timing.Ratio(median=2.0, low=1.0, high=3.0)
    assert timing.Ratio.of([3.0], [2.0]) == timing.Ratio(1.5, 1.5, 1.5)


@pytest.mark.parametrize(("at_most", "met", "missed", "with_slack"), [(True, 1.1, 1.11, 1.31), (False, 1.1, 1.09, 0.9)])
def test_floors(at_most, met, missed, with_slack):
    floor = timing.Floor(1.1, at_most=at_most)
    assert floor.met(met) and not floor.met(missed) and floor.met(with_slack, slack=0.2)
    assert not floor.met(with_slack + (0.02 if at_most else -0.03), slack=0.2)
    assert not floor.met(float("nan"), slack=0.2)


def test_a_report_says_what_was_found_and_where(bench, tmp_path, capsys):
    report = bench.Report("thing", "The cost [of a thing]")
    report.table("Times", ["system", "seconds"], [["ours|theirs", 0.123456], ["dense", 2]], note="Of one layer.")
    report.text("It waits for memory.")
    report.speeds("Speeds", {"ours": [0.1, 0.2], "dense": [0.2, 0.3]}, "dense", [10, 10], "tokens")
    report.figure("ours / dense", 1.05, timing.Floor(1.1), (1.01, 1.08))
    report.finish(write=True, check=True)
    written = unpadded((tmp_path / "thing.md").read_text(encoding="utf-8"))
    assert written.startswith("# The cost [of a thing]\n")
    for part in ("| ours\\|theirs | 0.123 |\n| dense | 2 |", "| ours / dense | 1.05 | 1.01-1.08 | ≤ 1.1 | yes |",
                 "| ours | 0.15 | 75 | 1.750 (1.625-1.875) |", "Of one layer.", "It waits for memory."):  # fmt: skip
        assert part in written
    assert "[of a thing]" in capsys.readouterr().out
    data = json.loads((tmp_path / "thing.json").read_text(encoding="utf-8"))
    assert data["raw"]["seconds, Speeds"]["ours"] == [0.1, 0.2] and data["floors"][0]["met"] is True
    assert {"command", "commit", "machine", "threads", "settings", "load_before", "versions"} <= set(data)


def test_a_check_fails_by_what_misses_its_floor_by_far(bench, capsys):
    near, far = (bench.Report("thing", "A thing") for _ in range(2))
    for report, value in ((near, 1.3), (far, 1.4)):
        report.figure("ours / dense", value, timing.Floor(1.1))
        report.finish(write=False, check=report is near)
    with pytest.raises(SystemExit, match=r"^1$"):
        far.finish(write=False, check=True)
    assert "ours / dense is 1.4, must be ≤ 1.1" in capsys.readouterr().err
