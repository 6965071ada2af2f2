"""The benchmarks' harness: turns, ratios, floors, and what a report holds."""

import json

import pytest

from tests.helpers.tables import unpadded


@pytest.fixture
def measure(tmp_path, monkeypatch):
    import measure

    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    return measure


@pytest.fixture
def timing():
    import timing

    return timing


def test_works_take_turns_and_start_with_another_each_time(measure):
    calls = []
    works = {name: lambda name=name: calls.append(name) for name in "abc"}
    seconds = measure.interleaved(works, repetitions=3, warmups=1)
    assert "".join(calls) == "cab" + "abc" + "bca" + "cab"
    assert list(seconds) == ["a", "b", "c"]
    assert all(len(values) == 3 for values in seconds.values())


def test_preparation_is_not_timed(timing, monkeypatch):
    calls = []
    clock = lambda work, *how: (calls.append("clock"), work())[1] or 1.0  # noqa: E731
    monkeypatch.setattr(timing, "seconds_of", clock)
    timing.interleaved(
        {"a": lambda: calls.append("work")}, repetitions=2, warmups=0, prepare={"a": lambda: calls.append("prepare")}
    )
    assert calls == ["prepare", "clock", "work", "prepare", "clock", "work"]


def test_ratios_are_taken_turn_by_turn(timing):
    # The medians' ratio would be 2: the machine was ten times slower in the second half.
    ratio = timing.Ratio.of([1.0, 1.0, 20.0, 30.0, 40.0], [1.0, 1.0, 10.0, 10.0, 10.0])
    assert ratio == timing.Ratio(median=2.0, low=1.0, high=3.0)
    assert timing.Ratio.of([3.0], [2.0]) == timing.Ratio(1.5, 1.5, 1.5)
    with pytest.raises(ValueError):
        timing.Ratio.of([1.0, 2.0], [1.0])


def test_floors(timing):
    assert timing.Floor(1.1).met(1.1)
    assert not timing.Floor(1.1).met(1.11)
    assert timing.Floor(1.1).met(1.31, slack=0.2)
    assert not timing.Floor(1.1).met(1.33, slack=0.2)
    assert timing.Floor(0.9, at_most=False).met(0.9)
    assert not timing.Floor(0.9, at_most=False).met(0.89)
    assert timing.Floor(0.9, at_most=False).met(0.73, slack=0.2)
    assert not timing.Floor(0.9, at_most=False).met(0.71, slack=0.2)
    assert not timing.Floor(1.0).met(float("nan"), slack=0.2)


def test_a_report_says_what_was_found_and_where(measure, timing, tmp_path, capsys):
    report = measure.Report("thing", "The cost [of a thing]")
    report.table("Times", ["system", "seconds"], [["ours|theirs", 0.123456], ["dense", 2]], note="Of one layer.")
    report.text("It waits for memory.")
    report.raw("seconds", {"ours": [0.1, 0.2]})
    report.figure("ours / dense", 1.05, timing.Floor(1.1), (1.01, 1.08))
    report.finish(write=True, check=True)
    written = unpadded((tmp_path / "thing.md").read_text(encoding="utf-8"))
    assert written.startswith("# The cost [of a thing]\n")
    assert "| ours\\|theirs | 0.123 |\n| dense | 2 |" in written
    assert "| ours / dense | 1.05 | 1.01-1.08 | ≤ 1.1 | yes |" in written
    assert "Of one layer." in written and "It waits for memory." in written
    assert "[of a thing]" in capsys.readouterr().out
    data = json.loads((tmp_path / "thing.json").read_text(encoding="utf-8"))
    assert data["raw"] == {"seconds": {"ours": [0.1, 0.2]}}
    assert data["tables"][0]["rows"][0] == ["ours|theirs", 0.123456]
    assert data["floors"][0]["met"] is True
    assert {"command", "commit", "machine", "threads", "settings", "load_before", "versions"} <= set(data)
    assert data["versions"]["torch"] in written


def test_a_report_is_only_shown_unless_asked(measure, tmp_path):
    measure.Report("thing", "A thing").finish(write=False, check=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value, fails", [(1.05, False), (1.3, False), (1.4, True)])
def test_a_check_fails_by_what_misses_its_floor_by_far(measure, timing, capsys, value, fails):
    report = measure.Report("thing", "A thing")
    report.figure("ours / dense", value, timing.Floor(1.1))
    if not fails:
        report.finish(write=False, check=True)
        return
    report.finish(write=False, check=False)
    with pytest.raises(SystemExit) as stopped:
        report.finish(write=False, check=True)
    assert stopped.value.code == 1
    assert "ours / dense is 1.4, must be ≤ 1.1" in capsys.readouterr().err


def test_results_before_are_no_change_of_what_is_measured(timing, monkeypatch):
    answers = {"status": "", "rev-parse": "abc1234"}
    asked = []

    def run(command, **options):
        asked.append(command)
        return type("Done", (), {"stdout": answers[command[3]]})

    monkeypatch.setattr(timing.subprocess, "run", run)
    assert timing.surroundings()["commit"] == "abc1234"
    answers["status"] = " M fairseq_mtmoe/moe/layer.py"
    assert timing.surroundings()["commit"] == "abc1234 with uncommitted changes"
    assert ":!benchmarks/results" in asked[0]


@pytest.mark.parametrize(
    "value, text", [(0.123456, "0.123"), (12345.6, "12,346"), (7, "7"), ("a", "a"), (1e-7, "1e-07"), (0.0, "0")]
)
def test_numbers_are_shortened(timing, value, text):
    assert timing.shown(value) == text
