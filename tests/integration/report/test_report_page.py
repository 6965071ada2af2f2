"""What the page of runs shows: progress, settings, scores with their significance, translations."""

import json

import numpy as np
import pytest

from fairseq_mtmoe.core.pages import page_of
from fairseq_mtmoe.core.tables import Table
from fairseq_mtmoe.report import page
from fairseq_mtmoe.report.differences import find_differences
from fairseq_mtmoe.report.eval_folders import read_evaluations
from fairseq_mtmoe.report.page import Shown, read_shown, sections_of
from fairseq_mtmoe.report.rows import Run, run_of
from fairseq_mtmoe.report.score_files import scores_of_tasks
from fairseq_mtmoe.report.score_tables import write_scores
from fairseq_mtmoe.report.setup import compared_settings, progress_of
from tests.helpers.benchmark_scores import set_of, task_of
from tests.helpers.evaluations import write_evaluation
from tests.helpers.figure_logs import benchmark
from tests.helpers.refused import refused
from tests.helpers.reported_runs import write_runs
from tests.helpers.run_logs import events_of_a_run, write_run


def parts_of(sections, title):
    (section,) = [section for section in sections if section.title == title]
    return section.parts


def test_progress_says_how_far_a_run_is_and_which_validation_was_best():
    run = run_of(events_of_a_run(updates=800), "run")
    (ppl,) = run.of("all", metric="ppl")
    assert progress_of(run) == {
        "best validation": f"{ppl.value[-1]:.2f} ppl", "at update": "800", "updates": "800", "epoch": "4",
        "minutes": "8.0", "tokens": "400,000", "skipped updates": "", "state": "finished",
    }  # fmt: skip
    short = events_of_a_run(change=lambda event: event if event.get("update", 0) <= 500 else None)
    assert progress_of(run_of(short, "run"))["state"] == "not finished"
    longer = run_of(events_of_a_run(updates=1000), "run")
    assert progress_of(longer)["minutes"] == "10"
    options = {"options": {"best_checkpoint_metric": "chrf"}}
    chosen = {"run": options, "valid": {"all": {"ppl": 3.0, "chrf": 20.0}}}
    scored = progress_of(run_of(events_of_a_run(change=lambda event: event | chosen.get(event["event"], {})), "run"))
    assert (scored["best validation"], scored["at update"]) == ("20.00 chrF++", "100")
    tasks = progress_of(run_of(benchmark(), "run"))
    assert (tasks["best validation"], tasks["at update"], tasks["state"]) == ("50.00 mean", "20", "unknown")


def test_settings_say_where_runs_differ_and_a_model_is_as_large_as_it_became():
    starts = (
        {"options": {"lr": [0.1], "arch": "x"}, "seed": 1, "sizes": {"en-de": 1000, "en-fr": 20},
         "versions": {"torch": "2"}, "sampling_method": "temperature", "parameters": 12_000},
        {"options": {"lr": [0.2], "arch": "x", "fp16": True}, "seed": 1, "commit": None, "parameters": 100},
    )  # fmt: skip
    first, second = (run_of([{"event": "run", **start}], "run") for start in starts)
    second.events.append({"event": "sparsified", "update": 5, "num_experts": 4, "parameters": 24_000})
    differing, common = compared_settings([first, second])
    assert {name: values for name, *values in differing} == {
        "parameters": ["12,000", "24,000"], "training sentences": ["1,020 in 2 sets", ""], "--lr": ["[0.1]", "[0.2]"],
        "torch (version)": ["2", ""], "--sampling-method": ["temperature", ""], "--fp16": ["", "true"],
    }  # fmt: skip
    assert common == [["seed", "1"], ["--arch", "x"]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return write_runs(tmp_path_factory.mktemp("runs"))


def test_two_runs_have_the_differences_of_mtmoe_compare(runs):
    sections = sections_of(read_shown(runs), {})
    evaluations = read_evaluations([run / "scores" for run in runs])
    expected = find_differences(evaluations, page.SAMPLING)
    title, table, *_ = parts_of(sections, "Scores")
    assert title == "BLEU: run-1 − run-0" and table.rows[1][-1] == f"{expected[0].pairs['en-de'].p_randomisation:.4f}"


def test_notes_say_which_scores_are_not_shown_or_compared_and_damaged_ones_are_refused(runs, tmp_path):
    other = write_run(tmp_path / "c", events_of_a_run(pairs=1, validations=1))
    write_evaluation(other / "scores", 0.3, pairs={"en-de": "high"}, sentences=20)
    sections = sections_of(read_shown([runs[0], other]), {})
    assert "has no en-gu" in parts_of(sections, "Warnings")[1]
    assert sum(isinstance(part, Table) for part in parts_of(sections, "Scores")) == 2
    run = write_run(tmp_path / "run", events_of_a_run(pairs=2, validations=2))
    for name in ("a", "b"):
        write_evaluation(run / "scores" / name, 0.3, sentences=10)
    assert "it has 2 folders of scores" in read_shown([run]).notes[0]
    shown = read_shown([run], [run / "scores" / "a"])
    assert shown.notes == [] and list(shown.scores) == ["run"]
    (run / "scores" / "a" / "scores.json").write_text("[1]")
    with refused("scores.json"):
        read_shown([run], [run / "scores" / "a"])


def test_benchmarks_scores_stand_beside_each_other(tmp_path):
    paths = []
    for name, score in (("a", 70.0), ("b", 72.0)):
        paths.append(write_run(tmp_path / name, benchmark()))
        tasks = {**task_of("rte", set_of(score, 2.0, majority={"accuracy": 52.7})), **task_of("cola", set_of(50.0))}
        settings = {"checkpoint": "x.pt", "subset": "valid", "seed": 1, "updates": 10}
        write_scores(tmp_path / name / "scores", scores_of_tasks(tasks, settings))
    table, _ = parts_of(sections_of(read_shown(paths), {}), "Scores")
    assert [row[:3] for row in table.rows[:2]] == [["a", "1", "70.00"], ["b", "1", "72.00"]]
    _, table, notes = parts_of(sections_of(read_shown(paths[:1]), {}), "Scores")
    assert table.rows[0] == ["RTE", "accuracy", "100", "70.00 ±2.00", "52.70"] and notes[0].startswith("±")


def shown_runs(number, **options):
    return Shown([run_of(events_of_a_run(**options), f"run-{one}") for one in range(1, number + 1)])


def test_warnings_name_their_runs_and_every_section_has_its_charts(runs):
    diverged = shown_runs(2, change=lambda event: event | ({"loss": None} if event["event"] == "train" else {}))
    texts, *_ = parts_of(sections_of(diverged, {}), "Warnings")
    assert [text.partition(": ")[0] for text in texts] == ["run-1", "run-2"]
    assert parts_of(sections_of(shown_runs(1), {}), "Warnings") == ["No warnings."]
    assert parts_of(sections_of(Shown([Run("run", [], [], {}, "language", np.zeros(0))]), {}), "Warnings")[0]
    titles = {section.title: section.parts for section in sections_of(read_shown(runs[:1]), {})}
    charts = {"Validation": 2, "Training": 1, "Sampling": 2, "Experts": 3, "Gates": 1, "Sources": 1, "Speed": 1}
    assert {title: len(titles[title]) for title in charts} == charts


@pytest.mark.parametrize("number", [1, 5])
def test_pages_of_fifty_languages_are_small_and_have_the_last_values(number):
    shown = shown_runs(number, pairs=50, updates=100_000, validations=200, train_events=2000, num_experts=16)
    text = page_of("runs", sections_of(shown, {}))
    (ppl,) = shown.runs[0].of("all", metric="ppl")
    assert len(text.encode()) < 5_000_000 and len(ppl.value) == 200
    assert json.dumps(float(np.round(ppl.value[-1], 6)))[:6] in text
