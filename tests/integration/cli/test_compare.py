"""`mtmoe compare` on scores as the commands write them: means, spreads, differences, and what cannot be compared."""

import json
import shutil
from functools import partial
from statistics import fmean, stdev

import pytest

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.report.run_log import FILE_NAME, RunLog
from fairseq_mtmoe.report.score_files import scores_of_pairs, scores_of_tasks
from fairseq_mtmoe.report.score_tables import write_scores
from fairseq_mtmoe.report.scores import PairScore
from tests.helpers.benchmark_scores import set_of, task_of
from tests.helpers.invoked import mtmoe
from tests.helpers.refused import refused
from tests.helpers.tables import unpadded

compare = partial(mtmoe, "compare")
MINILM = {"layers": 6, "width": 384}
T_OF_TWO = 12.7062  # Student's t at 97.5% of two runs


def write_run(folder, seed, cola, rte, sst2, model="mt_tag_minilm", digest="d", **more):
    """The folder of a run with scores below it, of the tasks that have some."""
    scores = {"cola": cola, "rte": rte, "sst2": sst2, "mnli": more.pop("mnli", None)}
    tasks = {task: task_of(task, set_of(score, digest=digest))[task] for task, score in scores.items() if score}
    settings = {"checkpoint": f"{folder}/checkpoint_best.pt", "subset": "valid", "model": model, "encoder": MINILM,
                "trained_tasks": list(tasks), "seed": seed, **more}  # fmt: skip
    write_scores(folder / "scores", scores_of_tasks(tasks, settings))


def comparison_in(folder):
    written = json.loads((folder / "comparison.json").read_text())
    return written, unpadded((folder / "comparison.md").read_text()).splitlines()


def line_of(text, *words):
    (line,) = [line for line in text.splitlines() if all(word in line for word in words)]
    return line


@pytest.fixture
def runs(tmp_path):
    """Three seeds of one system, two of another."""
    for seed, cola, rte in ((1, 40.0, 80.0), (2, 42.0, 81.0), (3, 47.0, 82.0)):
        write_run(tmp_path / f"tag-{seed}", seed, cola, rte, 90.0)
    for seed, cola, rte in ((1, 38.0, 79.0), (3, 43.0, 82.5)):
        write_run(tmp_path / f"dense-{seed}", seed, cola, rte, 91.0, "mt_dense_minilm")
    return tmp_path


def error_of(values):
    return stdev(values) / len(values) ** 0.5


def test_means_and_errors_over_seeds(runs):
    """Differences are paired by the seeds that both have."""
    shown = compare(f"mt_dense={runs}/dense-1,{runs}/dense-3", f"mt_tag={runs}/tag-*", "--out", runs / "out")
    written, page = comparison_in(runs / "out")
    small = [fmean(pair) for pair in ((40, 80), (42, 81), (47, 82))]
    every = [fmean(three) for three in ((40, 80, 90), (42, 81, 90), (47, 82, 90))]
    cells = ["43.00 ±2.08", "81.00 ±0.58", "90.00 ±0.00", f"{fmean(small):.2f} ±{error_of(small):.2f}",
             f"{fmean(every):.2f} ±{error_of(every):.2f}"]  # fmt: skip
    assert page[0] == "## score: mean over seeds"
    assert page[2] == "| system | seeds | CoLA | RTE | sst2 | Small | All |"
    assert f"| mt_tag | 1, 2, 3 | {' | '.join(cells)} |" in page
    assert all(cell in line_of(shown, "mt_tag ", "1, 2, 3") for cell in cells)
    line = line_of(shown, "mt_tag − mt_dense", "1, 3")
    assert f"+3.00 ±{T_OF_TWO * error_of([40 - 38, 47 - 43]):.2f}" in line and "-1.00 ±0.00" in line
    found = written["differences"]["mt_tag"]
    rte, half = found["score"]["scores"]["rte"], T_OF_TWO * error_of([1, -0.5])
    assert found["paired_seeds"] == [1, 3] and rte["mean"] == 0.25
    assert rte["interval"] == pytest.approx([0.25 - half, 0.25 + half], abs=1e-3)


def test_differences_without_common_seeds_are_of_means_and_lengths_that_differ_are_named(runs):
    for seed, cola in ((7, 30.0), (8, 34.0)):
        write_run(runs / f"other-{seed}", seed, cola, 80.0, 90.0, updates=10 * seed)
    shown = compare(f"mt_tag={runs}/tag-*", f"other={runs}/other-*")
    line = line_of(shown, "other − mt_tag")
    assert line_of(shown, "numbers of updates").startswith("The runs of other were") and "updates: 70, 80." in shown
    assert "not paired" in line and "-11.00 ±9.71" in line  # Welch: 2.74 degrees of freedom, t = 3.364


def test_runs_of_single_tasks_with_one_seed_complete_each_other(runs):
    for seed in (1, 3):
        for task, *scores in (("cola", 30.0, 0, 0), ("rte", 0, 70.0 + seed, 0), ("sst2", 0, 0, 92.0)):
            write_run(runs / f"single-{task}-{seed}", seed, *scores, "mt_dense_minilm")
    single = ",".join(f"{runs}/single-{task}-*" for task in ("sst2", "rte", "cola"))
    shown = compare(f"mt_tag={runs}/tag-*", f"single={single}", "--out", runs / "out")
    line = line_of(shown, "single ", "1, 3", "30.00 ±0.00")
    assert 0 < line.index("30.00 ±0.00") < line.index(f"72.00 ±{error_of([71, 73]):.2f}")  # in mt_tag's order
    (first, _) = comparison_in(runs / "out")[0]["systems"]["single"]["runs"]
    assert len(first["folders"]) == 3 and first["score"]["averages"]["small"] == pytest.approx((30 + 71) / 2)


def pair_run(folder, seed, low, high, chrf=50.0, chrf_signature="nw:2", beam=5):
    bleus = (("en-de", "high", high), ("en-gu", "low", low))
    rows = [PairScore(pair, tier, 10, bleu, chrf, "tok:13a", chrf_signature) for pair, tier, bleu in bleus]
    settings = {"checkpoint": "checkpoint_best.pt", "subset": "test", "data_sha256": "x", "references": "text",
                "beam": beam}  # fmt: skip
    write_scores(folder / "scores" / "checkpoint_best-test", scores_of_pairs(rows, settings))
    RunLog(folder / FILE_NAME).write("run", sizes={"en-de": 1}, seed=seed)


def test_translation_is_compared_by_the_same_command(tmp_path):
    for seed, low, high in ((1, 10.0, 24.0), (2, 12.0, 25.0)):
        pair_run(tmp_path / f"dense-{seed}", seed, low, high)
        pair_run(tmp_path / f"base-{seed}", seed, low - seed, high + 1)
    shown = compare(f"dense={tmp_path}/dense-*", f"base={tmp_path}/base-*", "--out", tmp_path / "out")
    shown = shown[: shown.index("chrF++: mean")]
    assert "11.00 ±1.00" in line_of(shown, "│ dense ", "1, 2")
    assert "-1.50 ±6.35" in line_of(shown, "base − dense") and "+1.00 ±0.00" in line_of(shown, "base − dense")
    assert comparison_in(tmp_path / "out")[1][2].endswith("| en-gu | en-de | Low | High | All |")


def test_every_metric_is_compared_and_named_with_its_signature_search_and_interval(tmp_path):
    for seed in (1, 2):
        pair_run(tmp_path / f"dense-{seed}", seed, 10.0, 24.0)
        pair_run(tmp_path / f"base-{seed}", seed, 11.0, 24.0 + seed, chrf=50.0 + seed)
    shown = compare(f"dense={tmp_path}/dense-*", f"base={tmp_path}/base-*", "--out", tmp_path / "out")
    written, page = comparison_in(tmp_path / "out")
    titles = [f"{metric}: {what}" for metric in ("BLEU", "chrF++") for what in ("mean over seeds", "differences")]
    assert [line for line in page if line.startswith("#")] == [f"## {title}" for title in titles]
    assert all(title in shown for title in titles) and "No system translates" not in shown
    assert {"BLEU tok:13a", "chrF++ nw:2", "- beam: 5"} <= {*page}
    assert written["metrics"] == ["BLEU tok:13a", "chrF++ nw:2"]
    assert written["settings"]["beam"] == 5
    found = written["differences"]["base"]
    assert found["chrF++"]["averages"]["all"]["mean"] == 1.5
    assert found["chrF++"]["averages"]["all"]["interval"] == pytest.approx([1.5 - T_OF_TWO / 2, 1.5 + T_OF_TWO / 2])
    assert written["systems"]["base"]["runs"][1]["chrF++"]["scores"] == {"en-gu": 52.0, "en-de": 52.0}


def test_a_metric_of_some_runs_is_left_out_and_pairs_that_no_system_translates_are_named(tmp_path):
    pair_run(tmp_path / "dense-1", 1, 0.3, 24.0, chrf_signature="nw:0", beam=4)
    pair_run(tmp_path / "base-1", 1, 0.9, 25.0)
    shown = compare(f"dense={tmp_path}/dense-1", f"base={tmp_path}/base-1", "--out", tmp_path / "out")
    assert "No system translates en-gu: all have less than 1 BLEU." in shown
    assert "chrF++ is left out" in shown and "chrF++:" not in shown and line_of(shown, "base − dense").count("±") == 0
    assert "- beam: differs" in comparison_in(tmp_path / "out")[1]


def test_what_cannot_be_compared_is_refused_and_no_file_is_written(runs):
    for changed, words in (
        ({"subset": "test"}, "has those of test, and not of valid as"), ({"sst2": None}, "has cola, rte, other tasks"),
        ({"digest": "e"}, "has another set of data of cola than"), ({"mnli": 1.0}, "has .*, mnli, other tasks"),
    ):  # fmt: skip
        write_run(runs / "odd", 5, **{"cola": 40.0, "rte": 80.0, "sst2": 90.0, **changed})
        with pytest.raises(UserError, match=rf"must have scores of the same data to be compared, but .*odd.* {words}"):
            compare(f"mt_tag={runs}/tag-*", f"odd={runs}/odd", "--out", runs / "out")
        assert not (runs / "out").exists()


def test_wrong_arguments_are_refused_and_a_folder_without_a_seed_counts_once(runs, monkeypatch):
    monkeypatch.chdir(runs)
    for name in ("one", "other"):
        write_run(runs / name, None, 40.0, 80.0, 90.0)
    for arguments, name in (
        (("tag-1",), "NAME=RUN,…"), (("a=",), "NAME=RUN,…"), (("a=tag-1", "a=tag-2"), "NAME=RUN,…"),
        (("a=nothing-*",), "nothing-*"), (("a=.",), "."), (("a=tag-1,tag-1",), "a"),
    ):  # fmt: skip
        with refused(name):
            compare(*arguments)
    assert "?, ?" in compare("a=one,other")


def test_a_run_without_scores_names_the_command_that_makes_them_and_one_with_several_its_folders(runs):
    RunLog(runs / "unscored" / FILE_NAME).write("run", data="GLUE DIR", seed=1)
    path = runs / "unscored" / "checkpoint_best.pt"
    with refused("unscored", f"mtmoe evaluate 'GLUE DIR' --path {path}"):
        compare(f"mt_tag={runs}/tag-*", f"other={runs}/unscored")
    for subset in ("valid", "test"):
        shutil.copytree(runs / "tag-1" / "scores", runs / "both" / "scores" / f"best-{subset}")
    with pytest.raises(UserError, match=r"but has 2: choose one of .*best-test.*best-valid; .*'NAME=.*/\*/scores/"):
        compare(f"a={runs}/both")
    assert "CoLA" in compare(f"a={runs}/both/scores/best-test")
