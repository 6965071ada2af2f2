"""The comparison of training runs: commands, minutes out of a stock log, when a run came to a perplexity, reports."""

import itertools
import json
import sys
from pathlib import Path

import pytest

from fairseq_mtmoe.analysis.run_log import RunLog
from fairseq_mtmoe.analysis.series import PerplexitySeries
from tests.helpers.tables import unpadded

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
    for name in ("training_systems", "training_report", "tier_perplexity", "compare_training"):
        sys.modules.pop(name, None)


@pytest.fixture
def data(tmp_path):
    for pair in ("en-fr", "en-de"):
        (tmp_path / f"train.{pair}.en.idx").touch()
    return tmp_path


def options_of(command):
    """The options of a command and their values; True for one without."""
    given = {}
    for name, value in itertools.pairwise([*command, "--"]):
        if name.startswith("--"):
            given[name] = True if value.startswith("--") else value
    return given


HEATING = {"--heating-coefficient": "3.0", "--heating-epochs": "30"}
# A system -> the one that it is compared with, and the options that are other than there (None: not given).
DIFFERENCES = {
    "dense": (
        "stock_dense",
        {"--user-dir": "fairseq_mtmoe", "--task": "translation_heated", "--arch": "base_dense"}
        | {"--keep-interval-updates": "1"},
    ),
    "base": ("dense", {"--arch": "base_moe", "--num-experts": "8", "--expert-combine": "paper"}),
    "base_heated": ("base", HEATING),
    "pretrained": ("base", {"--expert-combine": None, "--dense-updates": "480"}),
    "pretrained_heated": ("pretrained", HEATING),
    "alternating": ("base", {"--expert-gates": "base,task"}),
}


def test_systems_differ_in_nothing_but_what_is_compared(benchmarks, data):
    systems, _, _ = benchmarks
    given = {
        name: options_of(systems.train_command(system, systems.SETTINGS[SETTING], data, Path("run"), 1, 5))
        for name, system in systems.BY_NAME.items()
    }
    assert set(given) == {"stock_dense", *DIFFERENCES}
    for name, (other, expected) in DIFFERENCES.items():
        names = {*given[name], *given[other]}
        found = {key: given[name].get(key) for key in names if given[name].get(key) != given[other].get(key)}
        assert found == expected, name
    stock = given["stock_dense"]
    assert (stock["--task"], stock["--arch"]) == ("translation_multi_simple_epoch", "transformer")
    assert (stock["--lang-pairs"], stock["--dropout"]) == ("en-de,en-fr", "0.1")
    assert not any("mtmoe" in str(value) for value in stock.values())


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
    text = unpadded((tmp_path / "out.md").read_text())
    assert (
        "| dense → BASE | 30 | 30.00 ±0.00 | 30.00 ±0.00 | 30.00 ±0.00 (30.00, 30.00) | – (20, –) | – (2.0, –) |"
        in text
    )
    assert (tmp_path / "out_updates.png").stat().st_size > 0
    assert (tmp_path / "out_minutes.png").stat().st_size > 0


def test_without_base_nothing_is_compared_with_it_and_shares_of_the_data_are_said(benchmarks, tmp_path):
    systems, report, _ = benchmarks
    results = []
    for seed, share, last in ((1, 0.6, 50.0), (2, 0.7, 48.0)):
        event = {"update": 10, "trained": {"en-de": 5}, "relative_entropy": {"en-de": 0.5}, "share_of_data": share}
        RunLog(tmp_path / f"dense-{seed}" / "mtmoe.jsonl").write("selection", **event)
        results.append(finished_run(systems, report, tmp_path, "dense", seed, [100.0, last]))
    report.write_report(results, SETTING, systems.SETTINGS[SETTING], tmp_path / "out")
    text = unpadded((tmp_path / "out.md").read_text())
    assert "| system | updates | low | high | all | % of the data |" in text and "BASE's best" not in text
    assert f"| dense | 20 | 49.00 ±{2**0.5:.2f} | 49.00 ±{2**0.5:.2f} |" in text
    assert text.count("| 65.0 ±7.1 |") == 1
    assert json.loads((tmp_path / "out.json").read_text())[1]["share_of_data"] == 0.7


def test_commands_hold_no_folder_of_the_machine(benchmarks):
    from compare_training import with_names

    systems, _, _ = benchmarks
    data, run = Path("/data/multi30k"), Path("/place/runs/base-1")
    words = systems.score_command(data, run)
    assert with_names(words, {data: "DATA", run.parent: "runs"})[2:5] == [
        "DATA",
        "--path",
        "runs/base-1/checkpoint_best.pt",
    ]
