"""Does sparse pay: rows that differ in one thing, and perplexity at equal updates and at equal minutes."""

import itertools
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

MODULES = (
    "compare_sparse", "compare_training", "equal_cost", "price_evaluation", "price_memory", "price_runs",
    "routing_tables", "sparse_systems", "training_report", "training_systems",
)  # fmt: skip
SHAPE = {"--encoder-ffn-embed-dim", "--decoder-ffn-embed-dim"}


@pytest.fixture
def study():
    """The script, which imports others of its folder by name."""
    import compare_sparse

    yield compare_sparse
    for name in MODULES:
        sys.modules.pop(name)


@pytest.fixture
def commands(study, tmp_path):
    """The options of every system's run, those that win."""
    (tmp_path / "train.en-de.en.idx").touch()
    from training_systems import train_command

    def options(system):
        command = train_command(system, study.SETTINGS["wmt15"], tmp_path, Path("/runs"), 1, 0)
        pairs = itertools.pairwise([*command, "--"])
        return {name: None if value.startswith("--") else value for name, value in pairs if name.startswith("--")}

    return {system.name: options(system) for system in study.SYSTEMS}


def differing(one, other):
    return {name for name in one | other if one.get(name, "") != other.get(name, "")}


HEATING = {"--heating-coefficient", "--heating-updates"}
TOOLS = {"--criterion", "--optimizer"}
OF_PLUGIN = {"--arch", "--task", "--user-dir", "--keep-interval-updates"}
# Rows, what each is to be compared with, and in what alone they differ.
PAIRS = [
    ("dense", "base", {"--arch", "--num-experts", "--expert-interval"}),
    ("dense_widest", "dense", SHAPE),
    ("dense_wider", "dense", SHAPE),
    ("base_4", "base", {"--num-experts"}),
    ("base_64", "base", {"--num-experts"}),
    ("paper_combine", "base", {"--expert-combine"}),
    ("task_gates", "base", {"--expert-gates"}),
    ("task_by_prices", "by_prices", {"--expert-gates"}),
    ("switch_gates", "base", {"--expert-gates"}),
    ("shared", "base", {"--shared-expert-dim"}),
    ("by_prices", "base", {"--base-training"}),
    ("by_prices_4", "by_prices", {"--num-experts"}),
    ("by_prices_64", "by_prices", {"--num-experts"}),
    ("slow_gates", "base", {"--gate-lr-factor"}),
    ("fast_gates", "base", {"--gate-lr-factor"}),
    ("expert_dropout", "base", {"--expert-dropout"}),
    ("pretrained", "base", {"--dense-updates"}),
    ("pretrained_anew", "pretrained", {"--expert-reinit-ratio"}),
    ("pretrained_paper", "pretrained", {"--expert-combine"}),
    ("pretrained_20", "pretrained", {"--dense-updates"}),
    ("pretrained_60", "pretrained", {"--dense-updates"}),
    ("stock_dense", "dense", TOOLS | OF_PLUGIN),
    ("dense_heated", "dense", HEATING),
    ("base_heated", "base", HEATING),
    ("base_heated_less", "base_heated", {"--heating-coefficient"}),
    ("base_cold", "base", {"--sampling-temperature"}),
    ("base_cold_heated", "base_cold", HEATING),
    ("base_cold_heated", "base_heated_less", {"--sampling-temperature"}),
    ("base_hot", "base", {"--sampling-temperature"}),
    ("pretrained_heated", "pretrained", HEATING),
    ("alternating", "base", {"--expert-gates"}),
]


@pytest.mark.parametrize(("name", "other", "options"), PAIRS)
def test_rows_differ_in_one_thing(commands, name, other, options):
    assert differing(commands[name], commands[other]) == options


def test_every_row_is_compared_with_another(commands):
    assert {name for name, _, _ in PAIRS} | {"base"} == set(commands)
    assert commands["base"]["--num-experts"] == "16" and commands["base"]["--expert-interval"] == "1"
    assert [commands[name]["--heating-coefficient"] for name in ("base_heated", "base_heated_less")] == ["3.0", "1"]
    assert [commands[name]["--sampling-temperature"] for name in ("base", "base_cold_heated")] == ["1.5", "1.0"]
    dense = [commands[name]["--dense-updates"] for name in ("pretrained_20", "pretrained", "pretrained_60")]
    assert dense == ["600", "1200", "1800"]


def test_a_finished_run_of_another_length_is_not_taken_for_this_one(study, tmp_path, monkeypatch):
    """A second call with the same options trains nothing, one with others ends before it trains or reports."""
    import click
    import compare_training

    started = []
    monkeypatch.setattr(compare_training, "execute", lambda command, log, watch=None: started.append(command) or 1.0)
    dense, setting = study.BY_NAME["dense"], study.SETTINGS["wmt15"]
    for _ in range(2):
        study.run_one(dense, setting, tmp_path, tmp_path / "runs", 1, False)
    assert len(started) == 1
    with pytest.raises(click.ClickException, match="with `--max-update 1200`, but is one with `--max-update 3000`"):
        study.run_one(dense, replace(setting, updates=1200), tmp_path, tmp_path / "runs", 1, False)
    assert len(started) == 1


def test_a_report_with_runs_of_another_folder_is_not_overwritten(study, tmp_path):
    import click

    report, runs = tmp_path / "report.json", tmp_path / "runs"
    study.keep_others(report, runs)
    rows = [{"system": "dense", "seed": 1, "command": ["a"]}, {"system": "base", "seed": 2, "command": ["b"]}]
    report.write_text(json.dumps(rows))
    for run, command in (("dense-1", ["a"]), ("base-2", ["b"])):
        (runs / run).mkdir(parents=True)
        for other in (None, ["b", "--max-update", "4"]):
            with pytest.raises(click.BadParameter, match=f"runs that are not there, {run} first"):
                study.keep_others(report, runs)
            (runs / run / study.FINISHED).write_text(json.dumps({"command": other}))
        (runs / run / study.FINISHED).write_text(json.dumps({"command": command}))
    study.keep_others(report, runs)
    assert json.loads(report.read_text()) == rows


def test_stock_fairseq_is_started_with_what_it_knows(study, tmp_path):
    """An option's first value has to be known too, whatever a later one says."""
    from training_systems import train_command

    command = train_command(study.BY_NAME["stock_dense"], study.SETTINGS["wmt15"], tmp_path, Path("/runs"), 1, 0)
    assert not {"--user-dir", "moe_label_smoothed_cross_entropy", "fused_adam"} & set(command)


def test_settings_differ_in_what_the_decoder_is_told_and_in_data(study):
    from dataclasses import asdict

    wmt15, untold, ml50 = (asdict(study.SETTINGS[name]) for name in ("wmt15", "wmt15_untold", "ml50"))
    assert {key for key in wmt15 if wmt15[key] != untold[key]} == {"tells_decoder"}
    assert {key for key in wmt15 if wmt15[key] != ml50[key]} == {"data", "updates", "validations"}


def test_all_rows_have_the_same_batches_and_all_but_stock_the_same_tools(commands):
    same = ("--lr", "--max-tokens", "--max-update", "--seed", "--label-smoothing")
    assert len({tuple(options[name] for name in same) for options in commands.values()}) == 1
    ours = [options for name, options in commands.items() if name != "stock_dense"]
    assert len({tuple(options[name] for name in sorted(TOOLS)) for options in ours}) == 1


def result(study, system, seed, minutes, perplexity, shares=None):
    """A run that was validated at updates 100, 200, …, and whose experts had these shares in two validations."""
    from training_report import RunResult

    from fairseq_mtmoe.analysis.series import ExpertSeries, PerplexitySeries, Run, SamplingSeries

    updates = [100 * (number + 1) for number in range(len(minutes))]
    series = PerplexitySeries(updates, minutes, {"all": perplexity})
    experts = ExpertSeries([100, 200] if shares else [], ["de", "fr"], list(shares or {}), shares or {})
    log = Run(system, SamplingSeries([], [], {}), experts, series)
    return RunResult(study.BY_NAME[system], seed, log, {"seed": seed}, {})


def test_between_validations_the_logarithm_falls_along_a_line(study):
    from equal_cost import at

    series = result(study, "dense", 1, [1.0, 2.0], [100.0, 25.0]).log.perplexity
    assert at(series, series.minutes, 1.5) == pytest.approx(50)
    assert at(series, series.updates, 200) == pytest.approx(25)
    assert at(series, series.updates, 100) == pytest.approx(100)
    assert math.isnan(at(series, series.minutes, 0.5)) and math.isnan(at(series, series.minutes, 2.1))


def test_equal_minutes_are_those_of_the_shortest_run_of_the_seed(study):
    """Sparse is 10% lower at as many updates, takes twice the minutes, and is then where it was half the way."""
    from equal_cost import equal_cost

    results = [
        result(study, "dense", 1, [1.0, 2.0], [100.0, 50.0]),
        result(study, "base", 1, [2.0, 4.0], [80.0, 45.0]),
        result(study, "dense", 2, [1.0, 2.0], [100.0, 50.0]),
        result(study, "base", 2, [2.0, 4.0], [75.0, 40.0]),
        result(study, "base", 3, [2.0, 4.0], [1.0, 1.0]),  # without a baseline: left out
    ]
    lines = equal_cost(results, study.DENSE)
    (row,) = [cells(line) for line in lines[4].splitlines() if "BASE" in line]
    assert row == ["BASE, 16 experts", "2", "2.00", "42.50", "-15.0 ±5.0", "77.50", "+55.0 ±5.0"]


def cells(line):
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_ways_of_routing_have_a_table_of_runs_that_have_them(study):
    import routing_tables

    results = [result(study, "base", seed, [1.0], [9.0]) for seed in (1, 2)]
    assert routing_tables.routing_in_evaluation(results) == []
    for one, base in zip(results, (10.0, 20.0), strict=True):
        one.finished[routing_tables.ROUTED] = {way: base + place for place, way in enumerate(routing_tables.WAYS)}
    table = routing_tables.routing_in_evaluation(results)[4]
    assert cells(table.splitlines()[2]) == ["BASE, 16 experts", "2", "15.00", "16.00", "17.00"]


def test_entropy_is_of_the_last_validation_by_stack_and_language(study):
    """One language on one expert of four is 0, evenly on two of them a half, on all four 1."""
    from routing_tables import routing_entropy

    one, two, four = [1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.25] * 4
    shares = {
        "encoder.layers.0.ffn": {"de": [four, one], "fr": [one, two]},
        "encoder.layers.1.ffn": {"de": [four, four], "fr": [one, two]},
        "decoder.layers.0.ffn": {"de": [one, two], "fr": [one, four]},
    }
    runs = [result(study, "base", seed, [1.0], [9.0], shares) for seed in (1, 2)]
    lines = routing_entropy([result(study, "dense", 1, [1.0], [9.0]), *runs])[4].splitlines()
    assert cells(lines[0]) == ["system", "stack", "seeds", "mean", "de", "fr"]
    assert [cells(line) for line in lines[2:]] == [
        ["BASE, 16 experts", "encoder", "2", "0.50", "0.50", "0.50"],
        ["BASE, 16 experts", "decoder", "2", "0.75", "0.50", "1.00"],
    ]
    assert routing_entropy([result(study, "dense", 1, [1.0], [9.0])]) == []


def test_without_a_baseline_there_is_nothing_to_say(study):
    from equal_cost import equal_cost

    assert equal_cost([result(study, "base", 1, [1.0], [9.0])], study.DENSE) == []
