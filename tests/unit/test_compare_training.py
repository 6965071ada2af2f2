"""The comparison of training runs: commands, minutes out of a stock log, when a run came to a perplexity, reports."""

import itertools
import json
import sys
from pathlib import Path

import pytest

from fairseq_mtmoe.analysis.run_log import RunLog
from fairseq_mtmoe.analysis.series import PerplexitySeries

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SETTING = "multi30k"


@pytest.fixture
def benchmarks(monkeypatch):
    """The scripts of `benchmarks/` import each other by name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import tier_perplexity
    import training_report
    import training_systems

    yield training_systems, training_report, tier_perplexity
    for name in ("training_systems", "training_report", "tier_perplexity"):
        sys.modules.pop(name)


@pytest.fixture
def data(tmp_path):
    for pair in ("en-fr", "en-de"):
        (tmp_path / f"train.{pair}.en.idx").touch()
    return tmp_path


def test_systems_differ_in_few_options(benchmarks, data):
    systems, _, _ = benchmarks

    def options(name):
        command = systems.train_command(systems.BY_NAME[name], systems.SETTINGS[SETTING], data, Path("run"), 1, 5)
        return set(itertools.pairwise(command))

    added = options("base_heated") - options("base")
    assert {name for name, _ in added if name.startswith("--")} == {"--heating-coefficient", "--heating-epochs"}
    assert ("--lang-pairs", "en-de,en-fr") in options("base")
    assert ("--task", "translation_multi_simple_epoch") in options("stock_dense")
    assert not any("fairseq_mtmoe" in option for option in options("stock_dense"))
    assert ("--expert-gates", "base,task") in options("alternating")


def test_minutes_of_a_stock_log_leave_validations_out(benchmarks):
    _, _, tier = benchmarks
    log = """
1970-01-01 00:00:10 | INFO | fairseq_cli.train | Start iterating over samples
1970-01-01 00:01:10 | INFO | fairseq_cli.train | begin validation on "valid" subset
1970-01-01 00:01:40 | INFO | valid | {"valid_ppl": "9", "valid_num_updates": "20"}
1970-01-01 00:02:40 | INFO | fairseq_cli.train | Start iterating over samples
1970-01-01 00:03:40 | INFO | fairseq_cli.train | begin validation on "valid" subset
1970-01-01 00:03:50 | INFO | valid | {"valid_ppl": "8", "valid_num_updates": "40"}
"""
    assert tier.training_minutes(log) == {20: 1.0, 40: 3.0}


def test_reached_interpolates_in_the_logarithm(benchmarks):
    _, report, _ = benchmarks
    series = PerplexitySeries([10, 20, 30], [1.0, 2.0, 4.0], {"all": [100.0, 25.0, 30.0]})
    assert report.reached(series, 50.0) == pytest.approx((15.0, 1.5))
    assert report.reached(series, 200.0) == (10.0, 1.0)
    assert report.reached(series, 20.0) is None


def finished_run(systems, report, folder, name, seed, perplexities):
    run = folder / f"{name}-{seed}"
    log = RunLog(run / "mtmoe.jsonl")
    for index, value in enumerate(perplexities, start=1):
        groups = {tier: {"ppl": value} for tier in ("low", "high")}
        log.write("valid", epoch=1, update=10 * index, minutes=index, subset="valid", tiers=groups, all={"ppl": value})
    finished = {"seed": seed, "command": ["fairseq-train"], "commit": "c", "hardware": "h", "versions": {"torch": "1"}}
    return report.RunResult.read(systems.BY_NAME[name], run, finished)


def test_report_compares_with_the_base_run_of_the_same_seed(benchmarks, tmp_path):
    systems, report, _ = benchmarks
    results = [
        finished_run(systems, report, tmp_path, "base", 1, [100.0, 50.0, 40.0]),
        finished_run(systems, report, tmp_path, "base", 2, [100.0, 50.0, 25.0]),
        finished_run(systems, report, tmp_path, "pretrained", 1, [80.0, 40.0, 30.0]),
        finished_run(systems, report, tmp_path, "pretrained", 2, [80.0, 40.0, 30.0]),
    ]
    report.write_report(results, SETTING, systems.SETTINGS[SETTING], tmp_path / "out")
    rows = {(row["system"], row["seed"]): row for row in json.loads((tmp_path / "out.json").read_text())}
    assert rows["pretrained", 1]["updates_to_base_best"] == 20.0
    assert rows["pretrained", 2]["updates_to_base_best"] is None
    text = (tmp_path / "out.md").read_text()
    assert "| dense → BASE | 30 | 30.00 | 30.00 | 30.00 (30.00, 30.00) | – (20, –) | – (2.0, –) |" in text
    assert (tmp_path / "out_updates.png").stat().st_size > 0
    assert (tmp_path / "out_minutes.png").stat().st_size > 0
