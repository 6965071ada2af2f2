"""Does sparse pay: rows that differ in one thing, and perplexity at equal updates and at equal minutes."""

import itertools
import math
import sys
from pathlib import Path

import pytest

MODULES = (
    "compare_sparse", "compare_training", "equal_cost", "price_evaluation", "price_memory", "price_runs",
    "sparse_systems", "training_report", "training_systems",
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
        command = train_command(system, study.setting(4000), tmp_path, Path("/runs"), 1, 0)
        pairs = itertools.pairwise([*command, "--"])
        return {name: None if value.startswith("--") else value for name, value in pairs if name.startswith("--")}

    return {system.name: options(system) for system in study.SYSTEMS}


def differing(one, other):
    return {name for name in one | other if one.get(name, "") != other.get(name, "")}


def test_rows_differ_from_sixteen_experts_in_one_thing(commands):
    sparse = commands["base16"]
    assert sparse["--num-experts"] == "16" and sparse["--expert-interval"] == "1"
    assert differing(sparse, commands["dense"]) == {"--arch", "--num-experts", "--expert-interval"}
    assert differing(commands["dense"], commands["dense_wide"]) == SHAPE
    of_start = {"--dense-updates"}
    for name, options in commands.items():
        if not name.startswith("dense") and name != "base16":
            assert len(differing(sparse, options) - of_start) <= 1, name
            assert differing(sparse, options), name
    # What is drawn anew is drawn where copies are made: that row has a row beside it that differs in nothing else.
    assert differing(commands["pretrained"], commands["pretrained_anew"]) == {"--expert-reinit-ratio"}


def test_all_rows_have_the_same_loss_optimizer_and_batches(commands):
    same = ("--criterion", "--optimizer", "--lr", "--max-tokens", "--max-update", "--seed", "--label-smoothing")
    assert len({tuple(options[name] for name in same) for options in commands.values()}) == 1


def result(study, system, seed, minutes, perplexity):
    """A run that was validated at updates 100, 200, …"""
    from training_report import RunResult

    from fairseq_mtmoe.analysis.series import ExpertSeries, PerplexitySeries, Run, SamplingSeries

    updates = [100 * (number + 1) for number in range(len(minutes))]
    series = PerplexitySeries(updates, minutes, {"all": perplexity})
    log = Run(system, SamplingSeries([], [], {}), ExpertSeries([], [], [], {}), series)
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
        result(study, "base16", 1, [2.0, 4.0], [80.0, 45.0]),
        result(study, "dense", 2, [1.0, 2.0], [100.0, 50.0]),
        result(study, "base16", 2, [2.0, 4.0], [75.0, 40.0]),
        result(study, "base16", 3, [2.0, 4.0], [1.0, 1.0]),  # without a baseline: left out
    ]
    lines = equal_cost(results, study.DENSE)
    (row,) = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[4].splitlines() if "BASE" in line]
    assert row == ["BASE, 16 experts", "2", "2.00", "42.50", "-15.0 ±5.0", "77.50", "+55.0 ±5.0"]


def test_ways_of_routing_have_a_table_of_runs_that_have_them(study):
    results = [result(study, "base16", seed, [1.0], [9.0]) for seed in (1, 2)]
    assert study.routing(results) == []
    for one, base in zip(results, (10.0, 20.0), strict=True):
        one.finished[study.ROUTED] = {way: base + place for place, way in enumerate(study.WAYS)}
    table = study.routing(results)[4]
    assert [cell.strip() for cell in table.splitlines()[2].split("|")[1:-1]] == [
        "BASE, 16 experts", "2", "15.00", "16.00", "17.00",
    ]  # fmt: skip


def test_without_a_baseline_there_is_nothing_to_say(study):
    from equal_cost import equal_cost

    assert equal_cost([result(study, "base16", 1, [1.0], [9.0])], study.DENSE) == []
