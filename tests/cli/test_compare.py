"""`mtmoe compare` on scores as the commands write them: means, spreads, differences, and what cannot be compared."""

import json
import math
from statistics import fmean, stdev

import pytest
from click.testing import CliRunner

from fairseq_mtmoe.analysis.run_log import FILE_NAME, RunLog
from fairseq_mtmoe.analysis.score_files import scores_of_pairs, scores_of_tasks
from fairseq_mtmoe.analysis.score_tables import write_scores
from fairseq_mtmoe.analysis.scores import PairScore
from fairseq_mtmoe.cli.compare import command
from fairseq_mtmoe.errors import UserError
from tests.helpers.benchmark_scores import set_of, task_of
from tests.helpers.refused import refused
from tests.helpers.tables import unpadded

MINILM = {"layers": 6, "width": 384}


def write_run(folder, seed, scores, model="mt_tag_minilm", subset="valid", digest="d", place="scores", **more):
    """The folder of a run with scores below it."""
    settings = {"checkpoint": f"{folder}/checkpoint_best.pt", "subset": subset, "model": model, "encoder": MINILM,
                "trained_tasks": list(scores), "seed": seed, **more}  # fmt: skip
    tasks = {task: task_of(task, set_of(score, digest=digest))[task] for task, score in scores.items()}
    write_scores(folder / place, scores_of_tasks(tasks, settings))
    return folder


def compare(*arguments):
    result = CliRunner().invoke(command, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def line_of(text, *words):
    (line,) = [line for line in text.splitlines() if all(word in line for word in words)]
    return line


@pytest.fixture
def runs(tmp_path):
    """Three seeds of one system, two of another."""
    for seed, cola, rte in ((1, 40.0, 80.0), (2, 42.0, 81.0), (3, 47.0, 82.0)):
        write_run(tmp_path / f"tag-{seed}", seed, {"cola": cola, "rte": rte, "sst2": 90.0})
    for seed, cola, rte in ((1, 38.0, 79.0), (3, 43.0, 82.5)):
        write_run(tmp_path / f"dense-{seed}", seed, {"cola": cola, "rte": rte, "sst2": 91.0}, "mt_dense_minilm")
    return tmp_path


def error_of(values):
    return stdev(values) / len(values) ** 0.5


def test_means_and_errors_over_seeds_beside_the_papers(runs):
    shown = compare(f"mt_dense={runs}/dense-1,{runs}/dense-3", f"mt_tag={runs}/tag-*", "--out", runs / "out")
    markdown = unpadded((runs / "out" / "comparison.md").read_text())
    small = [fmean(pair) for pair in ((40, 80), (42, 81), (47, 82))]
    every = [fmean(three) for three in ((40, 80, 90), (42, 81, 90), (47, 82, 90))]
    cells = ["43.00 ±2.08", "81.00 ±0.58", "90.00 ±0.00", f"{fmean(small):.2f} ±{error_of(small):.2f}",
             f"{fmean(every):.2f} ±{error_of(every):.2f}"]  # fmt: skip
    assert f"| mt_tag | 1, 2, 3 | {' | '.join(cells)} |" in markdown
    assert all(cell in line_of(shown, "mt_tag ", "1, 2, 3") for cell in cells)
    assert markdown.splitlines()[0] == "| system | seeds | CoLA | RTE | sst2 | Small | All |"
    # 61.1 and 71.4: the paper's means over the tasks that are compared
    assert "| MT-TaG, MiniLM (paper) | | 41.1 | 81.1 | 92.1 | 61.1 | 71.4 |" in markdown
    assert "MT-Dense, MiniLM (paper)" in shown
    written = json.loads((runs / "out" / "comparison.json").read_text())
    tag = written["systems"]["mt_tag"]
    assert tag["scores"]["cola"] == pytest.approx(
        {"mean": 43.0, "deviation": stdev([40, 42, 47]), "standard_error": error_of([40, 42, 47])}
    )
    assert [run["seed"] for run in tag["runs"]] == [1, 2, 3]
    assert tag["runs"][0]["checkpoints"] == [f"{runs}/tag-1/checkpoint_best.pt"]
    assert {"version", "commit", "command", "subset"} <= set(written["settings"])


def test_differences_are_paired_by_the_seeds_that_both_have(runs):
    shown = compare(f"mt_dense={runs}/dense-*", f"mt_tag={runs}/tag-*", "--out", runs / "out")
    line = line_of(shown, "mt_tag − mt_dense")
    assert "1, 3" in line
    assert f"+3.00 ±{error_of([40 - 38, 47 - 43]):.2f}" in line and "-1.00 ±0.00" in line
    written = json.loads((runs / "out" / "comparison.json").read_text())["differences"]["mt_tag"]
    assert written["paired_seeds"] == [1, 3]
    assert written["scores"]["rte"] == pytest.approx(
        {"mean": 0.25, "deviation": stdev([1, -0.5]), "standard_error": error_of([1, -0.5])}
    )


def test_differences_without_common_seeds_are_of_means_and_lengths_that_differ_are_named(runs):
    for seed, cola in ((7, 30.0), (8, 34.0)):
        write_run(runs / f"other-{seed}", seed, {"cola": cola, "rte": 80.0, "sst2": 90.0}, updates=10 * seed)
    shown = compare(f"mt_tag={runs}/tag-*", f"other={runs}/other-*")
    line = line_of(shown, "other − mt_tag")
    assert line_of(shown, "numbers of updates").startswith("The runs of other were") and "updates: 70, 80." in shown
    error = math.hypot(error_of([40, 42, 47]), error_of([30, 34]))
    assert "not paired" in line and f"-11.00 ±{error:.2f}" in line


def test_the_majority_class_and_ca_mtls_average_stand_beside_means(tmp_path):
    def write(place, constant="", **also):
        rte = task_of("rte", set_of(47.3, majority={"accuracy": 52.7}, constant=constant))
        mrpc = task_of("mrpc", set_of(68.4, also=also, majority={"accuracy": 68.4}))
        settings = {"checkpoint": "a.pt", "subset": "valid", "model": "mt_tag", "seed": 1, "updates": 1}
        write_scores(tmp_path / place, scores_of_tasks({**rte, **mrpc}, settings))

    write("old")
    write("new", "not_entailment", f1=(81.2, 1.0))
    shown = compare(f"new={tmp_path}/new", "--out", tmp_path / "out")
    markdown = unpadded((tmp_path / "out" / "comparison.md").read_text())
    assert "| system | seeds | RTE | MRPC | Small | All | All (CA-MTL) |" in markdown
    assert "| new | 1 | 47.30 | 68.40 | 57.85 | 57.85 | 64.25 |" in markdown  # (47.3 + 81.2) / 2
    assert "| majority | | 52.70 | 68.40 | | | |" in markdown
    assert "new, seed 1, rte: every prediction is `not_entailment`." in shown
    # Scores of before have no F1: they are compared by what both have.
    assert "CA-MTL" not in compare(f"new={tmp_path}/new", f"old={tmp_path}/old")


def test_runs_of_single_tasks_with_one_seed_complete_each_other(runs):
    for seed in (1, 3):
        for task, score in (("cola", 30.0), ("rte", 70.0 + seed), ("sst2", 92.0)):
            write_run(runs / f"single-{task}-{seed}", seed, {task: score}, "mt_dense_minilm")
    shown = compare(f"mt_tag={runs}/tag-*", f"single={runs}/single-*", "--out", runs / "out")
    line = line_of(shown, "single ", "30.00 ±0.00")
    assert f"72.00 ±{error_of([71, 73]):.2f}" in line and "1, 3" in line
    assert "Single-Task, MiniLM (paper)" in shown
    (first, _) = json.loads((runs / "out" / "comparison.json").read_text())["systems"]["single"]["runs"]
    assert len(first["folders"]) == 3 and first["averages"]["small"] == pytest.approx((30 + 71) / 2)


def pair_run(folder, seed, bleus, subset="test", data="x"):
    """The folder of a run with scores of `mtmoe evaluate`."""
    tiers = {"en-de": "high", "en-gu": "low"}
    rows = [PairScore(pair, tiers[pair], 10, bleu, 50.0, "tok:13a", "nw:2") for pair, bleu in bleus.items()]
    settings = {"checkpoint": f"{folder}/checkpoint_best.pt", "subset": subset, "data_sha256": data,
                "references": "text"}  # fmt: skip
    place = folder / "scores" / f"checkpoint_best-{subset}"
    write_scores(place, scores_of_pairs(rows, settings))
    RunLog(folder / FILE_NAME).write("run", sizes={"en-de": 1}, seed=seed)
    return folder


def test_translation_is_compared_by_the_same_command(tmp_path):
    for seed, low, high in ((1, 10.0, 24.0), (2, 12.0, 25.0)):
        pair_run(tmp_path / f"dense-{seed}", seed, {"en-de": high, "en-gu": low})
        pair_run(tmp_path / f"base-{seed}", seed, {"en-de": high + 1, "en-gu": low - seed})
    shown = compare(f"dense={tmp_path}/dense-*", f"base={tmp_path}/base-*", "--out", tmp_path / "out")
    assert "11.00 ±1.00" in line_of(shown, "│ dense ", "1, 2")
    assert "-1.50 ±0.50" in line_of(shown, "base − dense") and "+1.00 ±0.00" in line_of(shown, "base − dense")
    head = unpadded((tmp_path / "out" / "comparison.md").read_text()).splitlines()[0]
    assert head.endswith("| en-gu | en-de | Low | High | All |")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"subset": "test"}, "has those of test, and not of valid as"),
        ({"digest": "e"}, "has another set of data of cola than"),
        ({"scores": {"cola": 40.0, "rte": 80.0}}, "has no sst2, other tasks than"),
        ({"scores": {"cola": 40.0, "rte": 80.0, "sst2": 90.0, "mnli": 1.0}}, "has mnli, other tasks than"),
    ],
)
def test_what_cannot_be_compared_is_refused_and_no_file_is_written(runs, changed, words):
    write_run(runs / "odd", 5, **{"scores": {"cola": 40.0, "rte": 80.0, "sst2": 90.0}, **changed})
    with pytest.raises(UserError, match=rf"must have scores of the same data to be compared, but .*odd.* {words}"):
        compare(f"mt_tag={runs}/tag-*", f"odd={runs}/odd", "--out", runs / "out")
    assert not (runs / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("tag-1",), "NAME=RUN,…"),
        (("a=",), "NAME=RUN,…"),
        (("a=tag-1", "a=tag-2"), "NAME=RUN,…"),
        (("a=nothing-*",), "nothing-*"),
        (("a=.",), "."),
        (("a=tag-1,tag-1",), "a"),
    ],
)
def test_wrong_arguments_are_refused(runs, monkeypatch, arguments, name):
    monkeypatch.chdir(runs)
    with refused(name):
        compare(*arguments)


def test_a_run_without_scores_names_the_command_that_makes_them(runs):
    RunLog(runs / "unscored" / FILE_NAME).write("run", data="GLUE DIR", seed=1)
    path = runs / "unscored" / "checkpoint_best.pt"
    with refused("unscored", f"mtmoe evaluate 'GLUE DIR' --path {path}"):
        compare(f"mt_tag={runs}/tag-*", f"other={runs}/unscored")


def test_a_run_with_several_folders_of_scores_names_them(runs):
    for subset in ("valid", "test"):
        write_run(runs / "both", 1, {"cola": 1.0}, place=f"scores/best-{subset}")
    with pytest.raises(UserError, match=r"but has 2: name one of .*best-test.*best-valid"):
        compare(f"a={runs}/both")
    assert "CoLA" in compare(f"a={runs}/both/scores/best-test")


@pytest.mark.parametrize("content", ["", "[]", '{"tasks": {}, "settings": {}}', '{"pairs": {"en-de": 3}}'])
def test_a_file_of_something_else_is_refused(runs, content):
    (runs / "tag-1" / "scores" / "scores.json").write_text(content)
    with refused("scores.json"):
        compare(f"a={runs}/tag-1")
